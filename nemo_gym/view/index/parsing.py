"""Parses the bytes of a rollout file into what the index stores for each line, in this process or in others.

Only whole lines are read, from a position on. A last line without its line feed is left alone until it is whole; it
counts as whole if it parses as an object, because no JSON object is the beginning of a longer one. A fingerprint shows
whether a file is still the one that was read before.

Parsing takes most of the time of a first index and holds Python's lock, so ``ReadAhead`` parses the next parts of a
large file in other processes while this one stores the previous ones. The processes end as soon as the file is read;
for the few lines that are appended later, they would not be worth starting.
"""

import gc
import hashlib
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from nemo_gym.filters.columns import fixed_values, own_fields, preview_answer, preview_question
from nemo_gym.filters.syntax import Value
from nemo_gym.io.child_process import end_with_parent
from nemo_gym.io.compressed import LineFile, open_raw_lines, read_span, text_size
from nemo_gym.io.process import usable_cores
from nemo_gym.schemas.call_tokens import RolloutFormatError
from nemo_gym.schemas.record import Record

_LOOK: Final = 1 << 16  # bytes that are searched for a line feed at a time
_PROBE: Final = 4096  # bytes at the beginning and before the position


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Which file it is, up to a position."""

    inode: int
    head: str
    tail: str


def file_fingerprint(file: LineFile, position: int) -> Fingerprint:
    """The fingerprint of a file up to a position."""
    # The inode alone is not enough: it can be used again, and a file can be rewritten in place.
    probe = min(position, _PROBE)
    head, tail = read_span(file, probe, 0), read_span(file, probe, position - probe)
    return Fingerprint(os.fstat(file.fileno()).st_ino, _digest(head), _digest(tail))


def whole_lines(file: LineFile, position: int, budget: int) -> int:
    """How many bytes from the position on are whole lines, about as many as requested; 0 if there is no whole line."""
    size = text_size(file)
    while position < size:
        stop = min(position + budget, size)
        # Backwards, because the last line feed is usually near the end.
        for end in range(stop, position, -_LOOK):
            start = max(position, end - _LOOK)
            place = read_span(file, end - start, start).rfind(b"\n")
            if place >= 0:
                return start + place + 1 - position
        if stop == size:
            return size - position if _is_whole(read_span(file, size - position, position)) else 0
        budget *= 4  # the line is longer than what was searched
    return 0


def _is_whole(tail: bytes) -> bool:
    if not tail.rstrip().endswith(b"}"):
        return False
    try:
        Record.parse(tail)
    except RolloutFormatError:
        return False
    return True


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


_SEPARATOR: Final = 1  # the line feed


class IndexedLine(NamedTuple):
    """What the index stores for a line. Lines are counted from 1 in their span."""

    offset: int
    length: int
    line: int
    content: int | None  # what the task asks, as a number
    fixed: tuple[Value, ...]
    own: dict[str, Value]
    question: str | None
    answer: str | None


class FileSpan(NamedTuple):
    """A part of a file: where, and of which file."""

    position: int
    length: int
    inode: int


class Parsed(NamedTuple):
    """The rollouts of a span."""

    lines: list[IndexedLine]
    unreadable: int
    newlines: int


def parse_span(path: Path, span: FileSpan) -> Parsed | None:
    """Parse whole lines; None if the file was replaced."""
    with open_raw_lines(path) as file:
        if os.fstat(file.fileno()).st_ino != span.inode:
            return None
        block = read_span(file, span.length, span.position)
    if len(block) < span.length:
        return None
    found = list(_parsed(block, span.position))
    lines = [line for line in found if line is not None]
    return Parsed(lines, len(found) - len(lines), block.count(b"\n"))


def _parsed(block: bytes, offset: int) -> Iterator[IndexedLine | None]:
    """The lines that are not blank; None for one that cannot be read."""
    for number, line in enumerate(block.split(b"\n"), 1):
        if line and not line.isspace():
            yield _line(line, offset, number)
        offset += len(line) + _SEPARATOR


def _line(line: bytes, offset: int, number: int) -> IndexedLine | None:
    try:
        record = Record.parse(line)
        fixed = fixed_values(record)
    except RolloutFormatError:
        return None
    question, answer = preview_question(record), preview_answer(record)
    return IndexedLine(offset, len(line), number, record.prompt_number, fixed, own_fields(record), question, answer)


BACKLOG: Final = 96 << 20  # bytes; a smaller file is not worth other processes
_MOST_PROCESSES: Final = 4
_STEPS_AHEAD: Final = 2  # for each process

NextSpan = Callable[[int], FileSpan | None]  # what follows a position


class ReadAhead:
    """Hands out the parsed spans of one file in order."""

    def __init__(self, path: Path, *, backlog: int = BACKLOG) -> None:
        self._path = path
        self._backlog = backlog
        self._processes = min(_MOST_PROCESSES, usable_cores())
        self._pool: ProcessPoolExecutor | None = None
        self._waiting: deque[tuple[FileSpan, Future[Parsed | None]]] = deque()

    def close(self) -> None:
        self._waiting.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def parsed(self, span: FileSpan, following: NextSpan, *, left: int) -> Parsed | None:
        """The lines of a span; ``left`` is how much of the file is not indexed yet."""
        if self._pool is None and (left < self._backlog or self._processes < 2):
            return parse_span(self._path, span)
        try:
            self._fill(span, following)
            first, future = self._waiting.popleft()
            parsed = future.result() if first == span else None
        except BrokenProcessPool:  # they were killed; parse here from now on
            self._backlog = 1 << 62  # a size that no file reaches
            parsed = None
        if parsed is None or span.length >= left:
            self.close()
        return parsed or parse_span(self._path, span)

    def _fill(self, span: FileSpan, following: NextSpan) -> None:
        """Make sure that enough spans are being parsed, beginning with this one."""
        if self._pool is None:
            context = multiprocessing.get_context("spawn")  # a fork would inherit the locks of our threads
            self._pool = ProcessPoolExecutor(
                self._processes, mp_context=context, initializer=_prepare_process, initargs=(os.getpid(),)
            )
        if self._waiting and self._waiting[0][0] != span:  # the file was replaced, or another viewer went on with it
            self._waiting.clear()
        last = self._waiting[-1][0] if self._waiting else None
        upcoming = span if last is None else following(last.position + last.length)
        while upcoming is not None:
            self._waiting.append((upcoming, self._pool.submit(partial(parse_span, self._path), upcoming)))
            if len(self._waiting) >= self._processes * _STEPS_AHEAD:
                break
            upcoming = following(upcoming.position + upcoming.length)


def _prepare_process(viewer: int) -> None:
    """Leave Ctrl-C to the viewer, which ends its processes, and end if the viewer is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()  # records have no cycles, and the process does not live long
    end_with_parent(parent=viewer)
