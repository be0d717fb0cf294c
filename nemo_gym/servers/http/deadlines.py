"""Time limits that share one timer of the event loop.

They are for operations that happen thousands of times a second and hardly ever take too long. ``asyncio.timeout`` sets
and cancels a timer each time, which costs as much as a twentieth of a request. Here all limits of an event loop share
one timer, which looks for those that have passed. A limit is therefore accurate only to half a second; limits that are
too short for that get their own timer. Otherwise the behaviour is that of ``asyncio.timeout``, and tests compare the
two.

Two kinds of time do not count, because nothing could have been done in them: the time that a block waits for its turn
at an endpoint (``not_counted``), and the time that the whole process was stopped. An attempt may wait in other
processes, which remember for how long (``WaitedTimes``). A limit that has passed asks them before it ends anything.
"""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass
from itertools import takewhile
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

TICK_S: Final = 0.5
SHORT_S: Final = 10.0
LEAST_S: Final = 0.001
STOPPED_S: Final = 5.0  # a timer that is this late was not held up by work: the process or the machine was stopped

HEADER: Final = "X-NG-Attempt"  # names the attempt that a request from another process belongs to
_RAW_HEADER: Final = HEADER.lower().encode()
MOST_WAITED: Final = 10_000  # attempts of other processes that are remembered

# The limit on the attempt that the current task belongs to; in another process, the attempt itself.
attempt_deadline: ContextVar["Deadline | AttemptElsewhere | None"] = ContextVar("attempt_deadline", default=None)
# Asks other processes how many seconds an attempt has waited there.
AskWaited: TypeAlias = Callable[[str], Coroutine[Any, Any, float]]


@contextmanager
def not_counted() -> Iterator[None]:
    """A block that waits for its turn; the time does not count against the limit on the attempt."""
    deadline = attempt_deadline.get()
    if deadline is None:
        yield
        return
    deadline.pause()
    try:
        yield
    finally:
        deadline.resume()


class Deadlines:
    """The limits that share a timer."""

    def __init__(self, *, tick_s: float = TICK_S, short_s: float = SHORT_S, stopped_s: float = STOPPED_S) -> None:
        self._stopped_s = stopped_s
        self._tick_s = tick_s
        self._short_s = short_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        # Grouped by length: limits of one length expire in the order in which they began, so late ones come first.
        self._running: dict[float, Alike] = {}
        self._next_look = 0.0

    def within(self, seconds: float | None, ask: AskWaited | None = None) -> "Deadline":
        """A block that raises TimeoutError unless it ends in time; None means no limit.

        ``ask`` is called when the time is over, and the time that was spent waiting elsewhere is given back.
        """
        return Deadline(self, seconds, ask)

    def add(self, deadline: "Deadline", seconds: float) -> "Alike | asyncio.TimerHandle":
        """Start watching a limit; returns those of its length, or its own timer if it needs one."""
        loop = asyncio.get_running_loop()
        deadline.due = due = loop.time() + seconds
        if seconds < self._short_s:
            return loop.call_at(due, self._end_short, loop, deadline, seconds)
        if loop is not self._loop:  # the first call, or the first of another event loop
            self._loop, self._timer, self._running = loop, None, {}
        alike = self._running.get(seconds)
        if alike is None:
            alike = self._running[seconds] = {}
        alike[deadline] = due
        if self._timer is None:
            self._set_timer(loop)
        return alike

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._next_look = loop.time() + self._tick_s
        self._timer = loop.call_later(self._tick_s, self._look, loop)

    def _end_short(self, loop: asyncio.AbstractEventLoop, deadline: "Deadline", seconds: float) -> None:
        if loop.time() - deadline.due < self._stopped_s:
            deadline.expire()
        else:
            deadline.restart(seconds)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        if now - self._next_look >= self._stopped_s:
            self._shift(now - self._next_look)
        for running in self._running.values():
            for deadline, _ in list(takewhile(lambda item: item[1] <= now, running.items())):
                del running[deadline]
                deadline.expire()
        self._running = {seconds: running for seconds, running in self._running.items() if running}
        self._timer = None
        if self._running:
            self._set_timer(loop)

    def _shift(self, seconds: float) -> None:
        """Give back the time in which the process was stopped."""
        for running in self._running.values():
            for deadline in running:
                deadline.due = running[deadline] = running[deadline] + seconds


