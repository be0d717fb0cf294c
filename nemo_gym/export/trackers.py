"""Experiment trackers, which receive the metrics and rollouts of a run in addition to its files.

Trackers are optional. An error in one of them becomes a warning and affects neither the run nor other trackers. A new
kind of tracker needs a class with the methods of ``Tracker``; it is started and called in a separate thread.
"""

import asyncio
import importlib
import logging
import math
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol

from nemo_gym.io.files import RunFiles
from nemo_gym.rollouts.outcome import Completed, Outcome

if TYPE_CHECKING:
    from nemo_gym.rollouts.run_metrics import RunMetrics

logger = logging.getLogger(__name__)

Metrics = Mapping[str, float | str]

EVERY_S: Final = 10.0  # between reports of progress
TABLE_ROWS: Final = 10_000  # W&B does not display more
START_S: Final = 2.0  # to find out whether W&B is wanted, and usually to start it
WANDB_LAST_S: Final = 600.0  # to upload rollouts when the run is over
WANDB_UNREACHED_S: Final = 100.0  # the same if it has not started yet; it gives up by itself after 90 seconds


class Tracker(Protocol):
    """Receives the results of a run."""

    def log_metrics(self, metrics: Metrics) -> None:
        """Record numbers and strings by name."""

    def log_progress(self, metrics: Metrics, step: int) -> None:
        """Record the progress of the run; ``step`` is the number of attempts that have ended."""

    def log_rollouts(self, rollouts: Path) -> None:
        """Record the rollouts of a file."""

    def log_files(self, files: Sequence[Path]) -> None:
        """Store the other files of the run."""

    def close(self) -> None:
        """Make sure that everything has been sent."""


Work = Callable[[Tracker], None]
Start = Callable[[], Any]  # returns the object that a tracker logs to, or None if tracking is off


class WandbTracker:
    """Weights & Biases. A run that was already open before is left open."""

    def __init__(self, run: Any, *, owned: bool) -> None:
        self._run = run
        self._owned = owned

    def log_metrics(self, metrics: Metrics) -> None:
        """Log them in one step."""
        self._run.log(dict(metrics))

    def log_progress(self, metrics: Metrics, step: int) -> None:
        """Log them with the number of attempts that have ended, which charts can use as their axis."""
        self._run.log({**metrics, "progress/ended": step})

    def log_rollouts(self, rollouts: Path) -> None:
        """Log a table with one rollout per row, up to the number of rows that W&B displays."""
        with rollouts.open(encoding="utf-8") as file:
            rows = [[line.rstrip("\n")] for line in islice(file, TABLE_ROWS + 1)]
        if len(rows) > TABLE_ROWS:
            logger.info("W&B gets the first %d rollouts; all of them are in %s", TABLE_ROWS, rollouts)
        table = importlib.import_module("wandb").Table(columns=["Rollout"], data=rows[:TABLE_ROWS])
        self._run.log({"Rollouts": table})

    def log_files(self, files: Sequence[Path]) -> None:
        """Upload copies of the files."""
        for path in files:
            self._run.save(str(path), base_path=str(path.parent), policy="now")

    def close(self) -> None:
        """Upload what is still queued."""
        if self._owned:
            self._run.finish()


class BackgroundTracker:
    """Runs a tracker in a separate thread, so that a service that hangs or is far away does not delay the run.

    The tracker is started in that thread, too; calls wait in a queue until it has started.
    ``gives_up`` is for services whose client tries for minutes to reach them: no further calls after the first failure.
    ``last_s`` is how long the end of the run waits for everything to arrive; ``unreached_s`` is the same for a tracker
    that has not started by then.
    """

    def __init__(
        self,
        name: str,
        start: Callable[[], Tracker | None],
        *,
        gives_up: bool = True,
        last_s: float = 30.0,
        unreached_s: float = 10.0,
    ) -> None:
        self.name = name
        self._start = start
        self._gives_up = gives_up
        self._last_s, self._unreached_s = last_s, unreached_s
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._has_started = threading.Event()
        self._tracker: Tracker | None = None
        self._given_up = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def is_off(self, *, within_s: float) -> bool:
        """Whether tracking turned out to be off, as far as that is known within the given time."""
        return self._has_started.wait(within_s) and self._tracker is None

    def log_metrics(self, metrics: Metrics) -> None:
        """Pass metrics on."""
        self._queue.put(lambda tracker: tracker.log_metrics(metrics))

    def log_progress(self, metrics: Metrics, step: int) -> None:
        """Pass progress on."""
        self._queue.put(lambda tracker: tracker.log_progress(metrics, step))

    def log_rollouts(self, rollouts: Path) -> None:
        """Pass rollouts on."""
        self._queue.put(lambda tracker: tracker.log_rollouts(rollouts))

    def log_files(self, files: Sequence[Path]) -> None:
        """Pass files on."""
        self._queue.put(lambda tracker: tracker.log_files(files))

    def close(self) -> None:
        """Wait a limited time for everything to arrive."""
        self._queue.put(lambda tracker: tracker.close())
        self._queue.put(None)  # ends the thread
        patience = self._last_s if self._has_started.is_set() else self._unreached_s
        self._thread.join(patience)
        if self._thread.is_alive():
            self._give_up()
            raise TimeoutError(f"not everything arrived within {patience:g} s")

    def _work(self) -> None:
        with guarded(self.name, on_failure=self._give_up):
            self._tracker = self._start()
        self._has_started.set()
        if self._tracker is None:
            return  # ends the thread: trainers collect again and again in one process, and threads would pile up
        while (work := self._queue.get()) is not None:
            if not self._given_up:
                with guarded(self.name, on_failure=self._after_failure):
                    work(self._tracker)

    def _after_failure(self) -> None:
        self._given_up = self._given_up or self._gives_up

    def _give_up(self) -> None:
        self._given_up = True


