r"""Plain numbers with their units, compared exactly. Everything else is for the library.

``1,081``, ``$36.00``, ``-5``, ``3/4``, ``\frac{3}{4}``, ``2 1/2``, ``1.5e3``, ``42 million``, ``50\%``, ``90^\circ``
and ``12 cm`` are plain numbers. Words after a number that are no unit are part of the value, as in ``7 PM``.
"""

import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from resources_servers.math_answers.units import DOLLAR, EURO, NO_UNIT, STERLING, Unit, read_multiplier, read_unit

MAX_LENGTH: Final = 200
# A decimal with at least this many places may be the rounded form of an exact number.
ROUNDED_PLACES: Final = 6

_NOISE: Final = re.compile(r"\\left|\\right|\\!|\\,|\\;|\\ |~|\{,\}|\\\$|[$€£*`]|\\(?:math)?(?:rm|bf|displaystyle)\b")
_TEXT: Final = re.compile(r"\\(?:text|mathrm|textbf|mathbf|mbox|operatorname)\{([^{}]*)\}")
_FRACTION: Final = re.compile(r"\\[dt]?frac\{(-?\d+)\}\{(\d+)\}|\\[dt]?frac(\d)(\d)")
_NUMBER: Final = re.compile(
    r"(?P<sign>[-+])?\s?(?:(?P<whole>\d+)\s(?P<top>\d+)/(?P<bottom>\d+)"
    r"|(?P<decimal>(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)(?:[eE](?P<exponent>[-+]?\d{1,2}))?(?:/(?P<over>\d+))?)"
    r"(?P<space>\s?)(?P<unit>.*)",
    re.DOTALL,
)
_WORDS: Final = re.compile(r"[A-Za-z][A-Za-z.,' -]*[A-Za-z]\.?")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number, its unit, words that are part of the value, and how many decimal places the number was given with.

    ``variable`` marks a unit that may as well be a variable: the ``m`` of ``2m``.
    """

    value: Fraction
    unit: Unit
    places: int
    suffix: str = ""
    percent: bool = False
    variable: bool = False


def parse_quantity(text: str, counted: AbstractSet[str] = frozenset()) -> Quantity | None:
    """Read a plain number; None for anything that is more than that. ``counted`` are names of things."""
    if len(text) > MAX_LENGTH:
        return None
    match = _NUMBER.fullmatch(_simplify(text))
    value = _value(match) if match else None
    if match is None or value is None:
        return None
    places = len((match["decimal"] or "").partition(".")[2])
    after = match["unit"].strip().rstrip(".")
    if after in {"%", "\\%", "percent", "per cent"}:
        return Quantity(value, NO_UNIT, places, percent=True)
    times, after = read_multiplier(after)
    value *= times
    unit = read_unit(after, counted)
    if unit is not None:
        attached = len(after) == 1 and after.isalpha() and not match["space"]
        return Quantity(value, _currency(text) if unit == NO_UNIT else unit, places, variable=attached)
    if _WORDS.fullmatch(after) and match["space"]:
        return Quantity(value, NO_UNIT, places, suffix=" ".join(after.lower().replace(".", "").split()))
    return None


def notation(text: str) -> str:
    """How a plain number is written: ``percent``, ``mixed``, ``scientific``, ``/8`` for eighths, or just ``number``."""
    match = _NUMBER.fullmatch(_simplify(text))
    if match is None:
        return "number"
    if "%" in match["unit"] or match["unit"].strip().startswith("per"):
        return "percent"
    if match["whole"]:
        return "mixed"
    return f"/{match['over']}" if match["over"] else "scientific" if match["exponent"] else "number"


def same_quantity(expected: Quantity, answer: Quantity) -> bool:
    """Whether two plain numbers are equal. A unit may be left out; two units must agree, and so must other words."""
    left, right = expected.value, answer.value
    if expected.suffix != answer.suffix:
        return False
    if expected.percent != answer.percent:
        if expected.unit != answer.unit:
            return False
        # 50% may be written as 50 or as 0.5.
        hundredth = left / 100 if expected.percent else left * 100
        return _close(left, right, answer.places) or _close(hundredth, right, answer.places)
    if NO_UNIT in {expected.unit, answer.unit}:
        if (expected.variable or answer.variable) and expected.unit != answer.unit:
            return False
    elif not expected.unit.agrees(answer.unit):
        return False
    else:
        left, right = left * expected.unit.factor, right * answer.unit.factor
    return _close(left, right, max(expected.places, answer.places))


def _currency(text: str) -> Unit:
    """The currency whose sign is in the text; a pair of dollar signs encloses a formula."""
    if "€" in text:
        return EURO
    if "£" in text:
        return STERLING
    return DOLLAR if "\\$" in text or text.count("$") % 2 else NO_UNIT


def _close(left: Fraction, right: Fraction, places: int) -> bool:
    if left == right:
        return True
    return places >= ROUNDED_PLACES and abs(left - right) <= Fraction(1, 2 * 10**places)


def _simplify(text: str) -> str:
    text = _TEXT.sub(r" \1 ", text.replace("\u2212", "-").replace("\u2013", "-"))
    text = _FRACTION.sub(lambda match: f" {match[1] or match[3]}/{match[2] or match[4]}", text)
    return " ".join(_NOISE.sub("", text).split()).rstrip(".").removesuffix("\\")


def _value(match: re.Match[str]) -> Fraction | None:
    sign = -1 if match["sign"] == "-" else 1
    try:
        if match["whole"]:
            return sign * (int(match["whole"]) + Fraction(int(match["top"]), int(match["bottom"])))
        value = Fraction(match["decimal"].replace(",", "").rstrip(".")) * Fraction(10) ** int(match["exponent"] or 0)
        return sign * value / int(match["over"] or 1)
    except ZeroDivisionError:
        return None
