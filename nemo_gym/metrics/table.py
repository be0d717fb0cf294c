"""Scored rollouts as columns: the form in which all statistics are computed.

A table holds numbers only, about nine bytes per rollout and field. Its rows are sorted by task, then rollout, and each
key occurs once. While rollouts arrive, ``ColumnBuffer`` keeps a few thousand values as Python objects and packs them
into arrays.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from nemo_gym.schemas.record import as_float
from nemo_gym.schemas.rows import RolloutKey

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

# From here on a float can't distinguish neighbouring integers.
EXACT_INTEGERS: Final = 2.0**53


@dataclass(frozen=True, slots=True)
class Column:
    """One field over all rows. ``present`` is False where the record had no number; a present value may be NaN."""

    values: Floats
    present: Mask
    integral: bool = False
    exact: Mapping[int, int] = field(default_factory=dict)  # row -> integer that a float cannot hold
    boolean: Mask | None = None  # where the record had true or false, if that is kept
    two_valued: bool = False  # every value was true or false

    @property
    def known(self) -> Mask:
        """Where there is a value to calculate with."""
        return self.present & ~np.isnan(self.values)

    def take(self, rows: Ints) -> "Column":
        """The column for these rows, in this order."""
        exact: dict[int, int] = {}
        if self.exact:
            exact = {new: self.exact[old] for new, old in enumerate(rows.tolist()) if old in self.exact}
        boolean = None if self.boolean is None else self.boolean[rows]
        return Column(self.values[rows], self.present[rows], self.integral, exact, boolean, self.two_valued)

    def plain(self, start: int, stop: int) -> list[Any]:
        """The values of a range of rows as Python numbers, integers where the field has only integers."""
        numbers = self._numbers(start, stop)
        if self.boolean is not None:
            for row in np.flatnonzero(self.boolean[start:stop]).tolist():
                numbers[row] = bool(numbers[row])
        return numbers

    def _numbers(self, start: int, stop: int) -> list[Any]:
        values = self.values[start:stop]
        if not self.integral:
            return list(values.tolist())
        # Larger ones are set to 0 for the conversion, which they would overflow, and taken from ``exact`` afterwards.
        whole = np.where(np.abs(values) < EXACT_INTEGERS, values, 0).astype(np.int64).tolist()
        for row in self.exact:
            if start <= row < stop:
                whole[row - start] = self.exact[row]
        return list(whole)


Columns = Mapping[str, Column]


class RowKeys(NamedTuple):
    """Task and rollout indices, one of each per rollout."""

    task: Ints
    rollout: Ints

    @classmethod
    def of(cls, keys: Iterable[RolloutKey]) -> Self:
        pairs = np.array([*keys], np.int64).reshape(-1, 2)
        return cls(pairs[:, 0], pairs[:, 1])


@dataclass(frozen=True, slots=True)
class RolloutTable:
    """The numbers of a set of rollouts, sorted by key."""

    task: Ints
    rollout: Ints
    top: Columns  # numeric fields of the record itself
    usage: Columns  # numeric fields of response.usage
    transcript: Columns  # counted in response.output
    hidden: Mapping[str, frozenset[int]] = field(
        default_factory=dict
    )  # rows whose usage replaces a field by a non-number
    odd_rewards: Mapping[int, Any] = field(default_factory=dict)  # row -> reward that is not a number, as it was
    masked: RowKeys = field(default_factory=lambda: RowKeys.of(()))  # rollouts that are in no column: not measured

    @classmethod
    def empty(cls) -> "RolloutTable":
        none = np.zeros(0, np.int64)
        return cls(none, none, {}, {}, {})

    def __len__(self) -> int:
        return len(self.task)

    def key_columns(self) -> RowKeys:
        return RowKeys(self.task, self.rollout)

    def take(self, rows: Ints) -> "RolloutTable":
        """The table of these rows, which must be in order."""
        top, usage = ({name: each.take(rows) for name, each in part.items()} for part in (self.top, self.usage))
        return RolloutTable(self.task[rows], self.rollout[rows], top, usage, {})

    def coverage_metrics(self) -> dict[str, int]:
        """How many rollouts and tasks the numbers are about; empty if all of them were measured."""
        if not len(self.masked.task):
            return {}
        measured = set(self.task.tolist())
        return {
            "coverage/measured_rollouts": len(self),
            "coverage/masked_rollouts": len(self.masked.task),
            "coverage/measured_tasks": len(measured),
            "coverage/fully_masked_tasks": len(set(self.masked.task.tolist()) - measured),
        }

    def metrics(self) -> dict[str, Column]:
        """What statistics see: all fields by name, where usage replaces a field of the same name."""
        merged = {name: self._visible(name, column) for name, column in self.top.items()}
        for name, column in self.usage.items():
            merged[name] = _overlay(merged[name], column) if name in merged else column
        return {name: column for name, column in merged.items() if column.present.any()}

    def _visible(self, name: str, column: Column) -> Column:
        rows = self.hidden.get(name)
        if not rows:
            return column
        present = column.present.copy()
        present[list(rows)] = False
        return replace(column, present=present)

    def task_starts(self) -> Ints:
        """The row at which each task begins."""
        if not len(self.task):
            return np.zeros(0, np.int64)
        return np.flatnonzero(np.r_[True, self.task[1:] != self.task[:-1]])

    def keys(self) -> Iterator[RolloutKey]:
        return map(RolloutKey, self.task.tolist(), self.rollout.tolist())


def _overlay(below: Column, above: Column) -> Column:
    values = np.where(above.present, above.values, below.values)
    return Column(values, below.present | above.present, below.integral and above.integral)


def sort_order(task: Ints, rollout: Ints) -> Ints:
    """The order of the keys; a key that occurs twice is a ``ValueError`` that names it."""
    order = np.lexsort((rollout, task))
    first, second = order[:-1], order[1:]
    twice = np.flatnonzero((task[first] == task[second]) & (rollout[first] == rollout[second]))
    if len(twice):
        row = int(first[twice[0]])
        key = (int(task[row]), int(rollout[row]))
        more = f" and {len(twice) - 1} more" if len(twice) > 1 else ""
        raise ValueError(f"two results for the same (task, rollout) {key}{more}")
    return order.astype(np.int64, copy=False)


Value = int | float | None
_BOOLEAN: Final = frozenset({bool, type(None)})


class ColumnBuffer:
    """One growing column. Rows that were packed before its first value count as absent."""

    __slots__ = ("_booleans", "_chunks", "_exact", "_integral", "_keeps_booleans", "_two_valued")

    def __init__(self, *, keeps_booleans: bool = False) -> None:
        self._keeps_booleans = keeps_booleans
        self._booleans: list[tuple[int, Mask]] = []
        self._chunks: list[tuple[int, Floats, Mask]] = []
        self._exact: dict[int, int] = {}
        self._integral = True
        self._two_valued = True

    def pack(self, start: int, values: Sequence[Value]) -> None:
        """Append the values of the rows from ``start`` on."""
        packed = _floats(values)
        present = ~np.isnan(packed)
        for row in np.flatnonzero(~present).tolist():
            present[row] = values[row] is not None  # a NaN in the record counts as present
        if self._integral or self._keeps_booleans:
            kinds = set(map(type, values))
            self._integral = self._integral and float not in kinds
            self._two_valued = self._two_valued and kinds <= _BOOLEAN
            if self._keeps_booleans and bool in kinds:
                self._booleans.append((start, np.array([type(value) is bool for value in values])))
        for row in np.flatnonzero(np.abs(packed) >= EXACT_INTEGERS).tolist():
            value = values[row]
            if isinstance(value, int):
                self._exact[start + row] = value
        self._chunks.append((start, packed, present))

    def column(self, rows: int) -> Column:
        """The whole column over the given number of rows."""
        values, present = np.full(rows, np.nan), np.zeros(rows, np.bool_)
        for start, packed, mask in self._chunks:
            values[start : start + len(packed)] = packed
            present[start : start + len(packed)] = mask
        two_valued = self._integral and self._two_valued
        return Column(values, present, self._integral, self._exact, self._boolean(rows), two_valued)

    def _boolean(self, rows: int) -> Mask | None:
        if not self._booleans:
            return None
        boolean = np.zeros(rows, np.bool_)
        for start, mask in self._booleans:
            boolean[start : start + len(mask)] = mask
        return boolean


def _floats(values: Sequence[Value]) -> Floats:
    try:
        return np.array(values, dtype=np.float64)  # None becomes NaN
    except OverflowError:
        return np.array([None if value is None else as_float(value) for value in values], dtype=np.float64)


def distinct(keys: RowKeys) -> RowKeys:
    """The keys in order, each once."""
    order = np.lexsort((keys.rollout, keys.task))
    task, rollout = keys.task[order], keys.rollout[order]
    first = np.r_[True, (task[1:] != task[:-1]) | (rollout[1:] != rollout[:-1])][: len(task)]
    return RowKeys(task[first], rollout[first])
