"""Columns that grow: rows of Python values in, compact arrays out.

Values arrive as None (no number there), bool, int or float. They are kept as Python objects for a few thousand rows at
most, then packed.
"""

from collections.abc import Sequence

import numpy as np

from nemo_gym.metrics.fields import as_float
from nemo_gym.metrics.table import EXACT_INTEGERS, Column, Floats, Mask

Value = int | float | None


class ColumnBuffer:
    """One growing column. Rows that were packed before its first value count as absent."""

    __slots__ = ("_chunks", "_exact", "_integral")

    def __init__(self) -> None:
        self._chunks: list[tuple[int, Floats, Mask]] = []
        self._exact: dict[int, int] = {}
        self._integral = True

    def pack(self, start: int, values: Sequence[Value]) -> None:
        """Append the values of the rows from ``start`` on."""
        packed = _floats(values)
        present = ~np.isnan(packed)
        for row in np.flatnonzero(~present).tolist():
            present[row] = values[row] is not None  # a NaN that was given is present
        if self._integral:
            self._integral = float not in set(map(type, values))
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
        return Column(values, present, self._integral, self._exact)


def _floats(values: Sequence[Value]) -> Floats:
    try:
        return np.array(values, dtype=np.float64)  # None becomes NaN
    except OverflowError:
        return np.array([None if value is None else as_float(value) for value in values], dtype=np.float64)
