"""Runs what is owed, many at once, and yields the outcomes in the order in which attempts end.

Attempts start in the order of the plan. At most ``limit`` are in flight; a row is not even read before there is room
for it. A rollout that fails for a reason that may pass is put off and tried again. Nothing is kept once it has been
yielded.

Causes outside the rollouts (an endpoint that is down, a server that went away, a rate limit) are waited out. After one
such failure the rollout is put off and tried again while the others continue. Several in a row, with nothing getting
through in between, are an outage: the run pauses, and now and then a single rollout probes whether the outage is over.
None of this costs a rollout one of its attempts. After ``patience_s`` seconds the run ends; what it did not get to
stays owed.
"""

import asyncio
import heapq
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final, TypeAlias

from nemo_gym.rollouts.concurrency import Limit
from nemo_gym.rollouts.outcome import Failed, Failure, Outcome
from nemo_gym.rollouts.plan import PlannedRollout
from nemo_gym.schemas.rows import FailureClass, RolloutKey

logger = logging.getLogger(__name__)

DEFAULT_PATIENCE_S: Final = 600.0
STREAK: Final = 5  # failures in a row that make an outage,
DIFFERENT: Final = 3  # if that many rollouts are among them: one that always fails is not an outage
FIRST_PROBE_S: Final = 1.0
LONGEST_PROBE_S: Final = 15.0
PROBE_GROWTH: Final = 1.5
# They don't show that something outside is down: one rollout may just be slow, and a worker that dies takes all of its
# rollouts with it.
INCONCLUSIVE: Final = frozenset({FailureClass.TIMEOUT, FailureClass.WORKER_DIED})
MOST_TRIES: Final = 8  # failures of one rollout while others get through, after which it is left for the next run


@dataclass(slots=True)
class _Troubled:
    """A rollout that was hit by outside causes."""

    since: float
    tries: int = 0


@dataclass(slots=True)
class OutageWatch:
    """Decides from the outcomes when to pause, when to probe, and when to give up waiting."""

    patience_s: float = DEFAULT_PATIENCE_S
    reason: str = ""  # of the current outage, or of the one that ended the run
    _streak: int = 0
    _hit: set[RolloutKey] = field(default_factory=set)  # by the failures of the streak
    _first_failure: float = 0.0
    _is_on: bool = False
    _probing: bool = False
    _next_probe: float = 0.0
    _delay: float = FIRST_PROBE_S
    _troubled: dict[RolloutKey, _Troubled] = field(default_factory=dict)

    @property
    def is_on(self) -> bool:
        """Whether the run is paused."""
        return self._is_on

    def room(self, now: float) -> int | None:
        """How many may be started now; None for no limit."""
        if not self._is_on:
            return None
        return 1 if not self._probing and now >= self._next_probe else 0

    def started(self) -> None:
        """A rollout was started; during an outage that is the probe."""
        self._probing = self._is_on

    def is_over(self, now: float) -> bool:
        """Whether the run has waited long enough."""
        return self._is_on and now - self._first_failure >= self.patience_s

    def next_change(self, now: float) -> float | None:
        """When to ask again although nothing has ended."""
        if not self._is_on:
            return None
        end = self._first_failure + self.patience_s
        return end if self._probing or now >= self._next_probe else min(end, self._next_probe)

    def observe(self, outcome: Outcome, now: float) -> None:
        """Learn from an outcome."""
        if isinstance(outcome, Failed) and outcome.failure.kind in INCONCLUSIVE:
            self._probing = False  # if it was the probe, another one takes its place
        elif isinstance(outcome, Failed) and outcome.failure.outside:
            self._hit.add(outcome.planned.key)
            self._on_failure(outcome.failure, now)
        else:
            self._on_success(now)
        if not isinstance(outcome, Failed):
            self._troubled.pop(outcome.planned.key, None)

    def tries(self, outcome: Failed, now: float) -> int | None:
        """How often the rollout has failed for outside causes; None if it is left for the next run."""
        trouble = self._troubled.setdefault(outcome.planned.key, _Troubled(now))
        trouble.tries += not self._is_on  # during an outage every rollout fails, which says nothing about this one
        if trouble.tries >= MOST_TRIES or now - trouble.since >= self.patience_s:
            del self._troubled[outcome.planned.key]
            return None
        return max(trouble.tries, 1)

    def _on_failure(self, failure: Failure, now: float) -> None:
        if not self._streak:
            self._first_failure = now
        self._streak += 1
        if self._is_on:
            # Only the probe's failure counts; others were started before the pause and end late.
            self._delay = min(PROBE_GROWTH * self._delay, LONGEST_PROBE_S) if self._probing else self._delay
        elif self._streak >= STREAK and len(self._hit) >= DIFFERENT:
            self._is_on, self._delay, self.reason = True, FIRST_PROBE_S, f"{failure.kind}: {failure.message}"
            logger.warning(
                "Nothing gets through (%s). The run is paused and tries again for up to %g s (+patience_s=…)",
                self.reason,
                self.patience_s,
            )
        self._probing = False
        self._next_probe = now + max(self._delay, failure.retry_after_s or 0.0)

    def _on_success(self, now: float) -> None:
        if self._is_on:
            logger.warning("The run continues after a pause of %.0f s", now - self._first_failure)
            self._troubled.clear()
        self._streak, self._is_on, self._probing, self.reason = 0, False, False, ""
        self._hit.clear()


