"""Turns a filter into a condition in SQL. What a user wrote becomes parameters, never SQL.

Columns without a declared type store values unchanged, so text and numbers can be distinguished. The condition is
always 0 or 1: a comparison with a missing value is false, not unknown, so that ``not`` does what people expect.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from nemo_gym.filters.syntax import All, ColumnRef, Comparison, Constant, Either, Membership, Node, Not, Operand, Value


@dataclass(frozen=True, slots=True)
class Sql:
    """An expression and the values of its question marks, in order."""

    text: str
    values: tuple[Value, ...] = ()


Columns = Mapping[str, Sql]  # the expression for each column: written by a program, never by a user

_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def to_sql(node: Node, columns: Columns) -> Sql:
    """The condition; every column of the filter must be known."""
    match node:
        case Comparison(left, operator, right):
            return _comparison(_operand(left, columns), operator, _operand(right, columns))
        case Membership(value, choices):
            each = [_equal(_operand(value, columns), _operand(choice, columns)) for choice in choices]
            return _joined(" OR ", each)
        case Not(term):
            inner = to_sql(term, columns)
            return Sql(f"(NOT {inner.text})", inner.values)
        case All(terms):
            return _joined(" AND ", [to_sql(term, columns) for term in terms])
        case Either(terms):
            return _joined(" OR ", [to_sql(term, columns) for term in terms])


def _operand(operand: Operand, columns: Columns) -> Sql:
    match operand:
        case ColumnRef(name):
            return columns[name]
        case Constant(value):
            return Sql("?", (int(value) if isinstance(value, bool) else value,))


def _comparison(left: Sql, operator: str, right: Sql) -> Sql:
    if operator == "==":
        return _equal(left, right)
    if operator == "!=":
        equal = _equal(left, right)
        return Sql(f"(NOT {equal.text})", equal.values)
    if operator == "contains":
        return _filled("(coalesce(typeof({0})='text' AND typeof({1})='text' AND {2}, 0))", left, right, _inside)
    return _ordered(left, operator, right)


def _equal(left: Sql, right: Sql) -> Sql:
    return Sql(f"({left.text} IS {right.text})", left.values + right.values)  # IS: two missing values are equal


def _inside(left: str, right: str) -> str:
    return f"instr(lower({left}), lower({right})) > 0"


def _ordered(left: Sql, sign: str, right: Sql) -> Sql:
    """In SQL any number is less than any text; here a comparison of the two is false."""
    for column, constant, way in ((left, right, sign), (right, left, _MIRRORED[sign])):
        if constant.text == "?" and column.text != "?":
            return _against_constant(column, way, constant)
    same = "(coalesce((typeof({0})='text')=(typeof({1})='text') AND {2}, 0))"
    return _filled(same, left, right, lambda first, second: f"{first} {sign} {second}")


def _against_constant(column: Sql, sign: str, constant: Sql) -> Sql:
    """The same with less work per row: only in one direction can numbers and text be mixed up."""
    is_text, grows = isinstance(constant.values[0], str), sign.startswith(">")
    if is_text == grows:
        return Sql(f"(coalesce({column.text} {sign} ?, 0))", column.values + constant.values)
    kind = ">=" if is_text else "<"  # the empty string sorts after all numbers and before all other text
    text = f"(coalesce({column.text} {sign} ? AND {column.text} {kind} '', 0))"
    return Sql(text, column.values + constant.values + column.values)


def _filled(pattern: str, left: Sql, right: Sql, inner: Callable[[str, str], str]) -> Sql:
    text = pattern.format(left.text, right.text, inner(left.text, right.text))
    return Sql(text, (left.values + right.values) * 2)


def _joined(word: str, conditions: list[Sql]) -> Sql:
    values = tuple(value for condition in conditions for value in condition.values)
    return Sql(f"({word.join(condition.text for condition in conditions)})", values)
