"""Compares an answer with the expected one: as text, as plain numbers, or else symbolically.

The first two are here and done at once. The last one is in ``symbolic``, for processes that can be ended.
"""

import re
from typing import Final, Literal, NamedTuple

from resources_servers.math_answers.extract import MAX_ANSWER
from resources_servers.math_answers.polynomials import parse_polynomial, same_variables
from resources_servers.math_answers.quantities import Quantity, parse_quantity, same_quantity

Method = Literal["text", "number", "collection", "polynomial", "library"]

_WRAPPERS: Final = re.compile(r"\\(?:text|mathrm|textbf|mathbf|mbox|operatorname)\{([^{}]*)\}")
_COLLECTION: Final = re.compile(r"(?P<open>[(\[{]?)(?P<items>[^()\[\]{}]*)(?P<close>[)\]}]?)")
_SPACING: Final = re.compile(r"\\left|\\right|\\!|\\,|\\;|\\:|\\ |\\displaystyle|[\s$*`]")


class Comparison(NamedTuple):
    """Whether the answers are equal, and by which method that was found."""

    equal: bool
    method: Method


def compare_plainly(expected: str, answer: str) -> Comparison | None:
    """Compare without the library; None if that needs more than text and plain numbers."""
    if normalized(expected) == normalized(answer):
        return Comparison(equal=True, method="text")
    left, right = parse_quantity(expected), parse_quantity(answer)
    if left is not None and right is not None:
        return Comparison(equal=same_quantity(left, right), method="number")
    return _compare_collections(_collection(expected), _collection(answer)) or _compare_polynomials(expected, answer)


class Collection(NamedTuple):
    """Plain numbers in an interval, a tuple (both with their brackets) or a set (with braces, or bare)."""

    brackets: str
    items: list[Quantity]


def _collection(text: str) -> Collection | None:
    bare = _SPACING.sub("", text[: MAX_ANSWER + 1]).replace("\\{", "{").replace("\\}", "}")
    match = _COLLECTION.fullmatch(bare)
    if match is None or "," not in match["items"]:
        return None
    items = [parse_quantity(item) for item in match["items"].split(",")]
    brackets = f"{match['open']}{match['close']}".replace("{}", "")
    numbers = [item for item in items if item is not None]
    return Collection(brackets, numbers) if len(numbers) == len(items) else None


def _compare_collections(expected: Collection | None, answer: Collection | None) -> Comparison | None:
    """Brackets decide: a set has no order, and (1, 2] is not [1, 2]. Different kinds are left to the library."""
    if expected is None or answer is None or bool(expected.brackets) != bool(answer.brackets):
        return None
    left, right = expected.items, answer.items
    if not expected.brackets:
        left, right = (sorted(items, key=lambda item: item.value) for items in (left, right))
    same = len(left) == len(right) and all(map(same_quantity, left, right))
    return Comparison(equal=same and expected.brackets == answer.brackets, method="collection")


def _compare_polynomials(expected: str, answer: str) -> Comparison | None:
    left, right = parse_polynomial(expected[: MAX_ANSWER + 1]), parse_polynomial(answer[: MAX_ANSWER + 1])
    if left is None or right is None or not same_variables(left, right):
        return None
    return Comparison(equal=left == right, method="polynomial")


def normalized(text: str) -> str:
    """The text without spacing, dollar signs and text commands; capital letters stay."""
    text = _WRAPPERS.sub(r"\1", text[: MAX_ANSWER + 1])
    text = text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    # The space in a mixed number is the only one that matters.
    text = re.sub(r"(\d)\s+(?=\d)", r"\1_", text)
    return _SPACING.sub("", text).rstrip(".")