class Deadline:
    """One limit: a block that is cancelled when its time is over, and then raises TimeoutError."""

    __slots__ = (
        *("_ask", "_asking", "_cancelling", "_deadlines", "_expired", "_left", "_name", "_pauses", "_returned"),
        *("_seconds", "_task", "_watched", "due"),
    )

    def __init__(self, deadlines: Deadlines, seconds: float | None, ask: AskWaited | None = None) -> None:
        self._deadlines = deadlines
        self._seconds = seconds
        self._ask = ask
        self._asking: asyncio.Task[None] | None = None
        self._returned = 0.0  # seconds that were spent waiting elsewhere
        self._name = ""
        self._expired = False
        self._pauses = 0
        self._left = 0.0
        self._watched: Alike | asyncio.TimerHandle | None = None
        self.due = 0.0  # on the clock of the event loop

    @property
    def has_expired(self) -> bool:
        return self._expired

    @property
    def name(self) -> str:
        """What other processes call the attempt that this limits."""
        self._name = self._name or secrets.token_hex(8)
        return self._name

    def pause(self) -> None:
        """Stop the clock, until ``resume`` has been called as often."""
        self._pauses += 1
        if self._pauses == 1 and self._watched is not None:
            self._left = max(self.due - asyncio.get_running_loop().time(), LEAST_S)
            self._unwatch()

    def resume(self) -> None:
        """Let the clock run again."""
        self._pauses -= 1
        if not self._pauses and self._left and not self._expired:
            self.restart(self._left)

    def restart(self, seconds: float) -> None:
        """Expire in so many seconds from now."""
        self._watched = self._deadlines.add(self, seconds)

    def _unwatch(self) -> None:
        if isinstance(self._watched, dict):
            self._watched.pop(self, None)
        elif self._watched is not None:
            self._watched.cancel()
        self._watched = None

    def expire(self) -> None:
        """Cancel the block because its time is over, unless part of it was spent waiting elsewhere."""
        if self._ask is None or not self._name:  # without a name, no other process knows it
            self._expired = True
            self._task.cancel()
        else:  # in a context of its own, because the timer runs in that of some other attempt
            asking = self._give_back(self._ask(self._name))
            self._asking = asyncio.get_running_loop().create_task(asking, context=Context())

    async def _give_back(self, question: Coroutine[Any, Any, float]) -> None:
        waited = await question
        left, self._returned = waited - self._returned, max(waited, self._returned)
        if self._pauses:  # it began to wait here in the meantime
            self._left = max(left, LEAST_S)
        elif left > LEAST_S:
            self.restart(left)
        else:
            self._expired = True
            self._task.cancel()

    def __enter__(self) -> Self:
        if self._seconds is not None:
            task = asyncio.current_task()
            assert task is not None
            self._task = task
            self._cancelling = task.cancelling()
            self.restart(self._seconds)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._seconds is None:
            return
        self._unwatch()
        if self._asking is not None:
            self._asking.cancel()
        self._left = 0.0  # whoever still waits for a turn can't restart it
        # If the task was also cancelled for another reason, it must stay cancelled.
        if self._expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error


Alike = dict[Deadline, float]  # limits of one length, with the time at which each is over


# ---- attempts of other processes -------------------------------------------------------------------------------------
@dataclass(slots=True)
class _Waited:
    seconds: float = 0.0
    since: float = 0.0
    pauses: int = 0


class WaitedTimes:
    """How long attempts of other processes have waited in this one. Only those that waited are remembered."""

    def __init__(self, most: int = MOST_WAITED) -> None:
        self._most = most
        self._attempts: OrderedDict[str, _Waited] = OrderedDict()

    def begin(self, attempt: str) -> None:
        waited = self._attempts.setdefault(attempt, _Waited())
        if not waited.pauses:
            waited.since = monotonic()
        waited.pauses += 1
        if len(self._attempts) > self._most:
            self._attempts.popitem(last=False)

    def end(self, attempt: str) -> None:
        waited = self._attempts.get(attempt)
        if waited is not None and waited.pauses:
            waited.pauses -= 1
            if not waited.pauses:
                waited.seconds += monotonic() - waited.since

    def seconds(self, attempt: str) -> float:
        """The seconds that an attempt has waited so far, including now."""
        waited = self._attempts.get(attempt) or _Waited()
        return waited.seconds + (monotonic() - waited.since if waited.pauses else 0.0)


@dataclass(frozen=True, slots=True)
class AttemptElsewhere:
    """An attempt whose limit is in another process."""

    name: str
    waited: WaitedTimes

    def pause(self) -> None:
        """Note that the attempt waits."""
        self.waited.begin(self.name)

    def resume(self) -> None:
        """Note that it waits no longer."""
        self.waited.end(self.name)


def adopt_attempt(headers: Iterable[tuple[bytes, bytes]], waited: WaitedTimes) -> None:
    """Let what the current task waits for count for the attempt that a request from another process belongs to."""
    for name, value in headers:
        if name == _RAW_HEADER:
            attempt_deadline.set(AttemptElsewhere(value.decode("latin-1"), waited))
