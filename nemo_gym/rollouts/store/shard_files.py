"""The files that hold the shards of a collection, and what can be said about them without reading their numbers."""

import glob
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from nemo_gym.errors import ConfigError
from nemo_gym.io.json import decode


class OnConflict(StrEnum):
    """What to do about two different rollouts with the same key."""

    ERROR = "error"
    FIRST = "first"
    LAST = "last"
    REPEAT = "repeat"  # both count: those of a later file are further repeats of the task


class ShardPlace(NamedTuple):
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


def parse_line(line: bytes | str, path: str | Path, line_number: int) -> Any:
    """The value on a line; an error names the file and the line."""
    try:
        return decode(line)
    except ValueError as error:
        raise unreadable([(ShardPlace(Path(path), line_number), f"not JSON ({error})")]) from None


def unreadable(lines: Sequence[tuple[ShardPlace, str]]) -> ConfigError:
    """The error about lines that can't be read, each with the reason."""
    (place, reason), more = lines[0], len(lines) - 1
    return ConfigError(
        f"{place.path}: line {place.line}: {reason}" + (f" (and {more} more lines)" if more else ""),
        hint="a line that a crash tore is set aside when its collection is resumed",
    )
