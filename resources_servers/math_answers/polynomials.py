"""Polynomials with whole or fractional coefficients, read and compared exactly without the library.

Only what can be read in one way is read: no division but ``\\frac``, no exponent of several digits without braces, no
decimals, no letters that often stand for a constant or a word. Everything else is left to the library.
"""

import re
from collections import Counter, defaultdict
from fractions import Fraction
from typing import Final

Monomial = tuple[tuple[str, int], ...]
Polynomial = dict[Monomial, Fraction]

MAX_TERMS: Final = 50
_VARIABLE: Final = r"[abcknptxyz](?:\^(?:\d|\{\d{1,3}\}))?"
_TERM: Final = re.compile(
    rf"(?P<sign>[+-])(?:(?P<whole>\d{{1,50}})|\\frac\{{(?P<top>\d{{1,50}})\}}\{{(?P<bottom>\d{{1,50}})\}})?"
    rf"(?P<variables>(?:{_VARIABLE})*)"
)
_ONE_VARIABLE: Final = re.compile(r"(?P<name>[a-z])(?:\^\{?(?P<power>\d+)\}?)?")
_SPACING: Final = re.compile(r"\\left|\\right|\\!|\\,|\\;|\\:|\\ |\\cdot|\\displaystyle|[\s$*]")


def parse_polynomial(text: str) -> Polynomial | None:
    """The coefficients by monomial; None for anything that is not plainly a polynomial with a variable in it."""
    bare = _SPACING.sub("", text).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    if not bare:
        return None
    bare = bare if bare[0] in "+-" else f"+{bare}"
    found: defaultdict[Monomial, Fraction] = defaultdict(Fraction)
    place = 0
    for _ in range(MAX_TERMS):
        term = _TERM.match(bare, place)
        if term is None or term.end() == place + 1 or (term["bottom"] and not int(term["bottom"])):
            return None
        found[_monomial(term["variables"])] += _coefficient(term)
        place = term.end()
        if place == len(bare):
            kept = {monomial: value for monomial, value in found.items() if value}
            return kept if any(kept) else None  # a constant has only the empty monomial, and is read as a number
    return None


def same_variables(left: Polynomial, right: Polynomial) -> bool:
    """Whether two polynomials have the same variables."""
    return _variables(left) == _variables(right)


def _variables(polynomial: Polynomial) -> set[str]:
    return {name for monomial in polynomial for name, _ in monomial}


def _coefficient(term: re.Match[str]) -> Fraction:
    value = Fraction(int(term["top"]), int(term["bottom"])) if term["top"] else Fraction(int(term["whole"] or 1))
    return -value if term["sign"] == "-" else value


def _monomial(text: str) -> Monomial:
    powers = Counter[str]()
    for match in _ONE_VARIABLE.finditer(text):
        powers[match["name"]] += int(match["power"] or 1)
    return tuple(sorted((name, power) for name, power in powers.items() if power))
