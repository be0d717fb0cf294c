"""MLflow as a tracker: parameters, metrics over time, and the files of the run as artifacts.

The server and the experiment come from MLflow's own variables, ``MLFLOW_TRACKING_URI`` and ``MLFLOW_EXPERIMENT_NAME``.
This module needs the extra ``mlflow`` and is imported only if the tracker is named.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from time import time
from typing import Any, Final

from mlflow import MlflowClient, get_tracking_uri
from mlflow.entities import Metric, Param

from nemo_gym.errors import ConfigError
from nemo_gym.io.files import run_stem
from nemo_gym.telemetry.trackers import Metrics, TrackedRun, Tracker

LONGEST_VALUE: Final = 500  # characters of a parameter
MOST_PARAMETERS: Final = 100  # in one request
DATABASES: Final = ("sqlite", "postgresql", "mysql", "mssql")  # what the small package can't open


class MlflowTracker(Tracker):
    """A run of MLflow, which begins with this object."""

    def __init__(self, run: TrackedRun) -> None:
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", "rollout-gym")
        # It warns of every attempt to reach a server that is down; that it was not reached is logged once, by us.
        logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
        _refuse_database(get_tracking_uri())
        self._client = MlflowClient()
        found = self._client.get_experiment_by_name(experiment)
        number = found.experiment_id if found is not None else self._client.create_experiment(experiment)
        self._run = self._client.create_run(number, run_name=run_stem(run.files.rollouts)).info.run_id
        texts = [Param(key, str(value)[:LONGEST_VALUE]) for key, value in flattened(run.settings) if value is not None]
        for start in range(0, len(texts), MOST_PARAMETERS):
            self._client.log_batch(self._run, params=texts[start : start + MOST_PARAMETERS])

    def log_progress(self, metrics: Metrics, step: int) -> None:
        """Record the numbers; MLflow has no strings that change."""
        now = int(time() * 1000)
        numbers = [
            Metric(mlflow_name(name), float(value), now, step)
            for name, value in metrics.items()
            if isinstance(value, int | float)
        ]
        for start in range(0, len(numbers), 1000):
            self._client.log_batch(self._run, metrics=numbers[start : start + 1000])

    def log_metrics(self, metrics: Metrics) -> None:
        self.log_progress(metrics, step=0)

    def log_files(self, files: Sequence[Path]) -> None:
        for path in files:
            self._client.log_artifact(self._run, str(path))

    def log_rollouts(self, rollouts: Path) -> None:
        self.log_files([rollouts])

    def close(self) -> None:
        self._client.set_terminated(self._run)


def _refuse_database(uri: str) -> None:
    """Explain what is missing if the destination is a database, which it is by default."""
    if uri.startswith(DATABASES) and find_spec("sqlalchemy") is None:
        raise ConfigError(
            f"{uri} is a database, which needs the whole package (pip install mlflow); "
            "for a server set MLFLOW_TRACKING_URI=http://localhost:5000"
        )


def mlflow_name(name: str) -> str:
    """A name that MLflow accepts."""
    return "".join(letter if letter.isalnum() or letter in "_-. :/" else "_" for letter in name)


def flattened(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested settings by dotted names."""
    found: list[tuple[str, Any]] = []
    for name, value in values.items():
        key = mlflow_name(f"{prefix}{name}")
        found += flattened(value, f"{key}.") if isinstance(value, Mapping) else [(key, value)]
    return found
