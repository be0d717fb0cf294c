"""The event loop of all our processes, and time limits that share one of its timers.

``Deadlines`` is for operations that happen thousands of times a second and hardly ever take too long.
``asyncio.timeout`` sets and cancels a timer each time, which costs as much as a tenth of a request. Here all limits of
an event loop share one timer, which looks for those that have passed. A limit is therefore accurate only to half a
second; limits that are too short for that get their own timer. Otherwise the behaviour is that of ``asyncio.timeout``,
and tests compare the two.
"""

import asyncio
from importlib import import_module
from itertools import takewhile
from types import TracebackType
from typing import Final, Self

TICK_S: Final = 0.5
SHORT_S: Final = 10.0


def new_event_loop() -> asyncio.AbstractEventLoop:
    """The fastest event loop that is installed."""
    try:
        loop: asyncio.AbstractEventLoop = import_module("uvloop").new_event_loop()
    except ImportError:  # uvloop does not exist for every platform
        return asyncio.new_event_loop()
    return loop


class Deadlines:
    """The limits that share a timer."""

    def __init__(self, *, tick_s: float = TICK_S, short_s: float = SHORT_S) -> None:
        self._tick_s = tick_s
        self._short_s = short_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        # Grouped by length: limits of one length expire in the order in which they began, so late ones come first.
        self._running: dict[float, Alike] = {}

    def within(self, seconds: float | None) -> "Deadline":
        """A block that raises TimeoutError unless it ends in time; None means no limit."""
        return Deadline(self, seconds)

    def add(self, deadline: "Deadline", seconds: float) -> "Alike | asyncio.TimerHandle":
        """Start watching a limit; returns those of its length, or its own timer if it needs one."""
        loop = asyncio.get_running_loop()
        if seconds < self._short_s:
            return loop.call_later(seconds, deadline.expire)
        if loop is not self._loop:  # the first call, or the first of another event loop
            self._loop, self._timer, self._running = loop, None, {}
        alike = self._running.get(seconds)
        if alike is None:
            alike = self._running[seconds] = {}
        alike[deadline] = loop.time() + seconds
        if self._timer is None:
            self._timer = loop.call_later(self._tick_s, self._look, loop)
        return alike

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for running in self._running.values():
            for deadline, _ in list(takewhile(lambda item: item[1] <= now, running.items())):
                del running[deadline]
                deadline.expire()
        self._running = {seconds: running for seconds, running in self._running.items() if running}
        self._timer = loop.call_later(self._tick_s, self._look, loop) if self._running else None


class Deadline:
    """One limit: a block that is cancelled when its time is over, and then raises TimeoutError."""

    __slots__ = ("_cancelling", "_deadlines", "_expired", "_seconds", "_task", "_watched")

    def __init__(self, deadlines: Deadlines, seconds: float | None) -> None:
        self._deadlines = deadlines
        self._seconds = seconds
        self._expired = False

    def expire(self) -> None:
        """Cancel the block because its time is over."""
        self._expired = True
        self._task.cancel()

    def __enter__(self) -> Self:
        if self._seconds is not None:
            task = asyncio.current_task()
            assert task is not None
            self._task = task
            self._cancelling = task.cancelling()
            self._watched = self._deadlines.add(self, self._seconds)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._seconds is None:
            return
        if isinstance(self._watched, dict):
            self._watched.pop(self, None)
        else:
            self._watched.cancel()
        # If the task was also cancelled for another reason, it must stay cancelled.
        if self._expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error


Alike = dict[Deadline, float]  # limits of one length, with the time at which each is over
