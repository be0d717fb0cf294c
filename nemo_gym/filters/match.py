"""Turns a filter into a function that tests one rollout's fields, with the same result as the filter's SQL."""

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from nemo_gym.filters.syntax import All, ColumnRef, Comparison, Constant, Either, Membership, Node, Not, Operand, Value

Fields = Mapping[str, Value]
Test = Callable[[Fields], bool]


def to_test(node: Node) -> Test:
    """A function that tests the fields of a rollout; a missing field counts as null."""
    match node:
        case Comparison(left, sign, right):
            return _comparing(left, right, _COMPARE[sign])
        case Membership(value, choices):
            read = _reader(value)
            return lambda fields: any(equal(read(fields), choice.value) for choice in choices)
        case Not(term):
            test = to_test(term)
            return lambda fields: not test(fields)
        case All(terms):
            tests = [to_test(term) for term in terms]
            return lambda fields: all(test(fields) for test in tests)
        case Either(terms):
            tests = [to_test(term) for term in terms]
            return lambda fields: any(test(fields) for test in tests)


def equal(a: Value, b: Value) -> bool:
    """Whether two values are equal, where true equals 1 and text never equals a number."""
    return a == b


def contains(text: Value, part: Value) -> bool:
    """Whether one text contains another, ignoring the case of ASCII letters."""
    if not isinstance(text, str) or not isinstance(part, str):
        return False
    # lower() of bytes changes ASCII letters only, as lower() of SQLite does.
    return part.encode("utf-8", "replace").lower() in text.encode("utf-8", "replace").lower()


def _comparing(left: Operand, right: Operand, compare: Callable[[Value, Value], bool]) -> Test:
    first, second = _reader(left), _reader(right)
    return lambda fields: compare(first(fields), second(fields))


def _ordering(compare: Callable[[Any, Any], bool]) -> Callable[[Value, Value], bool]:
    def ordered(a: Value, b: Value) -> bool:
        if a is None or b is None or isinstance(a, str) != isinstance(b, str):
            return False
        return compare(a, b)

    return ordered


def _reader(operand: Operand) -> Callable[[Fields], Value]:
    match operand:
        case ColumnRef(name):
            return lambda fields: fields.get(name)
        case Constant(value):
            return lambda _: value


_COMPARE: Final[Mapping[str, Callable[[Value, Value], bool]]] = {
    "==": equal,
    "!=": lambda a, b: not equal(a, b),
    "contains": contains,
    "<": _ordering(operator.lt),
    "<=": _ordering(operator.le),
    ">": _ordering(operator.gt),
    ">=": _ordering(operator.ge),
}
