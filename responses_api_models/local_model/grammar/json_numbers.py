"""Grammars for JSON numbers within bounds. Pure.

Everything that a grammar here accepts lies within the bounds; not every number within the bounds is accepted: digits
are limited, and so is what a small model could do with endless ones.
"""

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from responses_api_models.local_model.grammar.gbnf import (
    EMPTY,
    NOTHING,
    Chars,
    Literal,
    Node,
    Ref,
    Repeat,
    chars,
    choice,
    optional,
    sequence,
)

DIGIT: Final = Chars(((ord("0"), ord("9")),))
NONZERO: Final = Chars(((ord("1"), ord("9")),))
MAX_DIGITS: Final = 15
MAX_LISTED: Final = 256
MAX_STEP: Final = 32
FAR: Final = 10**MAX_DIGITS - 1

INTEGER: Final = sequence(optional(Literal("-")), choice(["0", sequence(NONZERO, Repeat(DIGIT, 0, MAX_DIGITS - 1))]))
NUMBER: Final = sequence(
    INTEGER,
    optional(sequence(".", Repeat(DIGIT, 1, MAX_DIGITS))),
    optional(sequence(chars("eE"), optional(chars("+-")), Repeat(DIGIT, 1, 2))),
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The smallest and the largest value, each with or without itself."""

    low: Decimal | None = None
    high: Decimal | None = None
    above_low: bool = False
    below_high: bool = False

    @property
    def free(self) -> bool:
        """True when every number fits."""
        return self.low is None and self.high is None

    def whole(self, scale: int = 1) -> tuple[int | None, int | None]:
        """The first and the last whole number that fit, in units of one ``scale``-th."""
        low = high = None
        if self.low is not None:
            scaled = self.low * scale
            low = math.floor(scaled) + 1 if self.above_low else math.ceil(scaled)
        if self.high is not None:
            scaled = self.high * scale
            high = math.ceil(scaled) - 1 if self.below_high else math.floor(scaled)
        return low, high


def integers(bounds: Bounds) -> Node:
    """Whole numbers within bounds."""
    return INTEGER if bounds.free else _whole_between(*_closed(*bounds.whole()))


def numbers(bounds: Bounds) -> Node:
    """Numbers within bounds, with or without decimals."""
    if bounds.free:
        return NUMBER
    decimals = _decimals(bounds)
    low, high = _closed(*bounds.whole(10**decimals))
    return choice([integers(bounds), _signed(low, high, decimals)])


def multiples(step: int, bounds: Bounds) -> tuple[Node, dict[str, Node]]:
    """Whole multiples of ``step`` within bounds, and the rules that they need."""
    low, high = bounds.whole()
    if step <= MAX_STEP and high is None and low in (None, 0):
        sign = optional(Literal("-")) if low is None else EMPTY
        return sequence(sign, Ref(f"multiple-{step}")), _remainders(step)
    if low is None and high is None:
        low, high = -step * MAX_LISTED // 2, step * MAX_LISTED // 2
    elif high is None:
        assert low is not None
        high = low + step * MAX_LISTED
    elif low is None or high - low > step * MAX_LISTED:
        low = high - step * MAX_LISTED if low is None else low
        high = min(high, low + step * MAX_LISTED)
    first = -(-low // step) * step
    return choice(str(value) for value in range(first, high + 1, step)), {}


def _remainders(step: int) -> dict[str, Node]:
    """Read digits and remember the remainder and how many may follow: what is left at the end must be 0."""

    def state(number: int, left: int) -> Ref:
        return Ref(f"multiple-{step}-{number % step}-{left}")

    rules: dict[str, Node] = {}
    for remainder in range(step):
        for left in range(MAX_DIGITS):
            digits = [sequence(str(d), state(remainder * 10 + d, left - 1)) for d in range(10)] if left else []
            rules[state(remainder, left).name] = choice([*([EMPTY] if remainder == 0 else []), *digits])
    starts = [sequence(str(d), state(d, MAX_DIGITS - 1)) for d in range(1, 10)]
    return {**rules, f"multiple-{step}": choice(["0", *starts])}


def _decimals(bounds: Bounds) -> int:
    """Enough places for about a hundred different values."""
    if bounds.low is None or bounds.high is None:
        return 2
    width = bounds.high - bounds.low
    return 2 if width >= 1 or width <= 0 else min(2 - width.adjusted(), 30)


def _closed(low: int | None, high: int | None) -> tuple[int, int]:
    """Bounds on both sides; a missing one is set far away from the other."""
    if low is None:
        assert high is not None
        low = min(-FAR, high * 10 if high < 0 else -FAR)
    if high is None:
        high = max(FAR, low * 10)
    return low, high


def _whole_between(low: int, high: int) -> Node:
    return _signed(low, high, decimals=0)


def _signed(low: int, high: int, decimals: int) -> Node:
    """Whole numbers between two others, written with a point before the last ``decimals`` digits."""
    parts = []
    if low < 0 and low <= high:
        parts.append(sequence("-", _natural(max(1, -high), -low, decimals)))
    if high >= 0:
        parts.append(_natural(max(0, low), high, decimals))
    return choice(parts)


def _natural(low: int, high: int, decimals: int) -> Node:
    """The same for numbers without a sign: one alternative for each number of digits."""
    options: list[Node] = []
    width = decimals + 1
    start = low
    while start <= high:
        end = min(high, 10**width - 1)
        if start <= end:
            options.append(_digits(str(start).zfill(width), str(end).zfill(width), decimals))
            start = end + 1
        width += 1
    return choice(options) if options else NOTHING


def _digits(low: str, high: str, decimals: int) -> Node:
    """Digit strings of one length between two others."""
    length = len(low)
    if length == decimals > 0:
        return sequence(".", _digits(low, high, 0))
    if low == "0" * length and high == "9" * length:
        return _any_digits(length, decimals)
    first, last = int(low[0]), int(high[0])
    if first == last:
        return sequence(low[0], _digits(low[1:], high[1:], decimals))
    options = [sequence(low[0], _digits(low[1:], "9" * (length - 1), decimals))]
    if last - first > 1:
        middle = Chars(((ord("0") + first + 1, ord("0") + last - 1),))
        options.append(sequence(middle, _any_digits(length - 1, decimals)))
    options.append(sequence(high[0], _digits("0" * (length - 1), high[1:], decimals)))
    return choice(options)


def _any_digits(length: int, decimals: int) -> Node:
    if not 0 < decimals <= length:
        return Repeat(DIGIT, length, length) if length else EMPTY
    return sequence(Repeat(DIGIT, length - decimals, length - decimals), ".", Repeat(DIGIT, decimals, decimals))
