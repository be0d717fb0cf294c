"""Answers that are no formulas although the library would calculate with them: words, dates, ranges, times of day.

To the library a word is the product of its letters (``east`` = ``seat``), ``2020-12-20`` and ``5-10`` are differences,
and ``10:30`` is a third. An expected answer of such a kind is only equal to one of the same kind with the same parts.
"""

import re
from math import gcd
from typing import Final, NamedTuple

_TEXT: Final = re.compile(r"\\(?:text|mathrm|textbf|mathbf|mbox|operatorname)\{([^{}]*)\}")
_SPACING: Final = re.compile(r"(?:\\[,;:! ]|[$*`~\s])+")
_LETTERS: Final = re.compile(r"[A-Za-z]{3,}")
_DATE: Final = re.compile(r"(\d{1,4})([-/.])(\d{1,2})\2(\d{1,4})")
_RANGE: Final = re.compile(r"(\d+)(?:-|--|\u2013)(\d+)")
_TIME: Final = re.compile(
    r"(?P<hour>[01]?\d|2[0-4])(?::(?P<minute>[0-5]\d))?(?P<half>[ap]\.?m\.?)?(?:o'clock)?", re.IGNORECASE
)


class TimeOfDay(NamedTuple):
    """A time as it was written; ``half`` is "a" or "p", or empty if it was left out."""

    hour: int
    minute: int
    half: str

    def agrees(self, other: "TimeOfDay") -> bool:
        """Whether both are the same time, as far as both say which half of the day they mean."""
        return self[:2] == other[:2] and (self.half == other.half or "" in {self.half, other.half})


def compare_literals(expected: str, answer: str, question: str = "") -> bool | None:
    """Whether an answer is the expected word, date, range or time; None if the expected answer is none of these."""
    wanted, given = _bare(expected), _bare(answer)
    if is_word(wanted) and _LETTERS.fullmatch(given):
        return wanted.casefold() == given.casefold()
    for kind in (_DATE, _RANGE):
        if parts := _numbers(kind, wanted):
            return parts == _numbers(kind, given)
    time = read_time(wanted)
    if time is None or _may_be_ratio(time, wanted, question):
        return None
    other = read_time(given)
    return other is not None and time.agrees(other)


def is_word(text: str) -> bool:
    """Whether letters are a word. A product of variables is written in the order of the alphabet, as ``abc``."""
    return _LETTERS.fullmatch(text) is not None and sorted(text.lower()) != list(text.lower())


def read_time(text: str) -> TimeOfDay | None:
    """A time of day without spaces; None for anything else, a plain number included."""
    match = _TIME.fullmatch(text)
    if match is None or not (match["minute"] or match["half"]):
        return None
    return TimeOfDay(int(match["hour"]), int(match["minute"] or 0), (match["half"] or "")[:1].lower())


def _may_be_ratio(time: TimeOfDay, text: str, question: str) -> bool:
    """Whether something like ``7:15`` may be a ratio, which has no common divisor unless the question gave it so."""
    if time.half or text.startswith("0"):
        return False
    return gcd(time.hour, time.minute) == 1 or re.search(r"\bratios?\b", question, re.IGNORECASE) is not None


def _numbers(kind: re.Pattern[str], text: str) -> list[int] | None:
    match = kind.fullmatch(text)
    return [int(part) for part in match.groups() if part.isdecimal()] if match else None


def _bare(text: str) -> str:
    return _SPACING.sub("", _TEXT.sub(r"\1", text)).rstrip(".")
