"""Weights & Biases as a tracker: its run, progress and metrics, the files, and a table of the rollouts.

It is used by default if the three keys are configured; they are usually in ``env.yaml``. The package ``wandb`` is
imported only then.
"""

import importlib
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from nemo_gym.config.interpolation import plain_data
from nemo_gym.config.locate import started_in
from nemo_gym.config.secrets import MASK, mask_secrets
from nemo_gym.errors import ConfigError
from nemo_gym.telemetry.trackers import Metrics, TrackedRun, Tracker, exporter_guard

logger = logging.getLogger(__name__)

NAME: Final = "wandb"
KEYS: Final = ("wandb_project", "wandb_name", "wandb_api_key")
TABLE_ROWS: Final = 10_000  # W&B does not display more


class WandbTracker(Tracker):
    """A W&B run. One that was open already is left open."""

    gives_up = False
    last_s = 600.0  # to upload rollouts
    unreached_s = 100.0  # it gives up by itself after 90 seconds

    def __init__(self, run: TrackedRun) -> None:
        already_open = getattr(sys.modules.get("wandb"), "run", None)
        self._run = open_wandb_run(run.configuration())
        if self._run is None:
            raise ConfigError(f"it needs {', '.join(KEYS)}")
        self._is_ours = self._run is not already_open

    def log_progress(self, metrics: Metrics, step: int) -> None:
        """Log them with the number of attempts that have ended, which charts can use as their axis."""
        self._run.log({**metrics, "progress/ended": step})

    def log_metrics(self, metrics: Metrics) -> None:
        self._run.log(dict(metrics))

    def log_files(self, files: Sequence[Path]) -> None:
        for path in files:
            self._run.save(str(path), base_path=str(path.parent), policy="now")

    def log_rollouts(self, rollouts: Path) -> None:
        """Log a table with one rollout per row, up to the number of rows that W&B displays."""
        with rollouts.open(encoding="utf-8") as file:
            rows = [[line.rstrip("\n")] for line in islice(file, TABLE_ROWS + 1)]
        if len(rows) > TABLE_ROWS:
            logger.info("W&B gets the first %d rollouts; all of them are in %s", TABLE_ROWS, rollouts)
        table = importlib.import_module("wandb").Table(columns=["Rollout"], data=rows[:TABLE_ROWS])
        self._run.log({"Rollouts": table})

    def close(self) -> None:
        if self._is_ours:
            self._run.finish()


def default_trackers(configuration: Callable[[], Mapping[str, Any]]) -> list[str]:
    """The trackers of a run that names none: W&B if it is configured."""
    found: list[str] = []
    with exporter_guard(NAME, set()):
        found += [NAME] if is_configured(configuration()) else []
    return found


def is_configured(configuration: Mapping[str, Any]) -> bool:
    """Whether all keys are set, with a warning if only some of them are."""
    missing = [name for name in KEYS if not configuration.get(name)]
    if 0 < len(missing) < len(KEYS):
        verb = "is" if len(missing) == 1 else "are"
        logger.warning("no W&B run: %s %s missing; all of %s are needed", " and ".join(missing), verb, ", ".join(KEYS))
    # A masked configuration was made to be shown, not to be used.
    return not missing and configuration["wandb_api_key"] != MASK


def open_wandb_run(configuration: Mapping[str, Any]) -> Any:
    """The W&B run that the configuration describes, started now unless one is open; None if it describes none."""
    if not is_configured(configuration):
        return None
    try:
        wandb = importlib.import_module("wandb")
    except ImportError:
        raise ConfigError(
            "'wandb_project', 'wandb_name' and 'wandb_api_key' are set, but wandb is not installed",
            hint="pip install wandb, or remove one of these keys",
        ) from None
    if wandb.run is not None:
        return wandb.run
    project, name, key = (str(configuration[name]) for name in KEYS)
    os.environ["WANDB_API_KEY"] = key  # wandb.init has no parameter for it
    folder = Path(os.environ.get("WANDB_DIR") or started_in() / "results" / "wandb")
    folder.mkdir(parents=True, exist_ok=True)
    return wandb.init(project=project, name=name, dir=str(folder), config=mask_secrets(plain_data(configuration)))
