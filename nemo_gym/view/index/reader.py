"""Reads an index while it grows, and keeps the columns that were requested in memory.

Every read is of one generation, within which rows are added but never change. A column is loaded when it is first
needed for sorting, grouping or plotting; later, only new rows are added to it. A value is a number, text or missing:
numbers are floats with NaN for what is missing, strings are numbered.
"""

import queue
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nemo_gym.filters.sql import Sql
from nemo_gym.metrics.table import Floats, Ints
from nemo_gym.view.index.tables import ColumnFacts, connect_index, read_state, transaction
from nemo_gym.view.index.writer import read_columns

Codes = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ColumnValues:
    """A column: a number per row (NaN: none), and text per row as an index into the vocabulary (-1: none)."""

    numbers: Floats
    codes: Codes | None  # None: there is no text at all
    vocabulary: list[str]

    def take(self, places: NDArray[np.int64]) -> "ColumnValues":
        return ColumnValues(self.numbers[places], None if self.codes is None else self.codes[places], self.vocabulary)

    @classmethod
    def missing(cls, rows: int) -> "ColumnValues":
        return cls(np.full(rows, np.nan), None, [])

    @classmethod
    def constant(cls, rows: int, text: str) -> "ColumnValues":
        return cls(np.full(rows, np.nan), np.zeros(rows, np.int32), [text])


@dataclass
class _Growing:
    numbers: Floats = field(default_factory=lambda: np.zeros(0))
    codes: Codes | None = None
    numbered: dict[str, int] = field(default_factory=dict)
    vocabulary: list[str] = field(default_factory=list)

    def add(self, values: list[Any]) -> None:
        texts = str in set(map(type, values))
        numbers = [None if type(value) is str else value for value in values] if texts else values
        before = len(self.numbers)
        self.numbers = np.concatenate([self.numbers, np.array(numbers, np.float64)])
        if texts or self.codes is not None:
            old = np.full(before, -1, np.int32) if self.codes is None else self.codes
            number = self.numbered.setdefault
            codes = [number(value, len(self.numbered)) if type(value) is str else -1 for value in values]
            self.codes = np.concatenate([old, np.array(codes, np.int32)])

    def upto(self, rows: int) -> ColumnValues:
        if len(self.vocabulary) < len(self.numbered):
            self.vocabulary = list(self.numbered)
        codes = None if self.codes is None else self.codes[:rows]
        return ColumnValues(self.numbers[:rows], codes, self.vocabulary)


class ColumnCache:
    """The columns of one file and generation that have been needed so far."""

    def __init__(self, load: Callable[[str, range], list[Any]]) -> None:
        self._load = load
        self._columns: dict[str, _Growing] = {}
        self._lock = Lock()

    def get(self, name: str, rows: int) -> ColumnValues:
        with self._lock:
            column = self._columns.setdefault(name, _Growing())
            have = len(column.numbers)
            if have < rows:
                column.add(self._load(name, range(have + 1, rows + 1)))
            return column.upto(rows)


_MOST_IDLE: Final = 4  # connections; each has a cache
_FEW: Final = 500  # question marks in a statement; older versions of SQLite allow 999


class StaleIndexError(Exception):
    """The file was replaced since the snapshot was taken."""


class RolloutPlace(NamedTuple):
    """Where a rollout is in its file."""

    offset: int
    length: int
    line: int


class IndexReader:
    """Reads one index, from any thread."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._idle: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()

    def close(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()

    @contextmanager
    def at(self, generation: int) -> Iterator[sqlite3.Connection]:
        """A view of the index that does not change; ``StaleIndexError`` if it is of another generation."""
        try:
            database = self._idle.get_nowait()
        except queue.Empty:
            database = connect_index(self._place)
        try:
            # A transaction sees the database as it was at its first read, so nothing changes between check and query.
            with transaction(database, "DEFERRED"):
                if read_state(database).generation != generation:
                    raise StaleIndexError
                yield database
        finally:
            if self._idle.qsize() < _MOST_IDLE:
                self._idle.put(database)
            else:
                database.close()

    def columns(self, generation: int) -> list[ColumnFacts]:
        with self.at(generation) as database:
            return read_columns(database)

    def matching(self, generation: int, rows: int, condition: Sql) -> Ints:
        with self.at(generation) as database:
            query = f"SELECT row FROM rollouts WHERE row <= ? AND {condition.text}"  # noqa: S608 - made by to_sql
            return _numbers(database.execute(query, (rows, *condition.values)))

    def containing(self, generation: int, rows: int, match: str) -> Ints:
        with self.at(generation) as database:
            query = "SELECT rowid FROM body WHERE body MATCH ? AND rowid <= ?"
            return _numbers(database.execute(query, (match, rows)))

    def values(self, generation: int, expression: str, table: str, rows: range) -> list[Any]:
        """One column over a range of rows; the expression is ours."""
        with self.at(generation) as database:
            query = f"SELECT {expression} FROM {table} WHERE row >= ? AND row < ? ORDER BY row"  # noqa: S608
            return [value for (value,) in database.execute(query, (rows.start, rows.stop))]

    def rows(self, generation: int, rows: Sequence[int], fields: Sequence[str]) -> dict[int, tuple[Any, ...]]:
        """Some fields of some rows, by row number; the fields are ours."""
        found = {}
        with self.at(generation) as database:
            for start in range(0, len(rows), _FEW):
                some = list(map(int, rows[start : start + _FEW]))
                query = (
                    f"SELECT row, {', '.join(fields)} FROM rollouts JOIN previews USING (row) "  # noqa: S608
                    f"WHERE row IN ({', '.join('?' * len(some))})"
                )
                found.update({row[0]: row[1:] for row in database.execute(query, some)})
        return found

    def place(self, generation: int, row: int) -> RolloutPlace | None:
        with self.at(generation) as database:
            found = database.execute("SELECT offset, length, line FROM rollouts WHERE row = ?", (row,)).fetchone()
        return None if found is None else RolloutPlace(*found)


def _numbers(rows: sqlite3.Cursor) -> Ints:
    return np.fromiter((row for (row,) in rows), np.int64)
