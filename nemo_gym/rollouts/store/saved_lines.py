"""The lines of a run's files: how the plan and the rollouts are written, read again, and repaired.

    {"_ng_task_index":12, … ,"_ng_rollout_index":3}

The task index comes first and the rollout index last, so the key of a line can be read without parsing what lies
between, however long that is. A line that was cut off lacks its end (at least the line feed), a line glued to the
remains of another has two beginnings, a hole that a power failure left is full of zero bytes: whenever a line does not
look exactly as it was written, it is parsed, and only what parses has a key. The order of keys means nothing to any
other reader.

Bytes that are not a line of the file (a torn tail, a line that can't be read, a duplicate rollout) are moved to
a ``.torn`` file beside it, where a person can look at them. They are never thrown away and never silently skipped.
"""

import glob
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from nemo_gym.errors import ConfigError
from nemo_gym.io.compressed import is_framed, open_lines, open_raw_lines, read_span, text_size
from nemo_gym.io.files import replacing, storage_errors, torn_path
from nemo_gym.io.json import encode
from nemo_gym.io.zstd_frames import FrameReader, framed
from nemo_gym.schemas.call_tokens import RolloutFormatError
from nemo_gym.schemas.record import Record
from nemo_gym.schemas.rows import ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME, RolloutKey

_HEAD = f'{{"{TASK_INDEX_KEY_NAME}":'.encode()
_TAIL = f',"{ROLLOUT_INDEX_KEY_NAME}":'.encode()
_FIRST = re.compile(re.escape(_HEAD) + rb"(\d{1,18}),")
_LAST = re.compile(re.escape(_TAIL) + rb"(\d{1,9})\}\n\Z")
_TAIL_BYTES = len(_TAIL) + 11


def encode_keyed(key: RolloutKey, fields: Mapping[str, Any]) -> bytes:
    """The line for a record, without its end; the key replaces whatever the fields say about it."""
    record = {TASK_INDEX_KEY_NAME: key.task, **fields}
    record[TASK_INDEX_KEY_NAME] = key.task
    record.pop(ROLLOUT_INDEX_KEY_NAME, None)
    record[ROLLOUT_INDEX_KEY_NAME] = key.rollout
    return encode(record)


def key_in_line(line: bytes) -> RolloutKey | None:
    """The key of a line; None if the line is not a row with a key."""
    first, last = _FIRST.match(line), _LAST.search(line, max(0, len(line) - _TAIL_BYTES))
    if first and last and line.rfind(_HEAD) == 0 and b"\0" not in line:
        return RolloutKey(int(first[1]), int(last[1]))
    try:
        return Record.parse(line).key
    except RolloutFormatError:
        return None


class OnConflict(StrEnum):
    """What to do about two different rollouts with the same key."""

    ERROR = "error"
    FIRST = "first"
    LAST = "last"
    REPEAT = "repeat"  # both count: those of a later file are further repeats of the task


class LinePlace(NamedTuple):
    """A line of a file."""

    path: Path
    line: int

    def __str__(self) -> str:
        return f"{self.path} line {self.line}"


def expand_globs(patterns: str) -> list[str]:
    """The files that comma-separated patterns match: in the order of the patterns, sorted within each, none twice."""
    parts = filter(None, (part.strip() for part in patterns.split(",")))
    matches = (path for part in parts for path in sorted(glob.glob(part)))  # noqa: PTH207 - strings in, strings out
    return list(dict.fromkeys(matches))


def unreadable(lines: Sequence[tuple[LinePlace, str]]) -> ConfigError:
    """The error about lines that can't be read, each with the reason."""
    (place, reason), more = lines[0], len(lines) - 1
    return ConfigError(
        f"{place.path}: line {place.line}: {reason}" + (f" (and {more} more lines)" if more else ""),
        hint="resuming the collection sets aside a line that a crash cut off",
    )


logger = logging.getLogger(__name__)


class StoredLine(NamedTuple):
    """A line and where it is."""

    start: int
    text: bytes  # including the line feed, if there is one
    number: int  # from 1


class StoredSpan(NamedTuple):
    """Bytes that do not belong in a file, and why."""

    start: int
    end: int
    why: str
    line: int = 0  # its number, from 1


def read_lines(path: Path) -> Iterator[StoredLine]:
    """The lines of a file, one at a time."""
    end = 0
    with open_lines(path) as file:
        for number, text in enumerate(file, 1):
            start, end = end, end + len(text)
            yield StoredLine(start, text, number)


def set_aside(path: Path, spans: Sequence[StoredSpan]) -> None:
    """Move the spans, which are in order, out of the file, and make sure that it ends with a whole line."""
    with storage_errors(path, "repair"):
        if spans:
            reasons, first = Counter(span.why for span in spans), {span.why: span.line for span in reversed(spans)}
            counts = ", ".join(f"{count} {why} (from line {first[why]} on)" for why, count in reasons.items())
            logger.warning("%s: set aside %s (kept in %s)", path, counts, torn_path(path).name)
            _keep(path, spans)
            _cut(path, spans)
        _end_last_line(path)


def _keep(path: Path, spans: Iterable[StoredSpan]) -> None:
    with open_raw_lines(path) as source, torn_path(path).open("ab") as aside:
        for span in spans:
            size = span.end - span.start
            if isinstance(source, FrameReader):
                found = source.original(span.start, size)
            else:
                found = read_span(source, size, span.start)
            aside.write(found.rstrip(b"\n") + b"\n")
        # On disk before it is cut out of its file: a crash in between leaves it in both places, never in none.
        aside.flush()
        os.fsync(aside.fileno())


def _cut(path: Path, spans: Sequence[StoredSpan]) -> None:
    with open_raw_lines(path) as source:
        size = text_size(source)
        if len(spans) == 1 and spans[0].end == size:  # by far the usual case, and the file may be large
            cut = source.cut_at(spans[0].start) if isinstance(source, FrameReader) else spans[0].start
            if cut is not None:
                os.truncate(path, cut)
                return
    with replacing(path) as target:
        target.writelines(as_written(path, _without(path, spans)))


def _without(path: Path, spans: Sequence[StoredSpan]) -> Iterator[bytes]:
    left_out = {span.start for span in spans}  # each is a line
    return (line.text for line in read_lines(path) if line.start not in left_out)


def as_written(path: Path, lines: Iterable[bytes]) -> Iterable[bytes]:
    """What is written to a file so that it has these lines, which end with line feeds: frames, if it has frames."""
    return framed(path, lines) if is_framed(path) else lines


def _end_last_line(path: Path) -> None:
    with open_raw_lines(path) as file:
        size = text_size(file)
        is_ended = not size or read_span(file, 1, size - 1) == b"\n"
    if not is_ended:
        with path.open("ab") as file:
            file.writelines(as_written(path, [b"\n"]))
