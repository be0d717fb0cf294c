"""Runs what is owed, many at once, and yields the outcomes in the order in which attempts end.

Attempts start in the order of the plan. At most ``limit`` are in flight; a row is not even read before there is room
for it. A rollout that fails for a reason that may pass is put off and tried again. Nothing is kept once it has been
yielded.

What happens when nothing gets through is decided in ``outage``, and which rollouts are suspected of crashing their
server in ``suspects``. Suspects run alone: last, or first if crashes keep the others from completing.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from dataclasses import replace
from itertools import count
from typing import Any, Final, TypeAlias

from nemo_gym.rollouts.concurrency import Limit
from nemo_gym.rollouts.outage import OutageWatch
from nemo_gym.rollouts.store.outcome import Failed, Outcome, PlannedRollout

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
        self.suspects: deque[PlannedRollout] = deque()

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
        return self.has_only_suspects and not self.suspects

    @property
    def has_only_suspects(self) -> bool:
        """Whether at most suspects are left to start."""
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

    ``limit`` decides how many attempts run at once, ``pause`` how long a rollout waits for its next attempt, and
    ``outage`` when to stop because servers or the model are down; running attempts then get ``drain_s`` to end.
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
        self._alone: asyncio.Task[Outcome] | None = None  # the last suspect that was started
        self._suspects_first = False

    @property
    def in_flight(self) -> int:
        """How many attempts are running now."""
        return len(self._running)

    @property
    def allowed(self) -> int:
        """How many attempts may run now."""
        return self._limit.allowed(asyncio.get_running_loop().time())

    @property
    def notice(self) -> str:
        """What people should know while the run waits; empty if it does not."""
        return self.outage.notice(asyncio.get_running_loop().time())

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
        if self._stop_at is not None or self._alone in self._running:
            return False
        now = loop.time()
        room = self._limit.allowed(now) - len(self._running)
        if (during_outage := self.outage.room(now)) is not None:
            room = min(room, during_outage)
        has_room = not self._run_suspects_first() and self._start_others(loop, now, room)
        their_turn = self._suspects_first or self._backlog.has_only_suspects
        if self._backlog.suspects and their_turn and not self._running and room > 0:
            self._alone = self._begin(self._backlog.suspects.popleft(), loop)
            return False
        return has_room

    def _run_suspects_first(self) -> bool:
        """Whether nothing else may start, because crashes keep others from completing; holds until none is left."""
        self._suspects_first = bool(self._backlog.suspects) and (
            self._suspects_first or self.outage.crashes.is_blocking
        )
        return self._suspects_first

    def _start_others(self, loop: asyncio.AbstractEventLoop, now: float, room: int) -> bool:
        for _ in range(room):
            planned = self._backlog.take(now)
            if planned is None:
                return True
            self._begin(planned, loop)
        return False

    def _begin(self, planned: PlannedRollout, loop: asyncio.AbstractEventLoop) -> asyncio.Task[Outcome]:
        self.outage.started()
        task = loop.create_task(self._attempt(planned))
        self._running.add(task)
        task.add_done_callback(self._settle)
        return task

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
        if outcome.failure.crash:
            outcome = self.outage.crashes.judge(outcome)
        planned, failure = outcome.planned, outcome.failure
        if failure.outside:
            tries = self.outage.tries(outcome, now)
            if tries is None or self._stop_at is not None:
                return replace(outcome, final=True)
            pause = self._pause(replace(planned, attempt=tries), failure.retry_after_s)
            self._try_later(planned, now + pause)
        elif outcome.will_retry:
            self._try_later(planned.again(), now + self._pause(planned, failure.retry_after_s))
        return outcome

    def _try_later(self, planned: PlannedRollout, until: float) -> None:
        if self.outage.crashes.is_suspect(planned.key):
            self._backlog.suspects.append(planned)
        else:
            self._backlog.put_off(planned, until)

    async def _abandon(self) -> None:
        """Cancel what is still running and wait for it to end, but not for code that ignores cancellation."""
        running = list(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=GONE_WITHIN_S)
