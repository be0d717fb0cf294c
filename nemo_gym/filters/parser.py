"""Parses a filter: text to tokens, and tokens to the tree of ``syntax`` by recursive descent.

Filters arrive in URLs that anyone may have written, so their length, depth and number of terms are limited.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal, cast

from nemo_gym.filters.columns import plain_text
from nemo_gym.filters.syntax import (
    OPERATORS,
    WORDS,
    All,
    ColumnRef,
    Comparison,
    Constant,
    Either,
    FilterError,
    Membership,
    Node,
    Not,
    Operand,
    Operator,
    Value,
)

Kind = Literal["word", "name", "literal", "sign", "end"]

_TOKEN: Final = re.compile(
    r"""\s*(?:
        (?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)(?![\w.])
      | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | `(?P<quoted>[^`]+)`
      | (?P<name>[^\W\d]\w*(?:\.\w+)*)
      | (?P<sign>==|!=|<=|>=|<|>|\(|\)|\[|\]|,)
    )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
ESCAPES: Final = {"n": "\n", "t": "\t"}
CONSTANTS: Final[dict[str, Value]] = {"true": True, "false": False, "null": None}
_LARGEST: Final = 2**63  # SQLite's integers have 64 bits
# Operators of other languages, longer ones first, and what to write here instead.
FOREIGN: Final = {"&&": "and", "||": "or", "<>": "!=", "=~": "contains", "=": "==", "!": "not"}
HINTS: Final = {
    "close": "close it with the same character",
    "compare": 'compare it with a value: reward < 0.5, agent == "name", failure is null',
    "known": f"comparisons are {' '.join(sorted(OPERATORS))} contains in is",
    "number": "text needs quotes, unusual names need `backquotes`",
    "quotes": "text needs quotes",
    "value": 'a value is a column, a number, "text", true, false or null',
}


@dataclass(frozen=True, slots=True)
class Token:
    """A token, with the position at which it begins."""

    kind: Kind
    text: str
    position: int
    value: Value = None

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else f"'{self.text}'"


def tokens(text: str) -> list[Token]:
    """All tokens; the last one marks the end."""
    found = []
    place, end = 0, len(text.rstrip())
    while place < end:
        match = _TOKEN.match(text, place)
        if match is None:
            raise _unreadable(text, place)
        found.append(_token(match))
        place = match.end()
    return [*found, Token("end", "", len(text))]


def _token(match: re.Match[str]) -> Token:
    kind = match.lastgroup or ""
    text, position = match[kind], match.start(kind) - (kind == "quoted")  # a name in backquotes begins with one
    match kind:
        case "number":
            return Token("literal", text, position, _number(text))
        case "text":
            content = _ESCAPE.sub(lambda at: ESCAPES.get(at[1], at[1]), text[1:-1])
            return Token("literal", text, position, plain_text(content))
        case "name" if (word := text.lower()) in CONSTANTS:
            return Token("literal", text, position, CONSTANTS[word])
        case "name" if text.lower() in WORDS:
            return Token("word", text.lower(), position)
        case "sign":
            return Token("sign", text, position)
        case _:
            return Token("name", plain_text(text), position)


def _number(text: str) -> int | float:
    try:
        whole = int(text) if len(text) < 20 else float(text)  # longer ones don't fit anyway, and int() of them is slow
    except ValueError:
        return float(text)
    return whole if abs(whole) < _LARGEST else float(whole)


def _unreadable(text: str, place: int) -> FilterError:
    while text[place].isspace():
        place += 1
    if text[place] in "\"'`":
        return FilterError(f"the {text[place]} is never closed", position=place, hint=HINTS["close"])
    for foreign, ours in FOREIGN.items():
        if text.startswith(foreign, place):
            return FilterError(f"'{foreign}' is not an operator here", position=place, hint=f"write {ours}")
    if text[place].isdigit():
        return FilterError("not a number", position=place, hint=HINTS["number"])
    return FilterError(f"unexpected '{text[place]}'", position=place, hint=HINTS["known"])


LONGEST: Final = 4_000  # characters
DEEPEST: Final = 40  # nested parentheses and nots
MOST_TERMS: Final = 300


