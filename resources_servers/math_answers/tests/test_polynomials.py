"""The quick ways agree with the library wherever they decide at all."""

import random

import pytest

from resources_servers.math_answers.compare import compare_plainly
from resources_servers.math_answers.polynomials import parse_polynomial


@pytest.mark.parametrize(
    ("expected", "answer", "equal"),
    [
        ("x^2+3x+1", "1 + 3x + x^2", True),
        ("x^2+3x+1", "x^2+4x+1", False),
        (r"\frac{1}{2}x-y", r"-y + \dfrac{2}{4} x", True),
        ("2xy", r"2 \cdot y x", True),
        ("x^{10}", "x^{10}+0x", True),
        ("xx", "x^2", True),
        ("-x", "x", False),
    ],
)
def test_polynomials_are_compared_exactly(expected: str, answer: str, equal: bool) -> None:
    compared = compare_plainly(expected, answer)
    assert compared is not None
    assert (compared.equal, compared.method) == (equal, "polynomial")


@pytest.mark.parametrize(
    "text",
    ["", "5", "e^2+1", "1/2x", "x^12", "0.5x", "(x+1)^2", "yes", "x=2", "x+", "x--1", r"\frac{1}{0}x", "2+-3x", "x-x"],
)
def test_what_is_not_plainly_a_polynomial_is_left_to_the_library(text: str) -> None:
    assert parse_polynomial(text) is None


def test_different_variables_are_left_to_the_library() -> None:
    assert compare_plainly("x+1", "y+1") is None


def test_quick_and_thorough_verdicts_are_the_same() -> None:
    verify = pytest.importorskip("math_verify", reason="pip install 'rollout-gym[environments]'").verify
    from resources_servers.math_answers import symbolic

    chance = random.Random(3)
    numbers = [
        *(rf"{chance.randint(2, 9)}\sqrt{{{chance.choice((2, 3, 8, 12))}}}" for _ in range(8)),
        *(rf"\frac{{{chance.randint(1, 9)}\pi}}{{{chance.randint(2, 9)}}}" for _ in range(6)),
        *(r"\sqrt{12}", r"2\sqrt{3}", r"50\%", r"\frac{1}{2}", "e^2", r"\ln 5", r"2^{10}", r"\sin 1", "2+3i"),
    ]
    polynomials = [f"{chance.randint(1, 3)}x^2{chance.choice('+-')}{chance.randint(1, 4)}x" for _ in range(6)]
    pairs = [(left, right) for group in (numbers, polynomials) for left in group for right in group]
    for left, right in chance.sample(pairs, 25):
        alone = bool(verify(symbolic._parsed(left), symbolic._parsed(right), timeout_seconds=None))
        assert symbolic.equivalent(left, right) is alone, (left, right)
        compared = compare_plainly(left, right)
        if compared is not None and compared.method == "polynomial":
            assert compared.equal is alone, (left, right)
