"""MLflow as a tracker: parameters, metrics over time, and the files of the run as artifacts.

All calls are made in a separate thread, because MLflow tries for minutes to reach a server that is down, and the run
must not wait for it. After the first failure the tracker gives up, with one warning. This module needs the extra
``mlflow`` and is imported only if MLflow is asked for.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from time import time
from typing import Any, Final

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from nemo_gym.export.trackers import Metrics, guarded

LAST_S: Final = 30.0  # to upload the rest when the run is over
UNREACHED_S: Final = 10.0  # the same if the server has never answered
LONGEST_VALUE: Final = 500  # characters of a parameter
MOST_PARAMETERS: Final = 100  # in one request

Work = Callable[[], None]


class MlflowTracker:
    """A run of MLflow, which begins with this object."""

    def __init__(self, uri: str | None, *, experiment: str, name: str, parameters: Mapping[str, Any]) -> None:
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._uri = uri
        self._about = experiment, name
        self._client: Any = None
        self._run = ""
        self._given_up = False
        self._thread = threading.Thread(target=self._work, name="MLflow", daemon=True)
        self._thread.start()
        self._queue.put(lambda: self._begin(parameters))

    def log_metrics(self, metrics: Metrics) -> None:
        """Record numbers; strings become parameters."""
        self._queue.put(lambda: self._log(metrics, step=0))

    def log_progress(self, metrics: Metrics, step: int) -> None:
        """Record the current numbers under their step."""
        self._queue.put(lambda: self._log(metrics, step=step))

    def log_rollouts(self, rollouts: Path) -> None:
        """Upload the rollouts."""
        self.log_files([rollouts])

    def log_files(self, files: Sequence[Path]) -> None:
        """Upload files of the run."""
        for path in files:
            self._queue.put(lambda path=path: self._client.log_artifact(self._run, str(path)))  # type: ignore[misc]

    def close(self) -> None:
        """Wait a limited time for everything to arrive."""
        self._queue.put(lambda: self._client.set_terminated(self._run))
        self._queue.put(None)
        patience = LAST_S if self._run else UNREACHED_S
        self._thread.join(patience)
        if self._thread.is_alive() and not self._given_up:
            self._given_up = True
            raise TimeoutError(f"not everything arrived within {patience:g} s")

    def _work(self) -> None:
        while (work := self._queue.get()) is not None and not self._given_up:
            with guarded(self, on_failure=self._give_up):
                work()

    def _give_up(self) -> None:
        self._given_up = True

    def _begin(self, parameters: Mapping[str, Any]) -> None:
        experiment, name = self._about
        self._client = MlflowClient(tracking_uri=self._uri)
        found = self._client.get_experiment_by_name(experiment)
        number = found.experiment_id if found is not None else self._client.create_experiment(experiment)
        self._run = self._client.create_run(number, run_name=name).info.run_id
        texts = [Param(key, str(value)[:LONGEST_VALUE]) for key, value in flattened(parameters) if value is not None]
        for start in range(0, len(texts), MOST_PARAMETERS):
            self._client.log_batch(self._run, params=texts[start : start + MOST_PARAMETERS])

    def _log(self, metrics: Metrics, step: int) -> None:
        now = int(time() * 1000)
        numbers = [
            Metric(allowed(name), float(value), now, step)
            for name, value in metrics.items()
            if isinstance(value, int | float)
        ]
        for start in range(0, len(numbers), 1000):
            self._client.log_batch(self._run, metrics=numbers[start : start + 1000])


def allowed(name: str) -> str:
    """A name that MLflow accepts."""
    return "".join(letter if letter.isalnum() or letter in "_-. :/" else "_" for letter in name)


def flattened(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested settings by dotted names."""
    found: list[tuple[str, Any]] = []
    for name, value in values.items():
        key = allowed(f"{prefix}{name}")
        found += flattened(value, f"{key}.") if isinstance(value, Mapping) else [(key, value)]
    return found
