"""What is known of each column of an index without reading it: its types, its range, its few distinct values.

Kept up to date as rows are added, so that nobody has to look through a million of them for a list of choices.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

import orjson

FEW: Final = 20  # distinct values that are worth a list
_NO_VALUES: Final = frozenset({None, math.inf, -math.inf})  # neither in a range nor in JSON


@dataclass(slots=True)
class ColumnFacts:
    """One column. ``distinct`` is None once there are too many values."""

    name: str
    field: str  # what it is called in the database
    text: bool = False
    number: bool = False
    boolean: bool = False
    low: float | None = None
    high: float | None = None
    distinct: list[Any] | None = None
    known: int = 0  # rows that have a value

    @classmethod
    def new(cls, name: str, field: str) -> Self:
        """A column without values."""
        return cls(name, field, distinct=[])

    @classmethod
    def read(cls, text: str) -> Self:
        """As it was saved."""
        return cls(**orjson.loads(text))

    def saved(self) -> str:
        """To be read again."""
        return orjson.dumps(asdict(self)).decode()

    @property
    def kind(self) -> str:
        """What the page calls it: a column with any text in it is text."""
        return "text" if self.text else "number"

    def add(self, values: Sequence[Any]) -> None:
        """Take note of the values of some rows."""
        kinds = set(map(type, values))
        self.known += len(values) - (values.count(None) if type(None) in kinds else 0)
        self.text |= str in kinds
        self.number |= int in kinds or float in kinds
        self.boolean |= bool in kinds
        seen = set(values) - _NO_VALUES
        numbers = [value for value in seen if type(value) is not str] if str in kinds else list(seen)
        self._widen(numbers)
        if self.distinct is not None:
            self.distinct = few_distinct([*self.distinct, *seen])

    def merge(self, other: "ColumnFacts") -> None:
        """Add what is known of the same column elsewhere."""
        self.text |= other.text
        self.number |= other.number
        self.boolean |= other.boolean
        self.known += other.known
        self._widen([bound for bound in (other.low, other.high) if bound is not None])
        if self.distinct is not None:
            self.distinct = None if other.distinct is None else few_distinct([*self.distinct, *other.distinct])

    def described(self) -> dict[str, Any]:
        """For the page."""
        return {
            "name": self.name,
            "kind": self.kind,
            "boolean": self.boolean and not self.number and not self.text,
            "min": self.low,
            "max": self.high,
            "distinct": self.distinct,
            "known": self.known,
        }

    def _widen(self, numbers: Sequence[float]) -> None:
        if numbers:
            low, high = min(numbers), max(numbers)
            self.low = low if self.low is None else min(low, self.low)
            self.high = high if self.high is None else max(high, self.high)


def few_distinct(values: Iterable[Any]) -> list[Any] | None:
    """The distinct values in order, numbers first; None if there are many."""
    distinct = set(values)
    if len(distinct) > FEW:
        return None
    return sorted(distinct, key=lambda value: (isinstance(value, str), value))
