"""Lines of a rollout file become what the index stores. Pure but for reading the file; runs in any process."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from nemo_gym.export.filters_fields import fixed_values, own_fields
from nemo_gym.export.filters_syntax import Value
from nemo_gym.export.filters_text import preview_answer, preview_question
from nemo_gym.metrics.lines import parse_line

_SEPARATOR: Final = 1  # the line feed


class Line(NamedTuple):
    """What a line becomes. The line is counted from 1 in its span."""

    offset: int
    length: int
    line: int
    fixed: tuple[Value, ...]
    own: dict[str, Value]
    question: str | None
    answer: str | None


class Span(NamedTuple):
    """A part of a file: where, and of which file."""

    position: int
    length: int
    inode: int


class Parsed(NamedTuple):
    """The rollouts of a span."""

    lines: list[Line]
    unreadable: int
    newlines: int


def parse_span(path: Path, span: Span) -> Parsed | None:
    """Parse whole lines; None if the file is another one by now."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_ino != span.inode:
            return None
        block = os.pread(file.fileno(), span.length, span.position)
    if len(block) < span.length:
        return None
    found = list(_parsed(block, span.position))
    lines = [line for line in found if line is not None]
    return Parsed(lines, len(found) - len(lines), block.count(b"\n"))


def _parsed(block: bytes, offset: int) -> Iterator[Line | None]:
    """The lines that are not blank; None for one that cannot be read."""
    for number, line in enumerate(block.split(b"\n"), 1):
        if line and not line.isspace():
            yield _line(line, offset, number)
        offset += len(line) + _SEPARATOR


def _line(line: bytes, offset: int, number: int) -> Line | None:
    try:
        record = read_object(line)
        fixed = fixed_values(record)
    except ValueError:
        return None
    return Line(offset, len(line), number, fixed, own_fields(record), preview_question(record), preview_answer(record))


def read_object(line: bytes) -> dict[str, Any]:
    """The record of a line; a line that is none is a ``ValueError``."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        record = parse_line(line)
    if type(record) is not dict:
        raise ValueError("not an object")
    return record
