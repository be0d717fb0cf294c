"""Exact, bounded evaluation of arithmetic expressions.

Expressions have their own small grammar, so they can't be anything but arithmetic: numbers (``1,081``, ``$3.50``,
``.5``), ``+ - * /``, powers (``**`` or ``^``), parentheses, ``%`` (per cent after a value: ``15% of 240``; remainder
between two values: ``17 % 5``), the typographic signs for times, divided by and minus, and the words ``x`` and ``of``
for times. Values are fractions: ``0.1 + 0.2`` is ``0.3``.

Every input ends quickly: length, nesting and the digits of every intermediate value are checked *before* they are
computed. An expression that cannot be evaluated raises ``ExpressionError``, whose text is meant for its author.
"""

import re
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Final, NamedTuple

MAX_LENGTH: Final = 200
MAX_DEPTH: Final = 24
MAX_BITS: Final = 512
SHOWN_DIGITS: Final = 12
SHOWN_DECIMALS: Final = 20

_TOKEN: Final = re.compile(
    r"""\s*(?:
        (?P<number>(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+)
      | (?P<sign>\*\*|[-+*/%()])
      | (?P<word>[^\W\d_]+)
      | (?P<other>\S)
    )""",
    re.VERBOSE,
)
_SPELLINGS: Final = str.maketrans(
    {
        "\N{MULTIPLICATION SIGN}": "*",
        "\N{MIDDLE DOT}": "*",
        "\N{DOT OPERATOR}": "*",
        "\N{DIVISION SIGN}": "/",
        "\N{MINUS SIGN}": "-",
        "\N{EN DASH}": "-",
        "^": "**",
    }
)
_WORDS: Final = {"of": "*", "x": "*", "X": "*"}
_CURRENCY: Final = frozenset("$€£")


class ExpressionError(ValueError):
    """The expression cannot be evaluated; the text says why."""


class Token(NamedTuple):
    """A number or an operator, spelled the standard way."""

    text: str
    is_number: bool


END: Final = Token("", is_number=False)


def evaluate(expression: str) -> Fraction:
    """Compute the exact value of ``expression``."""
    if len(expression) > MAX_LENGTH:
        raise ExpressionError(f"the expression is longer than {MAX_LENGTH} characters")
    tokens = _tokens(expression.strip().removesuffix("="))
    if not tokens:
        raise ExpressionError("the expression is empty")
    return _Parser(tokens).parse()


def format_number(value: Fraction) -> str:
    """Write a number in decimals: exactly if that is short, else rounded to ``SHOWN_DIGITS`` significant digits."""
    twos, rest = _divide_out(value.denominator, 2)
    fives, rest = _divide_out(rest, 5)
    decimals = max(twos, fives)
    with localcontext() as context:
        exact = rest == 1 and decimals <= SHOWN_DECIMALS
        context.prec = MAX_BITS if exact else SHOWN_DIGITS
        text = format(Decimal(value.numerator) / Decimal(value.denominator), "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def _divide_out(number: int, factor: int) -> tuple[int, int]:
    count = 0
    while number % factor == 0:
        number, count = number // factor, count + 1
    return count, number


def _tokens(expression: str) -> list[Token]:
    tokens: list[Token] = []
    for match in _TOKEN.finditer(expression.translate(_SPELLINGS)):
        if number := match["number"]:
            tokens.append(Token(number, is_number=True))
        elif sign := match["sign"] or _WORDS.get(match["word"] or ""):
            tokens.append(Token(sign, is_number=False))
        elif match["other"] not in _CURRENCY:
            unknown = match["word"] or match["other"]
            raise ExpressionError(f"unknown symbol {unknown!r}; use numbers and + - * / ** % ( )")
    return tokens


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise ExpressionError("the number has too many digits")
    return value


def _divide(left: Fraction, right: Fraction) -> Fraction:
    if right == 0:
        raise ExpressionError("division by zero")
    return left / right


def _remainder(left: Fraction, right: Fraction) -> Fraction:
    if right == 0:
        raise ExpressionError("division by zero")
    return left % right


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ExpressionError("the exponent must be a whole number")
    if base == 0 and exponent < 0:
        raise ExpressionError("division by zero")
    # Checked beforehand: 9**9**9 must not be computed to find out that it is too large.
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(exponent) * bits > 2 * MAX_BITS:
        raise ExpressionError("the number has too many digits")
    return Fraction(base ** int(exponent))


_SUMS: Final[dict[str, Callable[[Fraction, Fraction], Fraction]]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
}
_PRODUCTS: Final[dict[str, Callable[[Fraction, Fraction], Fraction]]] = {
    "*": lambda left, right: left * right,
    "/": _divide,
    "%": _remainder,
}


class _Parser:
    """Recursive descent, one method per precedence level; the nesting depth bounds the recursion."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._position = 0
        self._depth = 0

    def parse(self) -> Fraction:
        value = self._sum()
        if self._peek() is not END:
            raise ExpressionError(f"unexpected {self._peek().text!r} after {self._before()!r}")
        return value

    def _peek(self, ahead: int = 0) -> Token:
        index = self._position + ahead
        return self._tokens[index] if index < len(self._tokens) else END

    def _take(self) -> Token:
        token = self._peek()
        self._position += 1
        return token

    def _before(self) -> str:
        return " ".join(token.text for token in self._tokens[: self._position])

    def _sum(self) -> Fraction:
        return self._chain(_SUMS, self._product)

    def _product(self) -> Fraction:
        return self._chain(_PRODUCTS, self._signed)

    def _chain(
        self, operators: dict[str, Callable[[Fraction, Fraction], Fraction]], operand: Callable[[], Fraction]
    ) -> Fraction:
        value = operand()
        while apply := operators.get(self._peek().text):
            self._take()
            value = _bounded(apply(value, operand()))
        return value

    def _signed(self) -> Fraction:
        if self._peek().text not in {"+", "-"}:
            return self._raised()
        negative = self._take().text == "-"
        value = self._nested(self._signed)  # counted as nesting, because a row of signs recurses too
        return -value if negative else value

    def _raised(self) -> Fraction:
        base = self._percent()
        if self._peek().text != "**":
            return base
        self._take()
        return _bounded(_power(base, self._nested(self._signed)))

    def _percent(self) -> Fraction:
        value = self._atom()
        # "15% of 240" is per cent, "17 % 5" is a remainder: what follows decides.
        while self._peek().text == "%" and not self._starts_operand(self._peek(1)):
            self._take()
            value = _bounded(value / 100)
        return value

    def _starts_operand(self, token: Token) -> bool:
        return token.is_number or token.text == "("

    def _atom(self) -> Fraction:
        token = self._take()
        if token.is_number:
            return _bounded(Fraction(token.text.replace(",", "")))
        if token.text != "(":
            found = repr(token.text) if token is not END else "the end"
            raise ExpressionError(f"expected a number, found {found}")
        value = self._nested(self._sum)
        if self._take().text != ")":
            raise ExpressionError("a parenthesis is not closed")
        return value

    def _nested(self, operand: Callable[[], Fraction]) -> Fraction:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ExpressionError(f"the expression is nested deeper than {MAX_DEPTH}")
        value = operand()
        self._depth -= 1
        return value
