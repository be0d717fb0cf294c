"""Reads a filter. Recursive descent over the tokens; the grammar is in ``filters_syntax``.

Filters come from strangers by way of a URL: their length, their depth and the number of their terms are limited.
"""

from typing import Final, cast

from nemo_gym.export.filters_syntax import (
    OPERATORS,
    All,
    Column,
    Comparison,
    Constant,
    Either,
    FilterError,
    Membership,
    Node,
    Not,
    Operand,
    Operator,
)
from nemo_gym.export.filters_tokens import Token, tokens

LONGEST: Final = 4_000  # characters
DEEPEST: Final = 40  # parentheses and nots inside each other
MOST_TERMS: Final = 300
_COMPARE: Final = 'compare it with a value: reward < 0.5, agent == "name", failure is null'
_VALUE: Final = 'values are columns, numbers, "texts", true, false and null'


def parse(text: str) -> Node | None:
    """The tree of a filter; None if it is empty, which lets everything through."""
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
            raise FilterError(f"nested more than {DEEPEST} deep", position=self._next.position)
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
            raise self._expected("a comparison", hint=_COMPARE)
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
            return Column(token.text, token.position)
        return self._constant("a column or a value")

    def _constant(self, wanted: str = "a value") -> Constant:
        token = self._next
        if token.kind != "literal":
            hint = "texts need quotes" if token.kind == "name" else _VALUE
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
