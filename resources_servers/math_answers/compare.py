"""Compares an answer with the expected one: as text, as plain numbers, or else symbolically.

The first ones are here and done at once. The last one is in ``symbolic``, for processes that can be ended.
"""

import re
from typing import Final, Literal, NamedTuple

from resources_servers.math_answers.extract import MAX_ANSWER
from resources_servers.math_answers.literals import compare_literals
from resources_servers.math_answers.polynomials import parse_polynomial, same_variables
from resources_servers.math_answers.quantities import Quantity, notation, parse_quantity, same_quantity
from resources_servers.math_answers.units import NO_UNIT, things_in

Method = Literal["text", "literal", "number", "collection", "polynomial", "library"]

_WRAPPERS: Final = re.compile(r"\\(?:text|mathrm|textbf|mathbf|mbox|operatorname)\{([^{}]*)\}")
_COLLECTION: Final = re.compile(r"(?P<open>[(\[{]?)(?P<items>[^()\[\]{}]*)(?P<close>[)\]}]?)")
_DISPLAY_FRACTION: Final = re.compile(r"\\[dt]frac")
_SPACING: Final = re.compile(r"\\left|\\right|\\!|\\,|\\;|\\:|\\ |\\displaystyle|[\s$*`]")

_LETTER: Final = re.compile("[A-Za-z]")
_OPERATION: Final = re.compile(r"[-+*/^()]|\\(?:[dt]?frac|sqrt|cdot|times)")
# Plain numbers in a row, or sums and products of them: no final answer where a number is expected.
_UNFINISHED: Final = re.compile(r"[-+]?\d[\d.,]*(?: ?(?:[-+*\u2212\u00d7\u00b7]|\\times|\\cdot| ) ?[-+]?\d[\d.,]*)+")
# What a question says that wants a number in another form.
_FORM: Final = re.compile(
    r"\b(?:express|write|convert|simplif\w*|simplest|reduce\w*|lowest terms|fraction|mixed number|decimal|percent\w*"
    r"|scientific notation)\b",
    re.IGNORECASE,
)
_SPACES: Final = re.compile(r"(?:\\[,;:! ]|\\q?quad\b|[~\s])+")
MAX_QUESTION: Final = 5_000
_BASED: Final = re.compile(r"(?P<digits>[0-9A-Za-z]{1,200})_(?:(?P<one>\d)|\{(?P<base>\d{1,2})\})")


class Comparison(NamedTuple):
    """Whether the answers are equal, and by which method that was found."""

    equal: bool
    method: Method


def compare_plainly(expected: str, answer: str, question: str = "") -> Comparison | None:
    """Compare without the library; None if that needs more than text and plain numbers."""
    if normalized(expected) == normalized(answer):
        return Comparison(equal=True, method="text")
    literal = compare_literals(expected, answer, question)
    if literal is not None:
        return Comparison(equal=literal, method="literal")
    counted = things_in(question) if _LETTER.search(f"{expected}{answer}") else frozenset()
    left, right = parse_quantity(expected, counted), parse_quantity(answer, counted)
    if left is not None and right is not None:
        return Comparison(equal=same_quantity(left, right), method="number")
    if left is not None and _UNFINISHED.fullmatch(_SPACES.sub(" ", answer).strip(" $")):
        # The library adds numbers that stand beside each other, and calculates what was left to be calculated.
        return Comparison(equal=False, method="number")
    bases = _BASED.fullmatch(normalized(expected)), _BASED.fullmatch(normalized(answer))
    if bases[0] and bases[1]:  # the library ignores bases
        return Comparison(equal=_based(bases[0]) == _based(bases[1]), method="number")
    return _compare_collections(_collection(expected), _collection(answer)) or _compare_polynomials(expected, answer)


def repeats_question(expected: str, answer: str, question: str) -> bool:
    """Whether an answer that equals the expected one is no more than what the question gave: an expression, a unit.

    ``\\sqrt{27}`` does not simplify ``\\sqrt{27}``, ``12`` does not factorise 12, ``6/8`` does not reduce 6/8, and
    ``12 meters`` does not convert 12 meters to centimetres.
    """
    text = normalized(answer)
    if text == normalized(expected) or text not in normalized(question, limit=MAX_QUESTION):
        return False
    wanted, given = parse_quantity(expected), parse_quantity(answer)
    if given is None:
        return _OPERATION.search(answer) is not None
    if wanted is None:
        return _OPERATION.search(expected) is not None and _stands_in(answer, question)
    if NO_UNIT not in {wanted.unit, given.unit} and wanted.unit != given.unit:
        return True
    asks_for_form = _FORM.search(question[:MAX_QUESTION]) is not None
    return asks_for_form and notation(expected) != notation(answer) and _stands_in(answer, question)


def _stands_in(answer: str, question: str) -> bool:
    """Whether a question contains an answer by itself: 12 is not in 312, and not in 12.5."""
    text = _DISPLAY_FRACTION.sub(r"\\frac", question[:MAX_QUESTION])
    forms = "|".join(re.escape(form) for form in (answer.strip(" $"), normalized(answer)))
    return re.search(rf"(?<![\w.,])(?:{forms})(?![\w%]|[.,/]\d)", text) is not None


def _based(match: re.Match[str]) -> int | str:
    """The value of digits in a base, or the text if they are not digits of that base."""
    try:
        return int(match["digits"], int(match["one"] or match["base"]))
    except ValueError:
        return match[0]


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


def normalized(text: str, *, limit: int = MAX_ANSWER) -> str:
    """The text without spacing, dollar signs and text commands; capital letters stay."""
    text = _WRAPPERS.sub(r"\1", text[: limit + 1])
    text = _DISPLAY_FRACTION.sub(r"\\frac", text)
    # The space in a mixed number is the only one that matters.
    text = re.sub(r"(\d)\s+(?=\d)", r"\1_", text)
    return _SPACING.sub("", text).rstrip(".")