def parse(text: str) -> Node | None:
    """The tree of a filter; None if it is empty, which matches everything."""
    if len(text) > LONGEST:
        raise FilterError(f"longer than {LONGEST} characters", position=LONGEST)
    return _Parser(tokens(text)).whole() if text.strip() else None


class _Parser:
    def __init__(self, found: list[Token]) -> None:
        self._tokens = found
        self._place = 0
        self._depth = 0
        self._terms = 0

    # ---- the grammar ---------------------------------------------------------------------------------------------

    def whole(self) -> Node:
        node = self._either()
        if self._next.kind != "end":
            raise self._expected("'and', 'or' or the end")
        return node

    def _either(self) -> Node:
        terms = [self._all()]
        while self._took("word", "or"):
            terms.append(self._all())
        return terms[0] if len(terms) == 1 else Either(tuple(terms))

    def _all(self) -> Node:
        terms = [self._term()]
        while self._took("word", "and"):
            terms.append(self._term())
        return terms[0] if len(terms) == 1 else All(tuple(terms))

    def _term(self) -> Node:
        self._depth += 1
        if self._depth > DEEPEST:
            raise FilterError(f"nested more than {DEEPEST} levels deep", position=self._next.position)
        if self._took("word", "not"):
            node: Node = Not(self._term())
        elif self._took("sign", "("):
            node = self._either()
            self._take("sign", ")")
        else:
            node = self._comparison()
        self._depth -= 1
        return node

    def _comparison(self) -> Node:
        self._terms += 1
        if self._terms > MOST_TERMS:
            raise FilterError(f"more than {MOST_TERMS} comparisons", position=self._next.position)
        left = self._operand()
        if self._took("word", "is"):
            return self._null_test(left)
        negated = self._took("word", "not")
        node = self._word_comparison(left)
        if node is None:
            if negated:
                raise self._expected("'in' or 'contains'")
            return self._sign_comparison(left)
        return Not(node) if negated else node

    def _null_test(self, left: Operand) -> Node:
        negated = self._took("word", "not")
        token = self._next
        if token.kind != "literal" or token.value is not None:
            raise self._expected("null")
        self._place += 1
        return Comparison(left, "!=" if negated else "==", Constant(None))

    def _word_comparison(self, left: Operand) -> Node | None:
        if self._took("word", "contains"):
            return Comparison(left, "contains", self._operand())
        if self._took("word", "in"):
            return Membership(left, self._choices())
        return None

    def _sign_comparison(self, left: Operand) -> Node:
        operator = self._operator()
        if operator is None:
            raise self._expected("a comparison", hint=HINTS["compare"])
        middle = self._operand()
        first = Comparison(left, operator, middle)
        second = self._operator()
        return first if second is None else All((first, Comparison(middle, second, self._operand())))

    def _choices(self) -> tuple[Constant, ...]:
        self._take("sign", "[")
        choices = [self._constant()]
        while self._took("sign", ","):
            choices.append(self._constant())
            self._terms += 1
        self._take("sign", "]")
        if self._terms > MOST_TERMS:
            raise FilterError(f"more than {MOST_TERMS} values", position=self._next.position)
        return tuple(choices)

    def _operand(self) -> Operand:
        if self._next.kind == "name":
            token = self._next
            self._place += 1
            return ColumnRef(token.text, token.position)
        return self._constant("a column or a value")

    def _constant(self, wanted: str = "a value") -> Constant:
        token = self._next
        if token.kind != "literal":
            hint = HINTS["quotes" if token.kind == "name" else "value"]
            raise self._expected(wanted, hint=hint)
        self._place += 1
        return Constant(token.value)

    def _operator(self) -> Operator | None:
        token = self._next
        if token.kind == "sign" and token.text in OPERATORS:
            self._place += 1
            return cast("Operator", token.text)
        return None

    # ---- tokens --------------------------------------------------------------------------------------------------

    @property
    def _next(self) -> Token:
        return self._tokens[self._place]

    def _took(self, kind: str, text: str) -> bool:
        found = self._next.kind == kind and self._next.text == text
        self._place += found
        return found

    def _take(self, kind: str, text: str) -> None:
        if not self._took(kind, text):
            raise self._expected(f"'{text}'")

    def _expected(self, wanted: str, *, hint: str | None = None) -> FilterError:
        return FilterError(f"expected {wanted}, found {self._next}", position=self._next.position, hint=hint)
