"""Compares an answer with the expected one: as text, as plain numbers, or else symbolically.

The first two are here and done at once. The last one is in ``symbolic``, for processes that can be ended.
"""

import re
from typing import Final, Literal, NamedTuple

from resources_servers.math_answers.extract import MAX_ANSWER
from resources_servers.math_answers.quantities import parse_quantity, same_quantity

Method = Literal["text", "number", "library"]

_WRAPPERS: Final = re.compile(r"\\(?:text|mathrm|textbf|mathbf|mbox|operatorname)\{([^{}]*)\}")
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
    if left is None or right is None:
        return None
    return Comparison(equal=same_quantity(left, right), method="number")


def normalized(text: str) -> str:
    """The text without spacing, dollar signs and text commands; capital letters stay."""
    text = _WRAPPERS.sub(r"\1", text[: MAX_ANSWER + 1])
    text = text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    # The space in a mixed number is the only one that matters.
    text = re.sub(r"(\d)\s+(?=\d)", r"\1_", text)
    return _SPACING.sub("", text).rstrip(".")
