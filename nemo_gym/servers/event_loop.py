"""The event loop of all our processes, and a watch for code that blocks it.

In one process, a handler that computes or sleeps without awaiting stops every server. So the loop reports regularly
that it is alive (``watching_lag``). While the reports fail to come, a watching thread looks at where the loop's thread
is. A call that is found there twice has not let go in between, because the loop would have reported first. It warns,
once for each place, about a call that held the loop for long, and about calls that together held it for a large share
of the time. Code is not blamed for the time in which the thread was ready to run but other programs had the processors.
"""

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import NamedTuple

logger = logging.getLogger(__name__)

HEARTBEAT_S = 0.05
LOOK_S = 0.05
BLOCKED_S = 1.0
SHARE = 0.2  # of the time, from which calls of less than a second are worth a warning
WINDOW_S = 10.0


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
    call: FrameType  # the outermost of the server's calls


def find_blocking_code(frame: FrameType | None, folders: Mapping[str, Path]) -> BlockingCode | None:
    """The innermost frame inside a server's folder (or file), or the innermost of all if there is none."""
    # Text, not paths: a stack is deep, and while this thread compares paths the slow loop gets even less done.
    prefixes = [(server, str(code) if code.suffix == ".py" else f"{code}{os.sep}") for server, code in folders.items()]
    innermost, found, outermost = frame, None, frame
    server = None
    while frame is not None:
        owner = next((name for name, prefix in prefixes if frame.f_code.co_filename.startswith(prefix)), None)
        if owner is not None:
            if found is None:
                found, server = frame, owner
            outermost = frame
        frame = frame.f_back
    place = found or innermost
    if place is None or outermost is None:
        return None
    return BlockingCode(server, place.f_code.co_filename, place.f_code.co_qualname, place.f_lineno, outermost)


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
        self._beat = self._seen = time.monotonic()
        self._stop = threading.Event()
        self._named: set[tuple[str, str]] = set()
        self._call: FrameType | None = None  # what held the loop at the last look
        self._held_s = 0.0  # for how long that call has been known to hold it
        self._looked = self._since = time.monotonic()
        self._shares: defaultdict[tuple[str, str], float] = defaultdict(float)  # seconds by place in this window

    def beat(self) -> None:
        """Record that the loop is alive."""
        self._beat = time.monotonic()

    def watch(self) -> None:
        """Run in a thread until stopped."""
        pause = min(LOOK_S, self._blocked_s / 4)
        asleep, used = time.monotonic(), time.process_time()
        while not self._stop.wait(pause):
            late = time.monotonic() - asleep - pause
            if late > self._blocked_s / 2 and time.process_time() - used < late / 2:
                self.beat()  # the whole process was stopped, not just the loop: Ctrl-Z, a suspended machine
            asleep, used = time.monotonic(), time.process_time()
            silence = asleep - self._beat
            if self._beat != self._seen:  # it was alive since the last look
                self._seen, self._call, self._held_s, self._delayed_s = self._beat, None, 0.0, self._delayed()
            if silence < 1.5 * HEARTBEAT_S:
                continue
            if self._delayed() - self._delayed_s < silence / 2:  # else other programs have the processors
                self._examine(asleep)

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()

    def _examine(self, now: float) -> None:
        """Note what holds the loop, and warn about it if it does so for long, or often."""
        blocking = find_blocking_code(sys._current_frames().get(self._thread_id), self._folders)  # noqa: SLF001
        known, self._call = self._call, blocking.call if blocking is not None else None
        since, self._looked = now - self._looked, now
        if now - self._since > WINDOW_S:
            self._since = now
            self._shares.clear()
        if blocking is None or blocking.call is not known:
            self._held_s = 0.0
            return
        place = (blocking.file, blocking.function)
        passed = since if self._held_s else 1.5 * since  # it began somewhere before the first look
        self._held_s += passed
        self._shares[place] += passed
        if place in self._named:
            return
        in_all, window = self._shares[place], now - self._since
        if self._held_s >= self._blocked_s:
            self._warn(blocking, f"has held it for {self._held_s:.1f} s, and no other server can reply")
        elif in_all >= self._blocked_s and in_all >= SHARE * window:
            share = f"{min(in_all / window, 1):.0%} of the last {window:.0f} s"
            self._warn(blocking, f"has held it for {share}, and no other server could reply meanwhile")

    def _warn(self, blocking: BlockingCode, what: str) -> None:
        self._named.add((blocking.file, blocking.function))
        logger.warning(
            "%s blocks the event loop: %s at %s:%s %s. "
            "Await there or use a thread, or set `isolation: process` for this server.",
            *(blocking.server or "code outside any server", blocking.function, blocking.file, blocking.line, what),
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
