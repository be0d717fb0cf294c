r"""Finds the final number in an answer.

The rule, first match wins:

1. the last ``\boxed{…}``: the last number inside it;
2. the last number said to be the answer (``answer: X``, ``the answer is X``, ``#### X``); after a whole equation
   (``the answer is 3 + 4 = 7``) that is its right-hand side;
3. the last number of the text.

Numbers may carry a sign, a currency sign, thousands commas, decimals, an exponent, a per cent sign or be fractions:
``1,081``, ``$36.00``, ``-5``, ``1.5e3``, ``36%`` (which is 36: a per cent sign is a unit like any other), ``3/4``,
``2 1/2``. ``42 million`` is 42,000,000. They are compared exactly, as fractions. A number of a calculation that was
left to others, such as ``100 + 70``, is no answer.
"""

import re
from fractions import Fraction
from typing import Final

# Answers are short. These limits keep a runaway generation from costing time or building giant integers.
MAX_DIGITS: Final = 40
MAX_TEXT: Final = 20_000

_PLAIN: Final = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
_NUMBER: Final = re.compile(
    rf"""
    (?P<sign>(?<![\w.)%])-)?       # a minus sign, not the dash of "3-5"
    (?:[$€£](?P<inner>-)?)?         # "$-5" as well as "-$5"
    (?<![0-9.^])
    (?:
        (?:(?P<whole>[0-9]+)[ ])?(?P<top>[0-9]+)/(?P<bottom>[0-9]+)(?![0-9/])
      | (?P<plain>{_PLAIN})(?:[eE](?P<exponent>[-+]?[0-9]{{1,2}})(?![\w.]))?
    )
    (?:[ ](?P<times>hundred|thousand|million|billion|trillion|dozen)\b)?
    """,
    re.VERBOSE | re.IGNORECASE,
)
_TIMES: Final = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12,
}  # fmt: skip
# What stands between a number and the next one of a calculation; a hyphen without spaces may be that of "3-5".
_SIGN: Final = (
    r"[ \t]*(?:(?<!\*)\*(?!\*)|[+\u00d7\u00b7\u00f7]|\\times|\\cdot|(?<=[ \t])[-/x](?=[ \t])|(?<=[ \t]))[ \t]*"
)
_CALCULATED_BEFORE: Final = re.compile(rf"[0-9][%)]?{_SIGN}[$€£(]?\Z")
_CALCULATED_AFTER: Final = re.compile(rf"[%)]?(?:\^|{_SIGN}[$€£(]?-?\.?[0-9])")
_BEFORE: Final = 60
_BOXED: Final = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_SAID: Final = re.compile(
    r"""(?:\banswer\b[*_]*(?:\s*(?:is|are|was|equals|[:=])){1,4}|\#{4})  # "answer is", "Answer:", "####"
        (?:\s+(?:about|approximately|exactly))?
        [\s*_`$\\({\[:=]{0,20}                                           # markup around the number
        (?=[-0-9.€£])""",
    re.VERBOSE | re.IGNORECASE,
)
_EQUATION: Final = re.compile(r"(?:[-+*/\u00d7\u00f7x%().,$€£0-9 ]|of)*=\s*(?=[-$€£.0-9])")
_LATEX: Final = (
    (re.compile(r"\\[dt]?frac\s*\{([0-9]+)\}\s*\{([0-9]+)\}"), r"\1/\2"),
    (re.compile(r"\\([$%#&])"), r"\1"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\[,;! ]"), ""),
)
_TYPOGRAPHY: Final = str.maketrans({"\N{MINUS SIGN}": "-", "\u00a0": " ", "\u202f": " "})


def extract_number(text: str) -> Fraction | None:
    """Find the number that ``text`` gives as its answer, if there is one."""
    plain = _plain(text[-MAX_TEXT:])  # the end, where the answer is
    boxes = _BOXED.findall(plain)
    if boxes:
        return _last_number(boxes[-1])
    said = list(_SAID.finditer(plain))
    if said:
        return _first_number(plain, _after_equations(plain, said[-1].end()))
    return _last_number(plain)


def parse_number(text: str) -> Fraction | None:
    """Read text that is one number and nothing else, apart from a unit sign."""
    match = _NUMBER.fullmatch(_plain(text).strip().removesuffix("%"))
    return _value(match) if match else None


def _plain(text: str) -> str:
    for pattern, replacement in _LATEX:
        text = pattern.sub(replacement, text)
    return text.translate(_TYPOGRAPHY)


def _after_equations(text: str, position: int) -> int:
    while match := _EQUATION.match(text, position):
        position = match.end()
    return position


def _first_number(text: str, position: int) -> Fraction | None:
    match = _NUMBER.search(text, position)
    return _value(match) if match else None


def _last_number(text: str) -> Fraction | None:
    last: re.Match[str] | None = None
    for match in _NUMBER.finditer(text):
        last = match
    return _value(last) if last else None


def _value(match: re.Match[str]) -> Fraction | None:
    if sum(character.isdigit() for character in match[0]) > MAX_DIGITS or _is_calculated(match):
        return None
    if match["plain"]:
        value = Fraction(match["plain"].replace(",", "")) * Fraction(10) ** int(match["exponent"] or 0)
    elif int(match["bottom"]) == 0:
        return None
    else:
        value = int(match["whole"] or 0) + Fraction(int(match["top"]), int(match["bottom"]))
    value *= _TIMES[match["times"].lower()] if match["times"] else 1
    return -value if match["sign"] or match["inner"] else value


def _is_calculated(match: re.Match[str]) -> bool:
    """Whether a number is only a part of a sum, a product or a power."""
    before = match.string[max(0, match.start() - _BEFORE) : match.start()]
    after = match.string[match.end() : match.end() + _BEFORE]
    return _CALCULATED_BEFORE.search(before) is not None or _CALCULATED_AFTER.match(after) is not None
