"""The syntax tree of the filter language, its meaning for one rollout, and the error that names a mistake's position.

A filter gives the same result as a test of a rollout's fields (``to_test``) and as SQL (``sql``).

filter      ::=  both ("or" both)*
both        ::=  term ("and" term)*
term        ::=  "not" term | "(" filter ")" | comparison
comparison  ::=  value operator value [operator value]           0.2 < reward <= 0.8
              |  value ["not"] "contains" value
              |  value ["not"] "in" "[" literal ("," literal)* "]"
              |  value "is" ["not"] "null"
value       ::=  column | literal
literal     ::=  number | text | "true" | "false" | "null"
operator    ::=  "==" | "!=" | "<" | "<=" | ">" | ">="
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from nemo_gym.errors import ConfigError

Value = str | float | int | bool | None
Operator = Literal["==", "!=", "<", "<=", ">", ">=", "contains"]
Fields = Mapping[str, Value]
Test = Callable[[Fields], bool]

OPERATORS: Final[frozenset[str]] = frozenset({"==", "!=", "<", "<=", ">", ">="})
WORDS: Final = frozenset({"and", "or", "not", "in", "contains", "is", "true", "false", "null"})


class FilterError(ConfigError):
    """A filter can't be parsed; the message says what was expected at which character."""

    def __init__(self, message: str, *, position: int, hint: str | None = None) -> None:
        super().__init__(f"filter: {message} (character {position + 1})", hint=hint)
        self.position = position


@dataclass(frozen=True, slots=True)
class ColumnRef:
    """A field of the rollout, by name."""

    name: str
    position: int = 0


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal."""

    value: Value


Operand = ColumnRef | Constant


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of two values."""

    left: Operand
    operator: Operator
    right: Operand


@dataclass(frozen=True, slots=True)
class Membership:
    """Whether a value is one of several."""

    value: Operand
    choices: tuple[Constant, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """Negation."""

    term: "Node"


@dataclass(frozen=True, slots=True)
class All:
    """Conjunction."""

    terms: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Either:
    """Disjunction."""

    terms: tuple["Node", ...]


Node = Comparison | Membership | Not | All | Either


def columns_in(node: Node) -> list[ColumnRef]:
    """The columns that a filter uses, in order of occurrence."""
    match node:
        case Comparison(left, _, right):
            return [operand for operand in (left, right) if isinstance(operand, ColumnRef)]
        case Membership(value):
            return [value] if isinstance(value, ColumnRef) else []
        case Not(term):
            return columns_in(term)
        case All(terms) | Either(terms):
            return [column for term in terms for column in columns_in(term)]


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
