r"""Plain numbers with their units, compared exactly. Everything else is for the library.

``1,081``, ``$36.00``, ``-5``, ``3/4``, ``\frac{3}{4}``, ``2 1/2``, ``1.5e3``, ``50\%``, ``90^\circ`` and ``12 cm`` are
plain numbers.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

MAX_LENGTH: Final = 200
# A decimal with at least this many places may be the rounded form of an exact number.
ROUNDED_PLACES: Final = 6

_NOISE: Final = re.compile(r"\\left|\\right|\\!|\\,|\\;|\\ |~|\{,\}|\\\$|[$€£*`]|\\(?:math)?(?:rm|bf|displaystyle)\b")
_TEXT: Final = re.compile(r"\\(?:text|mathrm|textbf|mathbf|mbox|operatorname)\{([^{}]*)\}")
_FRACTION: Final = re.compile(r"\\[dt]?frac\{(-?\d+)\}\{(\d+)\}|\\[dt]?frac(\d)(\d)")
_NUMBER: Final = re.compile(
    r"(?P<sign>[-+])?\s?(?:(?P<whole>\d+)\s(?P<top>\d+)/(?P<bottom>\d+)"
    r"|(?P<decimal>(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)(?:[eE](?P<exponent>[-+]?\d{1,2}))?(?:/(?P<over>\d+))?)"
    r"\s?(?P<unit>.*)",
    re.DOTALL,
)
_UNIT: Final = re.compile(
    r"(?:%|\\%|°|\^\{?\\circ\}?|[A-Za-zµ]+\.?(?:[ -][A-Za-z]+){0,4}(?:/[A-Za-z]+|\^\{?[23]\}?|[²³])?)?\.?"
)

_UNITS: Final[dict[str, tuple[str, Fraction]]] = {
    name: (dimension, Fraction(factor))
    for dimension, names in {
        "length": {"mm": "1/1000", "cm": "1/100", "m": "1", "km": "1000", "inch": "127/5000", "ft": "381/1250",
                   "yard": "1143/1250", "mile": "201168/125"},
        "mass": {"mg": "1/1000", "g": "1", "kg": "1000", "tonne": "1000000", "pound": "45359237/100000",
                 "ounce": "45359237/1600000"},
        "time": {"ms": "1/1000", "s": "1", "min": "60", "h": "3600", "day": "86400", "week": "604800"},
        "volume": {"ml": "1/1000", "l": "1"},
        "money": {"cent": "1/100", "dollar": "1"},
        "angle": {"degree": "1"},
        "area": {"cm^2": "1/10000", "m^2": "1", "km^2": "1000000"},
    }.items()
    for name, factor in names.items()
}  # fmt: skip
_SYNONYMS: Final = {
    "millimeter": "mm", "millimetre": "mm", "centimeter": "cm", "centimetre": "cm", "meter": "m", "metre": "m",
    "kilometer": "km", "kilometre": "km", "in": "inch", "inches": "inch", "foot": "ft", "feet": "ft", "yd": "yard",
    "mi": "mile", "milligram": "mg", "gram": "g", "kilogram": "kg", "ton": "tonne", "lb": "pound", "lbs": "pound",
    "oz": "ounce", "millisecond": "ms", "second": "s", "sec": "s", "minute": "min", "mins": "min", "hour": "h",
    "hr": "h", "hrs": "h", "milliliter": "ml", "millilitre": "ml", "liter": "l", "litre": "l", "°": "degree",
    "square centimeter": "cm^2", "square meter": "m^2", "square metre": "m^2", "square kilometer": "km^2",
    "cm²": "cm^2", "m²": "m^2", "km²": "km^2",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number, its unit as written (simplified), and how many decimal places it was given with."""

    value: Fraction
    unit: str
    places: int


def parse_quantity(text: str) -> Quantity | None:
    """Read a plain number; None for anything that is more than that."""
    if len(text) > MAX_LENGTH:
        return None
    match = _NUMBER.fullmatch(_simplify(text))
    if match is None or not _UNIT.fullmatch(match["unit"]):
        return None
    value = _value(match)
    decimal = match["decimal"] or ""
    return None if value is None else Quantity(value, _unit(match["unit"]), len(decimal.partition(".")[2]))


def same_quantity(expected: Quantity, answer: Quantity) -> bool:
    """Whether two plain numbers are equal; units that are known on both sides must agree."""
    left, right = expected.value, answer.value
    if "%" in {expected.unit, answer.unit} and expected.unit != answer.unit:
        # 50% may be written as 50 or as 0.5.
        hundredth = left / 100 if expected.unit == "%" else left * 100
        return _close(left, right, answer.places) or _close(hundredth, right, answer.places)
    known = _UNITS.get(expected.unit), _UNITS.get(answer.unit)
    if known[0] and known[1]:
        if known[0][0] != known[1][0]:
            return False
        left, right = left * known[0][1], right * known[1][1]
    return _close(left, right, max(expected.places, answer.places))


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


def _unit(text: str) -> str:
    unit = text.strip().rstrip(".").lower().replace("\\%", "%").replace("^{2}", "^2")
    if "circ" in unit:
        return "degree"
    for name in (unit, unit.removesuffix("s")):
        if name in _UNITS or name in _SYNONYMS:
            return _SYNONYMS.get(name, name)
    return unit