DEFAULT_DRAIN_S: Final = 30.0
GONE_WITHIN_S: Final = 2.0  # attempts that were cancelled
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0


class Backlog:
    """Rollouts to start. A retry that is due goes before new ones."""

    def __init__(self, owed: Iterator[PlannedRollout]) -> None:
        self._owed = owed
        self._exhausted = False
        self._waiting: list[tuple[float, int, PlannedRollout]] = []
        self._order = count()  # equal times start in the order in which they were put off

    def take(self, now: float) -> PlannedRollout | None:
        """The next rollout to start, or None if there is none at this time."""
        if self._waiting and self._waiting[0][0] <= now:
            return heapq.heappop(self._waiting)[2]
        if self._exhausted:
            return None
        planned = next(self._owed, None)
        self._exhausted = planned is None
        return planned

    def put_off(self, planned: PlannedRollout, until: float) -> None:
        """Return a rollout to the backlog, to be taken no earlier than ``until``."""
        heapq.heappush(self._waiting, (until, next(self._order), planned))

    @property
    def next_due(self) -> float | None:
        """When the first waiting rollout may start."""
        return self._waiting[0][0] if self._waiting else None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to start; known only once the plan has been read to its end."""
        return self._exhausted and not self._waiting


def pause_before_retry(planned: PlannedRollout, retry_after_s: float | None) -> float:
    """Seconds to wait after a failed attempt: longer each time, but at least as long as the server asks for.

    The wait also depends on the key, so that rollouts that failed together do not come back together: multiples of an
    irrational number spread evenly between 0 and 1.
    """
    pause = min(FIRST_PAUSE_S * 2.0 ** (planned.attempt - 1), LONGEST_PAUSE_S)
    spread = (planned.key.task * 0.618034 + planned.key.rollout * 0.414214) % 1.0
    return max(pause, retry_after_s or 0.0) * (1.0 + spread / 2)


# One attempt of one rollout, wherever it runs. What goes wrong with it is in the outcome; an exception is a bug.
Attempt: TypeAlias = Callable[[PlannedRollout], Coroutine[Any, Any, Outcome]]
Pause: TypeAlias = Callable[[PlannedRollout, float | None], float]  # seconds before the next attempt


class Dispatch:
    """An async stream of outcomes, in batches of those that have ended since the last one.

    Leaving the stream early cancels what is in flight; those rollouts stay owed.
    """

    def __init__(
        self,
        owed: Iterator[PlannedRollout],
        attempt: Attempt,
        *,
        limit: Limit,
        pause: Pause = pause_before_retry,
        outage: OutageWatch | None = None,
        drain_s: float = DEFAULT_DRAIN_S,
    ) -> None:
        self.outage = outage or OutageWatch()
        self.ran_out_of_patience = False
        self._drain_s = drain_s
        self._backlog = Backlog(owed)
        self._attempt = attempt
        self._limit = limit
        self._pause = pause
        self._running: set[asyncio.Task[Outcome]] = set()
        self._ended: list[Outcome] = []
        self._bug: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._stop_at: float | None = None

    @property
    def in_flight(self) -> int:
        """How many attempts are running now."""
        return len(self._running)

    @property
    def allowed(self) -> int:
        """How many attempts may run now."""
        return self._limit.allowed(asyncio.get_running_loop().time())

    def stop(self, *, drain_s: float) -> None:
        """Start nothing more; what is in flight gets this long to end."""
        deadline = asyncio.get_running_loop().time() + drain_s
        self._stop_at = min(deadline, self._stop_at or deadline)
        self._wake()

    def abort(self, error: Exception) -> None:
        """End the stream with an error, after what has already ended was handed out."""
        self._bug = error
        self._wake()

    async def __aiter__(self) -> AsyncGenerator[list[Outcome], None]:
        loop = asyncio.get_running_loop()
        try:
            while not self._is_over(loop.time()):
                if self._stop_at is None and self.outage.is_over(loop.time()):
                    self.ran_out_of_patience = True
                    self.stop(drain_s=self._drain_s)
                    continue
                has_room = self._start_all(loop)
                await self._wait(loop, has_room=has_room)
                if batch := self._collect(loop.time()):
                    yield batch
                if self._bug is not None:
                    raise self._bug
            await self._abandon()
            # Some may have ended on their own between the last look and their cancellation.
            if batch := self._collect(loop.time()):
                yield batch
        finally:
            await self._abandon()

    def _is_over(self, now: float) -> bool:
        if self._stop_at is not None:
            return not self._running or now >= self._stop_at
        return not self._running and self._backlog.is_empty

    def _start_all(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Start as many as there is room for; returns whether room is left."""
        if self._stop_at is not None:
            return False
        now = loop.time()
        room = self._limit.allowed(now) - len(self._running)
        if (during_outage := self.outage.room(now)) is not None:
            room = min(room, during_outage)
        for _ in range(room):
            planned = self._backlog.take(now)
            if planned is None:
                return True
            self.outage.started()
            task = loop.create_task(self._attempt(planned))
            self._running.add(task)
            task.add_done_callback(self._settle)
        return False

    def _settle(self, task: asyncio.Task[Outcome]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            self._bug = task.exception() or self._bug
            if task.exception() is None:
                self._ended.append(task.result())
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self, loop: asyncio.AbstractEventLoop, *, has_room: bool) -> None:
        """Wait until something ended, a retry for which there is room is due, the limit changes, or time is up."""
        if self._ended or (not self._running and self._backlog.is_empty):
            return
        retry = self._backlog.next_due if has_room else None
        now = loop.time()
        moments = (retry, self._limit.next_change(now), self.outage.next_change(now), self._stop_at)
        due = min((moment for moment in moments if moment is not None), default=None)
        # Nothing was awaited since ``_ended`` was looked at, so no wake-up can have been missed.
        self._waiter = loop.create_future()
        timer = loop.call_at(due, self._wake) if due is not None else None
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _collect(self, now: float) -> list[Outcome]:
        """Take what has ended; put off what is worth another attempt."""
        ended, self._ended = self._ended, []
        # What ran until these ended: the load under which they took as long as they did.
        level = len(self._running) + len(ended)
        for outcome in ended:
            self._limit.observe(outcome, in_flight=level, now=now)
            self.outage.observe(outcome, now)
        return [self._put_off(outcome, now) if isinstance(outcome, Failed) else outcome for outcome in ended]

    def _put_off(self, outcome: Failed, now: float) -> Failed:
        """Schedule the next attempt if this run makes one; otherwise mark this one as the last."""
        planned, failure = outcome.planned, outcome.failure
        if failure.outside:
            tries = self.outage.tries(outcome, now)
            if tries is None or self._stop_at is not None:
                return replace(outcome, final=True)
            pause = self._pause(replace(planned, attempt=tries), failure.retry_after_s)
            self._backlog.put_off(planned, now + pause)
        elif outcome.will_retry:
            self._backlog.put_off(planned.again(), now + self._pause(planned, failure.retry_after_s))
        return outcome

    async def _abandon(self) -> None:
        """Cancel what is still running and wait for it to end, but not for code that ignores cancellation."""
        running = list(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=GONE_WITHIN_S)
