"""Parses the next parts of a large file in other processes, while this one stores those before.

Parsing takes most of the time of a first index and holds Python's lock. For what is appended to a file while somebody
looks at it, it is not worth starting a process: then everything is parsed here. Processes are gone as soon as the
file is read.
"""

import gc
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Final

from nemo_gym.view.parsing import Parsed, Span, parse_span

BACKLOG: Final = 96 << 20  # bytes that are worth other processes
_MOST_PROCESSES: Final = 4
_STEPS_AHEAD: Final = 2  # for each process

NextSpan = Callable[[int], Span | None]  # what follows a position


class ReadAhead:
    """Hands out the parsed spans of one file in order."""

    def __init__(self, path: Path, *, backlog: int = BACKLOG) -> None:
        self._path = path
        self._backlog = backlog
        self._processes = min(_MOST_PROCESSES, len(os.sched_getaffinity(0)))
        self._pool: ProcessPoolExecutor | None = None
        self._waiting: deque[tuple[Span, Future[Parsed | None]]] = deque()

    def close(self) -> None:
        """End the processes."""
        self._waiting.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def parsed(self, span: Span, following: NextSpan, *, left: int) -> Parsed | None:
        """The lines of a span; ``left`` is how much of the file is not indexed yet."""
        if self._pool is None and (left < self._backlog or self._processes < 2):
            return parse_span(self._path, span)
        try:
            self._fill(span, following)
            first, future = self._waiting.popleft()
            parsed = future.result() if first == span else None
        except BrokenProcessPool:  # somebody ended them; we can do without
            self._backlog = 1 << 62
            parsed = None
        if parsed is None or span.length >= left:
            self.close()
        return parsed or parse_span(self._path, span)

    def _fill(self, span: Span, following: NextSpan) -> None:
        """See to it that enough spans are being parsed, this one first."""
        if self._pool is None:
            context = multiprocessing.get_context("spawn")  # a fork would inherit the locks of our threads
            self._pool = ProcessPoolExecutor(self._processes, mp_context=context, initializer=_prepare_process)
        if self._waiting and self._waiting[0][0] != span:
            self._waiting.clear()
        last = self._waiting[-1][0] if self._waiting else None
        upcoming = span if last is None else following(last.position + last.length)
        while upcoming is not None:
            self._waiting.append((upcoming, self._pool.submit(partial(parse_span, self._path), upcoming)))
            if len(self._waiting) >= self._processes * _STEPS_AHEAD:
                break
            upcoming = following(upcoming.position + upcoming.length)


def _prepare_process() -> None:
    """Ctrl-C is for the viewer, which ends its processes; if it is killed, they end by themselves."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()  # records have no cycles, and the process does not live long
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
