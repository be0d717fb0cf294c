"""Columns in memory, for sorting, grouping and plotting: loaded when first asked for, then only what was added.

A value is a number, a text or missing. Numbers are floats with NaN for what is not there; texts are numbered.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nemo_gym.metrics.table import Floats

Codes = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Values:
    """A column: a number per row (NaN: none), and a text per row as an index into the vocabulary (-1: none)."""

    numbers: Floats
    codes: Codes | None  # None: there is no text at all
    vocabulary: list[str]

    def take(self, places: NDArray[np.int64]) -> "Values":
        """The same for some rows."""
        return Values(self.numbers[places], None if self.codes is None else self.codes[places], self.vocabulary)

    @classmethod
    def missing(cls, rows: int) -> "Values":
        """Nothing but gaps."""
        return cls(np.full(rows, np.nan), None, [])

    @classmethod
    def constant(cls, rows: int, text: str) -> "Values":
        """The same text everywhere."""
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

    def upto(self, rows: int) -> Values:
        if len(self.vocabulary) < len(self.numbered):
            self.vocabulary = list(self.numbered)
        codes = None if self.codes is None else self.codes[:rows]
        return Values(self.numbers[:rows], codes, self.vocabulary)


class ColumnCache:
    """The columns of one source and generation that were asked for so far."""

    def __init__(self, load: Callable[[str, range], list[Any]]) -> None:
        self._load = load
        self._columns: dict[str, _Growing] = {}
        self._lock = Lock()

    def get(self, name: str, rows: int) -> Values:
        """A column over the first rows."""
        with self._lock:
            column = self._columns.setdefault(name, _Growing())
            have = len(column.numbers)
            if have < rows:
                column.add(self._load(name, range(have + 1, rows + 1)))
            return column.upto(rows)
