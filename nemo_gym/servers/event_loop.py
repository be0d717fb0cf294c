"""The event loop of all our processes, time limits that share one of its timers, and a watch for code that blocks it.

``Deadlines`` is for operations that happen thousands of times a second and hardly ever take too long.
``asyncio.timeout`` sets and cancels a timer each time, which costs as much as a tenth of a request. Here all limits of
an event loop share one timer, which looks for those that have passed. A limit is therefore accurate only to half a
second; limits that are too short for that get their own timer. Otherwise the behaviour is that of ``asyncio.timeout``,
and tests compare the two.

In one process, a handler that computes or sleeps without awaiting stops every server. So the loop reports regularly
that it is alive (``watching_lag``). If the reports stop, a watching thread looks at where the loop's thread is, and
warns once for each place. Code is not blamed for the time in which the thread was ready to run, but other programs had
the processors.
"""

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, NamedTuple, Self

logger = logging.getLogger(__name__)

TICK_S: Final = 0.5
SHORT_S: Final = 10.0
HEARTBEAT_S = 0.1
BLOCKED_S = 1.0


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


class BlockingCode(NamedTuple):
    """The code that blocks the loop."""

    server: str | None
    file: str
    function: str
    line: int | None  # None if the interpreter does not know it


def find_blocking_code(frame: FrameType | None, folders: Mapping[str, Path]) -> BlockingCode | None:
    """The innermost frame inside a server's folder, or the innermost of all if there is none."""
    # Text, not paths: a stack is deep, and while this thread compares paths the slow loop gets even less done.
    prefixes = [(server, f"{folder}{os.sep}") for server, folder in folders.items()]
    innermost = frame
    while frame is not None:
        file = frame.f_code.co_filename
        for server, prefix in prefixes:
            if file.startswith(prefix):
                return BlockingCode(server, file, frame.f_code.co_qualname, frame.f_lineno)
        frame = frame.f_back
    if innermost is None:
        return None
    return BlockingCode(None, innermost.f_code.co_filename, innermost.f_code.co_qualname, innermost.f_lineno)


def waited_for_processor(native_thread_id: int) -> float:
    """How long a thread of this process has been ready to run without a processor, in seconds; 0 where unknown."""
    try:
        return int(Path(f"/proc/self/task/{native_thread_id}/schedstat").read_text().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0


class LagWatch:
    """Watches one event loop from a thread. ``delayed`` tells how long the loop's thread has waited for a processor."""

    def __init__(
        self, folders: Mapping[str, Path], *, blocked_s: float = BLOCKED_S, delayed: Callable[[], float] | None = None
    ) -> None:
        self._folders = folders
        self._blocked_s = blocked_s
        self._delayed = delayed or partial(waited_for_processor, threading.get_native_id())
        self._delayed_s = self._delayed()  # while the loop was last alive
        self._thread_id = threading.get_ident()
        self._beat = time.monotonic()
        self._stop = threading.Event()
        self._named: set[tuple[str, str]] = set()
        self._suspect: tuple[str, str] | None = None  # where the loop was at the last silent check

    def beat(self) -> None:
        """Record that the loop is alive."""
        self._beat = time.monotonic()

    def watch(self) -> None:
        """Run in a thread until stopped."""
        pause = self._blocked_s / 4
        asleep, used = time.monotonic(), time.process_time()
        while not self._stop.wait(pause):
            late = time.monotonic() - asleep - pause
            if late > self._blocked_s / 2 and time.process_time() - used < late / 2:
                self.beat()  # the whole process was stopped, not just the loop: Ctrl-Z, a suspended machine
            asleep, used = time.monotonic(), time.process_time()
            silence = asleep - self._beat
            if silence < self._blocked_s:
                self._suspect = None
                if silence < pause:
                    self._delayed_s = self._delayed()
            elif self._delayed() - self._delayed_s < silence / 2:  # else other programs have the processors
                self._examine(silence)

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()

    def _examine(self, silence: float) -> None:
        """Warn about code in which the loop is found twice in a row. A loop that is only slow has moved on by then."""
        blocking = find_blocking_code(sys._current_frames().get(self._thread_id), self._folders)  # noqa: SLF001
        place = (blocking.file, blocking.function) if blocking is not None else None
        suspected_before, self._suspect = self._suspect == place, place
        if blocking is None or place is None or place in self._named or not suspected_before:
            return
        self._named.add(place)
        owner = blocking.server or "code outside any server"
        logger.warning(
            "%s blocks the event loop: %s at %s:%s has held it for %.1f s, and no other server can answer. "
            "Await there or use a thread, or set `isolation: process` for this server.",
            owner,
            blocking.function,
            blocking.file,
            blocking.line,
            silence,
        )


@contextlib.asynccontextmanager
async def watching_lag(
    folders: Mapping[str, Path], *, blocked_s: float = BLOCKED_S, delayed: Callable[[], float] | None = None
) -> AsyncIterator[LagWatch]:
    """Watch the running loop while the context lasts."""
    watch = LagWatch(folders, blocked_s=blocked_s, delayed=delayed)
    loop = asyncio.get_running_loop()
    handle: asyncio.TimerHandle

    def heartbeat() -> None:
        nonlocal handle
        watch.beat()
        handle = loop.call_later(HEARTBEAT_S, heartbeat)

    heartbeat()
    thread = threading.Thread(target=watch.watch, name="event-loop lag", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        watch.stop()
        handle.cancel()
        thread.join()
