"""Grading by field: which values of an expected object are in the answer."""

from collections.abc import Iterator
from typing import Any, NamedTuple


class Field(NamedTuple):
    """One value of the expected answer and the way to it."""

    path: tuple[str | int, ...]
    value: Any

    @property
    def name(self) -> str:
        """The path as people write it."""
        return ".".join(map(str, self.path)) or "(all)"


def fields_of(expected: Any, path: tuple[str | int, ...] = ()) -> Iterator[Field]:
    """Every value that is not itself made of values; an empty list or object is a value."""
    if isinstance(expected, dict) and expected:
        for key, value in expected.items():
            yield from fields_of(value, (*path, key))
    elif isinstance(expected, list) and expected:
        for index, value in enumerate(expected):
            yield from fields_of(value, (*path, index))
    else:
        yield Field(path, expected)


def wrong_fields(answer: Any, fields: list[Field]) -> list[str]:
    """The names of the fields whose value is not the expected one; so is the last of a list that goes on after it."""
    return [
        field.name
        for number, field in enumerate(fields)
        if not same_value(_value_at(answer, field.path), field.value)
        or any(_goes_on(answer, path) for path in _ended(field, fields[number + 1 : number + 2]))
    ]


def _ended(field: Field, following: list[Field]) -> Iterator[tuple[str | int, ...]]:
    """The paths of the last items of all lists that end with a field, given the field after it."""
    for length, part in enumerate(field.path, start=1):
        parents = field.path[: length - 1]
        if isinstance(part, int) and not any(after.path[: length - 1] == parents for after in following):
            yield field.path[:length]


def _goes_on(answer: Any, path: tuple[str | int, ...]) -> bool:
    *parents, last = path
    items = _value_at(answer, tuple(parents))
    return isinstance(items, list) and len(items) > int(last) + 1


def same_value(value: Any, expected: Any) -> bool:
    """Whether two values are the same JSON; spaces around text do not matter, and 1 is not true."""
    if isinstance(expected, str):
        return isinstance(value, str) and value.strip() == expected.strip()
    if isinstance(expected, bool) or expected is None:
        return value is expected
    if isinstance(expected, int | float):
        return isinstance(value, int | float) and not isinstance(value, bool) and value == expected
    return bool(value == expected)


class _Nothing:
    """Differs from every value, null included."""


def _value_at(answer: Any, path: tuple[str | int, ...]) -> Any:
    for part in path:
        if isinstance(part, int):
            if not isinstance(answer, list) or part >= len(answer):
                return _Nothing
            answer = answer[part]
        elif isinstance(answer, dict) and part in answer:
            answer = answer[part]
        else:
            return _Nothing
    return answer
