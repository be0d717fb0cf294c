"""Experiment trackers, which receive the progress, the metrics and the files of a run.

A tracker is a subclass of ``Tracker`` that a package registers as an entry point of the group ``rollout_gym.trackers``;
W&B, MLflow and TensorBoard are registered in the same way. Each works in a thread of its own, so that it neither delays
nor fails the run. What waits there for a slow tracker is small: numbers and paths, no rollouts.
"""

import asyncio
import logging
import math
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import Any, ClassVar, Final, TypeAlias

from nemo_gym.io.files import RunFiles
from nemo_gym.rollouts.options import TelemetryOptions
from nemo_gym.rollouts.run import RunListener
from nemo_gym.rollouts.store.outcome import Outcome
from nemo_gym.rollouts.tally import AgentMetrics, Tally

logger = logging.getLogger(__name__)

Metrics: TypeAlias = Mapping[str, float | str]

EVERY_S: Final = 10.0  # between reports of progress


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """What a tracker may want to know about a run when it starts."""

    files: RunFiles  # where the rollouts are written, and the files beside them
    settings: Mapping[str, Any] = field(default_factory=dict)  # the parameters of the run, with secrets masked
    options: TelemetryOptions
    configuration: Callable[[], Mapping[str, Any]]  # the whole configuration, with the keys of ``env.yaml`` unmasked
    uploads_rollouts: bool = True  # whether messages may leave the machine


class Tracker:
    """Receives the results of a run. A tracker overrides what it needs; an error becomes a warning."""

    gives_up: ClassVar[bool] = True  # whether the first error ends it: clients may try for minutes to reach a service
    last_s: ClassVar[float] = 30.0  # how long the end of the run waits until everything has been sent
    unreached_s: ClassVar[float] = 10.0  # the same if the tracker has not even started by then

    def __init__(self, run: TrackedRun) -> None:
        """Start; called in the tracker's thread, like all methods."""

    def log_progress(self, metrics: Metrics, step: int) -> None:
        """Record the progress of the run; ``step`` is the number of attempts that have ended."""

    def log_metrics(self, metrics: Metrics) -> None:
        """Record the metrics of all agents by name."""

    def log_files(self, files: Sequence[Path]) -> None:
        """Store the files of the run."""

    def log_rollouts(self, rollouts: Path) -> None:
        """Store the rollouts. Called only if they may be uploaded."""

    def close(self) -> None:
        """Make sure that everything has been sent."""


Work: TypeAlias = Callable[[Tracker], None]


@contextmanager
def exporter_guard(name: str, reported: set[str]) -> Iterator[None]:
    """Turn any error of a tracker into a warning, unless it has been reported already."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the exporter guard: a tracker never fails a run
        message = f"tracker {name}: {type(error).__name__}: {error} (the run itself is not affected)"
        if message not in reported:
            reported.add(message)
            logger.warning("%s", message)


class TrackerThread:
    """A tracker in a thread of its own, so that a service that fails, hangs or is far away does not affect the run.

    The tracker is started in that thread, too; calls wait in a queue until it has started. An error is reported once.
    """

    def __init__(self, name: str, kind: type[Tracker], run: TrackedRun) -> None:
        self._name = name
        self._kind = kind
        self._run = run
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._has_started = threading.Event()
        self._is_abandoned = False
        self._reported: set[str] = set()
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def do(self, work: Work) -> None:
        """Have the thread call this with the tracker."""
        self._queue.put(work)

    def close(self) -> None:
        """Close the tracker, and wait a limited time for everything to arrive."""
        self._queue.put(lambda tracker: tracker.close())
        self._queue.put(None)  # ends the thread
        patience = self._kind.last_s if self._has_started.is_set() else self._kind.unreached_s
        self._thread.join(patience)
        if self._thread.is_alive():
            self._is_abandoned = True
            with exporter_guard(self._name, self._reported):
                raise TimeoutError(f"not everything arrived within {patience:g} s")

    def _work(self) -> None:
        with exporter_guard(self._name, self._reported):  # an error leaves it, which ends the thread
            tracker = self._kind(self._run)
            self._has_started.set()
            while (work := self._queue.get()) is not None and not self._is_abandoned:
                with nullcontext() if self._kind.gives_up else exporter_guard(self._name, self._reported):
                    work(tracker)


class TrackerListener(RunListener):
    """Hands what happens in a run to the threads of its trackers."""

    def __init__(self, threads: Sequence[TrackerThread], *, uploads_rollouts: bool) -> None:
        self._threads = threads
        self._uploads_rollouts = uploads_rollouts
        self._tally = Tally()
        self._began = monotonic()
        self._next = 0.0

    def outcomes_saved(self, outcomes: Sequence[Outcome]) -> None:
        """Count them, and report progress if it is time."""
        self._tally.add(outcomes)
        self.tick()

    def tick(self) -> None:
        """Report progress at regular intervals once something has ended, even while nothing ends."""
        if self._tally.attempts and monotonic() >= self._next:
            self._next = monotonic() + EVERY_S
            self._report_progress()

    def metrics_computed(self, metrics: Sequence[AgentMetrics]) -> None:
        values = flat(metrics)
        self._all(lambda tracker: tracker.log_metrics(values))

    def run_ended(self, files: RunFiles) -> None:
        """Report the final progress, and hand over the files that exist; those with messages only if they may go."""
        if self._tally.attempts:
            self._report_progress()
        without_messages = (files.manifest, files.metrics, files.details, files.timing, files.steps)
        uploaded = [*without_messages, *([files.failures] if self._uploads_rollouts else [])]
        if there := [path for path in uploaded if path.is_file()]:
            self._all(lambda tracker: tracker.log_files(there))
        if self._uploads_rollouts and files.rollouts.is_file():
            self._all(lambda tracker: tracker.log_rollouts(files.rollouts))

    def _report_progress(self) -> None:
        tally = self._tally
        values: Metrics = {
            "progress/completed": tally.completed,
            "progress/failed_attempts": tally.attempts - tally.completed,
            "progress/mean_reward": tally.mean_reward or 0.0,
            "progress/tokens": tally.spending.tokens,
            "progress/rollouts_per_second": tally.completed / max(monotonic() - self._began, 1e-9),
        }
        step = tally.attempts  # now: the thread may come to it later
        self._all(lambda tracker: tracker.log_progress(values, step))

    def _all(self, work: Work) -> None:
        for thread in self._threads:
            thread.do(work)


@asynccontextmanager
async def tracking(run: TrackedRun, kinds: Mapping[str, type[Tracker]]) -> AsyncIterator[TrackerListener]:
    """Start trackers; at the end, wait for their last uploads, but not on the event loop."""
    threads = [TrackerThread(name, kind, run) for name, kind in kinds.items()]
    try:
        yield TrackerListener(threads, uploads_rollouts=run.uploads_rollouts)
    finally:
        for thread in threads:
            await asyncio.to_thread(thread.close)


def flat(metrics: Sequence[AgentMetrics]) -> dict[str, float | str]:
    """All metrics that are single values: ``<agent>/<metric>``, and ``key_metrics/<agent>/<metric>``."""
    found: dict[str, float | str] = {}
    for each in metrics:
        found |= {f"{each.agent}/{name}": value for name, value in each.agent_metrics.items() if _is_value(value)}
        found |= {f"key_metrics/{each.agent}/{name}": v for name, v in each.key_metrics.items() if _is_value(v)}
    return found


def _is_value(value: Any) -> bool:
    return isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))
