from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resources_servers.calculator.expressions import MAX_BITS, ExpressionError, evaluate, format_number


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 + 3 * 4", "14"),
        ("(2 + 3) * 4", "20"),
        ("2 - 3 - 4", "-5"),
        ("8 / 4 / 2", "1"),
        ("-2 ** 2", "-4"),
        ("2 ** 3 ** 2", "512"),
        ("2 ** -2", "0.25"),
        ("2^10", "1024"),
        ("--3", "3"),
        ("0.1 + 0.2", "0.3"),
        ("1,081 * 2", "2162"),
        ("$20 - $3.50", "16.5"),
        (".5 * 4", "2"),
        ("5. + 1", "6"),
        ("15% of 240", "36"),
        ("240 * 15%", "36"),
        ("50% + 1", "1.5"),
        ("17 % 5", "2"),
        ("3 x 4", "12"),
        ("3 \u00d7 4 \u00f7 2 \u2212 1", "5"),
        ("7 * 6 =", "42"),
        ("1 / 3", "0.333333333333"),
        ("1 / 1024", "0.0009765625"),
        ("0 * -1", "0"),
        ("10 ** 20", "100000000000000000000"),
    ],
)
def test_value_of(expression: str, value: str) -> None:
    assert format_number(evaluate(expression)) == value


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("1 / 0", "division by zero"),
        ("5 % 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("2 ** 0.5", "whole number"),
        ("(1 + 2", "not closed"),
        ("1 + 2)", "unexpected ')'"),
        ("2 3", "unexpected '3' after '2'"),
        ("1 +", "expected a number, found the end"),
        ("* 2", "expected a number, found '*'"),
        ("10 + 20 = 30", "unknown symbol '='"),
        ("sqrt(4)", "unknown symbol 'sqrt'"),
        ("1,08 + 1", "unknown symbol ','"),
        ("__import__('os').system('true')", "unknown symbol"),
        ("1" * 201, "longer than 200"),
        ("(" * 60 + "1" + ")" * 60, "nested deeper"),
        ("-" * 100 + "1", "nested deeper"),
    ],
)
def test_what_cannot_be_evaluated_is_explained(expression: str, reason: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        evaluate(expression)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "expression",
    [
        "9**9**9",
        "9**9**9**9**9",
        "2**100000",
        "(10**150)*(10**150)",
        "1/9**9**9",
        "9" * 190,
        "1**999999999999 + 9**9**9",
    ],
)
def test_giant_numbers_are_refused_at_once(expression: str) -> None:
    with pytest.raises(ExpressionError, match="too many digits"):
        evaluate(expression)  # computing any of them would never end


LEAVES = st.one_of(
    st.integers(0, 9999).map(lambda number: (str(number), Fraction(number))),
    st.decimals(0, 999, places=2).map(lambda number: (str(number), Fraction(number))),
)


def _combined(left: tuple[str, Fraction], operator: str, right: tuple[str, Fraction]) -> tuple[str, Fraction]:
    apply = {"+": Fraction.__add__, "-": Fraction.__sub__, "*": Fraction.__mul__}[operator]
    return f"({left[0]} {operator} {right[0]})", apply(left[1], right[1])


TREES = st.recursive(
    LEAVES, lambda inner: st.builds(_combined, inner, st.sampled_from("+-*"), inner), max_leaves=8
).filter(lambda tree: len(tree[0]) <= 200)


@settings(deadline=None)
@given(TREES)
def test_agrees_with_exact_arithmetic(tree: tuple[str, Fraction]) -> None:
    text, value = tree
    assert evaluate(text) == value


@settings(deadline=None)
@given(st.text(max_size=250) | st.text("0123456789+-*/%^().,x $=of", max_size=60))
def test_any_text_gives_a_bounded_value_or_a_reason(text: str) -> None:
    with suppress(ExpressionError):
        value = evaluate(text)
        assert max(value.numerator.bit_length(), value.denominator.bit_length()) <= MAX_BITS
        assert len(format_number(value)) < MAX_BITS


@settings(deadline=None)
@given(st.decimals(-(10**12), 10**12, places=4))
def test_short_decimals_are_written_exactly(number: object) -> None:
    value = Fraction(str(number))
    assert Fraction(format_number(value)) == value
