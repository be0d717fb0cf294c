"""Experiment trackers: where the metrics and rollouts of a run go besides its files.

A tracker is an extra. Whatever goes wrong in one is a warning, and neither the run nor another tracker notices. A new
kind of tracker is a class with three methods and a function that starts it.
"""

import importlib
import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from nemo_gym.rollouts.run_metrics import RunMetrics

logger = logging.getLogger(__name__)

Metrics = Mapping[str, float | str]

TABLE_ROWS: Final = 10_000  # W&B shows no more


class Tracker(Protocol):
    """Takes what a run found out."""

    def log_metrics(self, metrics: Metrics) -> None:
        """Record numbers and texts by name."""

    def log_rollouts(self, rollouts: Path) -> None:
        """Record the rollouts of a file."""

    def close(self) -> None:
        """See that everything arrives."""


Start = Callable[[], Any]  # returns what a tracker logs to, or None if none is wanted


class WandbTracker:
    """Weights & Biases. A run that somebody else had begun is left open for them."""

    def __init__(self, run: Any, *, owned: bool) -> None:
        self._run = run
        self._owned = owned

    def log_metrics(self, metrics: Metrics) -> None:
        """Log them in one step."""
        self._run.log(dict(metrics))

    def log_rollouts(self, rollouts: Path) -> None:
        """Log a table with one rollout per row, as far as W&B shows them."""
        with rollouts.open(encoding="utf-8") as file:
            rows = [[line.rstrip("\n")] for line in islice(file, TABLE_ROWS + 1)]
        if len(rows) > TABLE_ROWS:
            logger.info("W&B gets the first %d rollouts; all of them are in %s", TABLE_ROWS, rollouts)
        table = importlib.import_module("wandb").Table(columns=["Rollout"], data=rows[:TABLE_ROWS])
        self._run.log({"Rollouts": table})

    def close(self) -> None:
        """Upload what is left."""
        if self._owned:
            self._run.finish()


@dataclass(frozen=True, slots=True)
class Trackers:
    """The trackers of a run."""

    all: Sequence[Tracker]

    def log(self, metrics: Sequence["RunMetrics"], *, rollouts: Path | None = None) -> None:
        """Hand over the metrics, and the rollouts if a file is given."""
        for tracker in self.all:
            with guarded(tracker):
                tracker.log_metrics(flat(metrics))
            with guarded(tracker):
                if rollouts is not None and rollouts.exists():
                    tracker.log_rollouts(rollouts)


@contextmanager
def tracking(start_wandb: Start) -> Iterator[Trackers]:
    """Start the trackers that are wanted, and close them when the run is over."""
    trackers: list[Tracker] = []
    with guarded("W&B"):
        others = getattr(sys.modules.get("wandb"), "run", None)
        run = start_wandb()
        if run is not None:
            trackers.append(WandbTracker(run, owned=run is not others))
    try:
        yield Trackers(trackers)
    finally:
        for tracker in trackers:
            with guarded(tracker):
                tracker.close()


@contextmanager
def guarded(tracker: Tracker | str) -> Iterator[None]:
    """Turn whatever goes wrong in a tracker into a warning."""
    name = tracker if isinstance(tracker, str) else type(tracker).__name__
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the exporter guard: a tracker never fails a run
        logger.warning("%s: %s: %s (the run itself is not affected)", name, type(error).__name__, error)


def flat(metrics: Sequence["RunMetrics"]) -> dict[str, float | str]:
    """All metrics that are single values: ``<agent>/<metric>``, and ``key_metrics/<agent>/<metric>``."""
    found: dict[str, float | str] = {}
    for each in metrics:
        found |= {f"{each.agent}/{name}": value for name, value in each.agent_metrics.items() if _is_value(value)}
        found |= {f"key_metrics/{each.agent}/{name}": v for name, v in each.key_metrics.items() if _is_value(v)}
    return found


def _is_value(value: Any) -> bool:
    return isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))
