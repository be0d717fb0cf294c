"""Looks through a file of lines and sets aside what does not belong.

Bytes that are not a line of the file (a torn tail, a line that can't be read, a duplicate rollout) are moved to
a ``.torn`` file beside it, where a person can look at them. They are never thrown away and never silently skipped.
"""

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from nemo_gym.io.files import BUFFER_BYTES, replacing, storage_errors, torn_path

logger = logging.getLogger(__name__)


class StoredLine(NamedTuple):
    """A line and where it is."""

    start: int
    text: bytes  # including the line feed, if there is one


class StoredSpan(NamedTuple):
    """Bytes that do not belong in a file, and why."""

    start: int
    end: int
    why: str


def read_lines(path: Path) -> Iterator[StoredLine]:
    """The lines of a file, one at a time."""
    end = 0
    with path.open("rb", buffering=BUFFER_BYTES) as file:
        for text in file:
            start, end = end, end + len(text)
            yield StoredLine(start, text)


def set_aside(path: Path, spans: Sequence[StoredSpan]) -> None:
    """Move the spans, which are in order, out of the file, and make sure that it ends with a whole line."""
    with storage_errors(path, "repair"):
        if spans:
            reasons = Counter(span.why for span in spans)
            counts = ", ".join(f"{count} {why}" for why, count in reasons.items())
            logger.warning("%s: set aside %s (kept in %s)", path, counts, torn_path(path).name)
            _keep(path, spans)
            _cut(path, spans)
        _end_last_line(path)


def _keep(path: Path, spans: Iterable[StoredSpan]) -> None:
    with path.open("rb") as source, torn_path(path).open("ab") as aside:
        for span in spans:
            source.seek(span.start)
            aside.write(source.read(span.end - span.start).rstrip(b"\n") + b"\n")
        # On disk before it is cut out of its file: a crash in between leaves it in both places, never in none.
        aside.flush()
        os.fsync(aside.fileno())


def _cut(path: Path, spans: Sequence[StoredSpan]) -> None:
    size = path.stat().st_size
    if len(spans) == 1 and spans[0].end == size:  # by far the usual case, and the file may be large
        os.truncate(path, spans[0].start)
        return
    with path.open("rb") as source, replacing(path) as target:
        position = 0
        for span in (*spans, StoredSpan(size, size, "end")):
            source.seek(position)
            _copy(source, target, span.start - position)
            position = span.end


def _copy(source: BinaryIO, target: BinaryIO, size: int) -> None:
    while size > 0 and (chunk := source.read(min(size, BUFFER_BYTES))):
        target.write(chunk)
        size -= len(chunk)


def _end_last_line(path: Path) -> None:
    with path.open("r+b") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
