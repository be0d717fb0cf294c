"""The event loop of all our processes, and a watch for code that blocks it.

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
from pathlib import Path
from types import FrameType
from typing import NamedTuple

logger = logging.getLogger(__name__)

HEARTBEAT_S = 0.1
BLOCKED_S = 1.0


def new_event_loop() -> asyncio.AbstractEventLoop:
    """The fastest event loop that is installed."""
    try:
        loop: asyncio.AbstractEventLoop = import_module("uvloop").new_event_loop()
    except ImportError:  # uvloop does not exist for every platform
        return asyncio.new_event_loop()
    return loop


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
            "%s blocks the event loop: %s at %s:%s has held it for %.1f s, and no other server can reply. "
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
