"""Reads a task file: JSON lines, one task each, as a stream.

Nothing is kept: a file of any size needs the memory of one line. Lines beyond the limit are not looked at.
"""

from collections.abc import Iterator
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.jsonl import decode

BUFFER_BYTES = 1 << 20
IDENTITY_BYTES = 16
UTF8_MARK = b"\xef\xbb\xbf"


class Task(NamedTuple):
    """One line of a task file."""

    number: int  # counted from 0, as rows are numbered everywhere else
    identity: bytes  # a digest of the line's text: equal lines are the same task
    fields: dict[str, Any]


def read_tasks(path: Path, limit: int | None = None) -> Iterator[Task]:
    """The tasks of a file, at most ``limit`` of them: none or 0 means all, a negative number means none."""
    last = max(limit, 0) if limit else None
    with path.open("rb", buffering=BUFFER_BYTES) as file:
        if file.read(len(UTF8_MARK)) != UTF8_MARK:
            file.seek(0)
        for number, line in enumerate(islice(file, last)):
            text = line.rstrip(b"\r\n")
            yield Task(number, sha256(text).digest()[:IDENTITY_BYTES], _fields(text, path, number + 1))


def _fields(text: bytes, path: Path, line_number: int) -> dict[str, Any]:
    try:
        fields = decode(text)
    except ValueError as error:
        reason = str(error) if text.strip() else "the line is empty"
        raise _malformed(path, line_number, reason) from None
    if not isinstance(fields, dict):
        raise _malformed(path, line_number, "it is not a JSON object")
    return fields


def _malformed(path: Path, line_number: int, reason: str) -> ConfigError:
    return ConfigError(
        f"{path}: line {line_number} is no task: {reason}",
        hint="each line has to be one JSON object; correct or delete that line",
    )
