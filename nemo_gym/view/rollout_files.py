"""The rollout files that a viewer shows: which ones paths and patterns name, and each of them with its index.

Mistakes in paths are reported before the viewer starts. A file's index has one writer, which keeps it up to date, and
serves queries from any thread.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from nemo_gym.errors import ConfigError
from nemo_gym.filters.columns import FIXED, MARKED, OUTSIDE, PREVIEWS
from nemo_gym.filters.sql import Columns, Sql
from nemo_gym.io.compressed import open_lines, open_raw_lines, read_span
from nemo_gym.io.files import RunFiles, named_files
from nemo_gym.metrics.table import Ints
from nemo_gym.schemas.call_tokens import RolloutFormatError
from nemo_gym.schemas.record import Record
from nemo_gym.view.index.reader import ColumnCache, ColumnValues, IndexReader, RolloutPlace, StaleIndexError
from nemo_gym.view.index.tables import CONTENT, ColumnFacts, State, open_index
from nemo_gym.view.index.writer import IndexWriter

Kind = Literal["rollouts", "failures"]
ROW_BITS: Final = 40  # of a row of a snapshot; the part is in the bits above
# A mark belongs to a rollout, not to a line, and changes while the rows stay as they are.
_MARK_OF_ROW: Final = "(SELECT {} FROM marks WHERE marks.task = rollouts.task AND marks.rollout = rollouts.rollout)"
TASK_CONTENT: Final = "\0content"  # the names of fields never hold a NUL
SORTED_BY: Final = 60  # characters of a preview
_RECENT_S: Final = 60.0
_MOST_FILES: Final = 200  # each is kept open, with its index
_LOOKED_AT: Final = 10  # lines, before a file is refused
_LONGEST: Final = 64 << 20  # bytes of a line that is looked at


def check_files(patterns: Sequence[str], *, waits: bool = False) -> list[Path]:
    """The files that paths and patterns name. Every problem that a user can do something about is an error.

    With ``waits``, files that do not exist yet, or hold nothing yet, are left for later.
    """
    paths = named_files(patterns, "jsonl_fpath", waits=waits)
    if len(paths) > _MOST_FILES:
        raise ConfigError(
            f"{len(paths)} files match, more than {_MOST_FILES}",
            hint="merge them first with ng_aggregate_rollouts, or show fewer",
        )
    for path in paths:
        _check(path, waits=waits)
    return paths


def _check(path: Path, *, waits: bool) -> None:
    try:
        with open_lines(path) as file:
            heads = [line for _ in range(_LOOKED_AT) if (line := file.readline(_LONGEST))]
    except PermissionError:
        raise ConfigError(f"{path}: no permission to read it", hint="ask its owner, or copy it") from None
    if not b"".join(heads).strip():
        if not waits:
            _check_empty(path)
        return
    whole = [line for line in heads if line.strip() and line.endswith(b"\n")]
    reasons = [_reason(line) for line in whole]
    if whole and all(reasons):
        raise ConfigError(
            f"{path}: not a file of JSON lines: {reasons[0]}",
            hint="each line must be one JSON object; a JSON array becomes such a file with: jq -c '.[]'",
        )


def _check_empty(path: Path) -> None:
    files = RunFiles.of(path)
    if not any(beside.is_file() and beside.stat().st_size for beside in (files.plan, files.failures, files.lock)):
        raise ConfigError(f"{path} is empty", hint="start the viewer when the first rollouts are there")


def _reason(line: bytes) -> str | None:
    """Why a line is not a record; None if it is one, or is too long to check."""
    if len(line) >= _LONGEST:
        return None
    try:
        Record.parse(line)
    except RolloutFormatError as error:
        return f"line 1 is {error}"
    return None


def display_names(paths: Sequence[Path]) -> list[str]:
    """Short names that differ from file to file."""
    names = [path.name for path in paths]
    return [name if names.count(name) == 1 else str(path) for name, path in zip(names, paths, strict=True)]


def encode_row(part: int, row: int) -> int:
    """A row of a part as a row of the snapshot: one number, so that a selection is an array."""
    return part << ROW_BITS | row


def decode_row(code: int) -> tuple[int, int]:
    """The part, and the row in it, counted from 1."""
    return code >> ROW_BITS, code & ((1 << ROW_BITS) - 1)


class RolloutFile:
    """A file that grows. ``refresh`` belongs to one thread; everything else may be called from any."""

    def __init__(self, path: Path, *, run: int, kind: Kind, cache: Path) -> None:
        self.path = path
        self.run = run
        self.kind: Kind = kind
        place = open_index(path, cache)
        self._writer = IndexWriter(path, place)
        self.reader = IndexReader(place)
        self._caches: dict[int, ColumnCache] = {}
        self._marks: tuple[str, ColumnCache] | None = None
        self._growth: deque[tuple[float, int]] = deque()
        self.state = self._writer.state
        self.bytes = self.state.position

    def close(self) -> None:
        self._writer.close()
        self.reader.close()

    def refresh(self, *, text: bool = False) -> bool:
        """Index a little more, columns or text; False if there was nothing to do."""
        moved = self._writer.step_text() if text else self._writer.step()
        self.bytes = self._writer.size
        self.state = self._writer.state
        if moved and self.state.position >= self.bytes:
            self._note_growth()
        return moved

    def _note_growth(self) -> None:
        """Note how many rows there are now; rows from before the viewer started do not count as growth."""
        if self._growth and self._growth[-1][1] > self.state.rows:  # the file was replaced
            self._growth.clear()
        self._growth.append((time.monotonic(), self.state.rows))
        while len(self._growth) > 2 and self._growth[1][0] < time.monotonic() - _RECENT_S:
            self._growth.popleft()

    @property
    def rate(self) -> float:
        if len(self._growth) < 2:
            return 0.0
        first, rows = self._growth[0]
        return (self.state.rows - rows) / (time.monotonic() - first)

    def part(self) -> "Part":
        state = self.state
        cache = self._caches.get(state.generation)
        # Columns of an earlier generation describe a file that was replaced.
        if cache is None:
            self._caches = {state.generation: (cache := ColumnCache(partial(self._load, state.generation)))}
        marked = f"{state.generation} {state.marks}"
        if self._marks is None or self._marks[0] != marked:
            self._marks = (marked, ColumnCache(partial(self._load, state.generation)))
        return Part(self, state, cache, self._marks[1], self.reader.columns(state.generation))

    def _load(self, generation: int, name: str, rows: range) -> list[Any]:
        if name in PREVIEWS:
            return self.reader.values(generation, f"substr({name}, 1, {SORTED_BY})", "previews", rows)
        return self.reader.values(generation, name, "rollouts", rows)


@dataclass(frozen=True)
class Part:
    """A file as it was indexed at one moment."""

    source: RolloutFile
    state: State
    cache: ColumnCache
    marks: ColumnCache
    facts: list[ColumnFacts]
    fields: dict[str, str] = field(init=False)  # column -> its name in the database

    def __post_init__(self) -> None:
        fields = {name: name for name in FIXED if name not in OUTSIDE}
        fields |= {fact.name: fact.field for fact in self.facts}
        fields |= {name: _MARK_OF_ROW.format(name) for name in MARKED}
        fields[TASK_CONTENT] = CONTENT
        object.__setattr__(self, "fields", fields)

    def __len__(self) -> int:
        return self.state.rows

    def values(self, name: str) -> ColumnValues:
        column = self.fields.get(name)
        cache = self.marks if name in MARKED else self.cache
        return ColumnValues.missing(len(self)) if column is None else cache.get(column, len(self))

    def sql_columns(self, file: str, names: list[str]) -> Columns:
        return {name: self._sql(name, file) for name in names}

    def _sql(self, name: str, file: str) -> Sql:
        if name == "file":
            return Sql("?", (file,))
        if name in PREVIEWS:
            return Sql(f"(SELECT {name} FROM previews WHERE previews.row = rollouts.row)")  # noqa: S608 - our names
        return Sql(self.fields.get(name, "NULL"))

    def matching(self, condition: Sql) -> Ints:
        return self.source.reader.matching(self.state.generation, len(self), condition)

    def containing(self, match: str) -> Ints:
        return self.source.reader.containing(self.state.generation, len(self), match)

    def rows(self, rows: list[int], names: list[str]) -> dict[int, dict[str, Any]]:
        """Some columns of some rows, as they were in the record."""
        known = [name for name in names if name in self.fields]
        booleans = {fact.name for fact in self.facts if fact.boolean and not fact.number and not fact.text}
        found = self.source.reader.rows(self.state.generation, rows, [self.fields[name] for name in known] or ["row"])
        return {
            row: dict.fromkeys(names)
            | {
                name: bool(value) if name in booleans and value is not None else value
                for name, value in zip(known, values, strict=False)
            }
            for row, values in found.items()
        }

    def place(self, row: int) -> RolloutPlace | None:
        return self.source.reader.place(self.state.generation, row) if 0 < row <= len(self) else None

    def line(self, place: RolloutPlace) -> bytes:
        try:
            with open_raw_lines(self.source.path) as file:
                data = read_span(file, place.length, place.offset)
        except FileNotFoundError:
            raise StaleIndexError from None
        if len(data) < place.length:
            raise StaleIndexError
        return data
