"""The syntax tree of the filter language, and the error that names the position of a mistake.

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

from dataclasses import dataclass
from typing import Final, Literal

from nemo_gym.errors import ConfigError

Value = str | float | int | bool | None
Operator = Literal["==", "!=", "<", "<=", ">", ">=", "contains"]

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