@dataclass(slots=True)
class ProgressCounter:
    """Counts the attempts that have ended so far."""

    completed: int = 0
    attempts_failed: int = 0
    rewards: float = 0.0
    tokens: int = 0
    began: float = field(default_factory=monotonic)

    @property
    def ended(self) -> int:
        """The number of attempts that have ended."""
        return self.completed + self.attempts_failed

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Count these outcomes."""
        for outcome in outcomes:
            usage = getattr(outcome, "usage", None)
            self.tokens += usage.input_tokens + usage.output_tokens if usage is not None else 0
            if isinstance(outcome, Completed):
                self.completed += 1
                self.rewards += outcome.reward or 0.0
            else:
                self.attempts_failed += 1

    def values(self) -> dict[str, float | str]:
        """The figures that trackers record."""
        seconds = max(monotonic() - self.began, 1e-9)
        return {
            "progress/completed": self.completed,
            "progress/failed_attempts": self.attempts_failed,
            "progress/mean_reward": self.rewards / self.completed if self.completed else 0.0,
            "progress/tokens": self.tokens,
            "progress/rollouts_per_second": self.completed / seconds,
        }


@dataclass(slots=True)
class Trackers:
    """The trackers of a run."""

    all: Sequence[Tracker]
    _progress: ProgressCounter = field(default_factory=ProgressCounter)
    _next: float = 0.0

    @property
    def listener(self) -> Callable[[Sequence[Outcome]], None] | None:
        """The function to call with outcomes; None if there are no trackers."""
        return self.follow if self.all else None

    def follow(self, outcomes: Sequence[Outcome]) -> None:
        """Record the progress of the run at regular intervals."""
        self._progress.add(outcomes)
        if monotonic() >= self._next:
            self._next = monotonic() + EVERY_S
            self._report_progress()

    def log(self, metrics: Sequence["RunMetrics"], *, rollouts: Path | None = None, files: Sequence[Path] = ()) -> None:
        """Hand over the metrics, the files that exist, and the rollouts if they are given."""
        if self._progress.ended:
            self._report_progress()
        there = [path for path in files if path.is_file()]
        # Each call separately guarded: a service may refuse a large file and still take the metrics.
        for tracker in self.all:
            with guarded(tracker):
                tracker.log_metrics(flat(metrics))
            with guarded(tracker):
                if there:
                    tracker.log_files(there)
            with guarded(tracker):
                if rollouts is not None and rollouts.exists():
                    tracker.log_rollouts(rollouts)

    def _report_progress(self) -> None:
        for tracker in self.all:
            with guarded(tracker):
                tracker.log_progress(self._progress.values(), self._progress.ended)


def files_to_keep(files: RunFiles, *, content: bool) -> list[Path]:
    """The files of a run besides its rollouts; those that contain messages only if ``content`` may be uploaded."""
    without_messages = [files.manifest, files.metrics, files.details, files.timing, files.steps]
    return [*without_messages, files.failures] if content else without_messages


@contextmanager
def tracking(
    start_wandb: Start, names: Sequence[str] | None = None, *, others: Mapping[str, Start] | None = None
) -> Iterator[Trackers]:
    """Start the trackers, and close them at the end: W&B if it is named, or configured and none are named; all others.

    They start in their own threads. The run waits a moment for each, to see whether it is wanted, but no longer.
    """
    trackers: list[Tracker] = [BackgroundTracker(name, start) for name, start in (others or {}).items()]
    if names is None or "wandb" in names:
        start = partial(_wandb_tracker, start_wandb, names)
        patience = {"last_s": WANDB_LAST_S, "unreached_s": WANDB_UNREACHED_S}
        wandb = BackgroundTracker("W&B", start, gives_up=False, **patience)
        if not wandb.is_off(within_s=START_S):
            trackers.append(wandb)
    try:
        yield Trackers(trackers)
    finally:
        for tracker in trackers:
            with guarded(getattr(tracker, "name", tracker)):
                tracker.close()


@asynccontextmanager
async def off_the_loop(trackers: AbstractContextManager[Trackers]) -> AsyncIterator[Trackers]:
    """The same trackers; their last uploads are awaited in a thread, so that the event loop can go on meanwhile."""
    with_trackers = trackers.__enter__()
    try:
        yield with_trackers
    finally:
        await asyncio.to_thread(trackers.__exit__, *sys.exc_info())


def _wandb_tracker(start: Start, names: Sequence[str] | None) -> WandbTracker | None:
    already_open = getattr(sys.modules.get("wandb"), "run", None)
    run = start()
    if run is None and names is not None:
        logger.warning("trackers names wandb, which needs wandb_project, wandb_name and wandb_api_key")
    return WandbTracker(run, owned=run is not already_open) if run is not None else None


@contextmanager
def guarded(tracker: Tracker | str, *, on_failure: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Turn any error of a tracker into a warning."""
    name = tracker if isinstance(tracker, str) else type(tracker).__name__
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the exporter guard: a tracker never fails a run
        logger.warning("%s: %s: %s (the run itself is not affected)", name, type(error).__name__, error)
        on_failure()


def flat(metrics: Sequence["RunMetrics"]) -> dict[str, float | str]:
    """All metrics that are single values: ``<agent>/<metric>``, and ``key_metrics/<agent>/<metric>``."""
    found: dict[str, float | str] = {}
    for each in metrics:
        found |= {f"{each.agent}/{name}": value for name, value in each.agent_metrics.items() if _is_value(value)}
        found |= {f"key_metrics/{each.agent}/{name}": v for name, v in each.key_metrics.items() if _is_value(v)}
    return found


def _is_value(value: Any) -> bool:
    return isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))
