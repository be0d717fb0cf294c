"""Reads an index while it grows. Every read is of one generation: rows never change within it, they only get more."""

import queue
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from nemo_gym.export.filters_sql import Sql
from nemo_gym.metrics.table import Ints
from nemo_gym.view.index_columns import ColumnFacts
from nemo_gym.view.index_store import connect, read_state, transaction
from nemo_gym.view.index_writer import read_columns

_MOST_IDLE: Final = 4  # connections; each has a cache
_FEW: Final = 500  # question marks in a statement


class StaleIndexError(Exception):
    """The file was replaced since; what was asked about is gone."""


class Place(NamedTuple):
    """Where a rollout is in its file."""

    offset: int
    length: int
    line: int


class IndexReader:
    """Answers questions about one index, from any thread."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._idle: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()

    def close(self) -> None:
        """Close what is not in use."""
        with suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()

    @contextmanager
    def at(self, generation: int) -> Iterator[sqlite3.Connection]:
        """A view of the index that does not change; ``StaleIndexError`` if it is of another generation."""
        try:
            database = self._idle.get_nowait()
        except queue.Empty:
            database = connect(self._place)
        try:
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
        """What is known of the columns."""
        with self.at(generation) as database:
            return read_columns(database)

    def matching(self, generation: int, rows: int, condition: Sql) -> Ints:
        """Which of the first rows meet a condition."""
        with self.at(generation) as database:
            query = f"SELECT row FROM rollouts WHERE row <= ? AND {condition.text}"  # noqa: S608 - made by to_sql
            return _numbers(database.execute(query, (rows, *condition.values)))

    def containing(self, generation: int, rows: int, match: str) -> Ints:
        """Which of the first rows have these words."""
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

    def place(self, generation: int, row: int) -> Place | None:
        """Where a rollout is."""
        with self.at(generation) as database:
            found = database.execute("SELECT offset, length, line FROM rollouts WHERE row = ?", (row,)).fetchone()
        return None if found is None else Place(*found)


def _numbers(rows: sqlite3.Cursor) -> Ints:
    return np.fromiter((row for (row,) in rows), np.int64)
