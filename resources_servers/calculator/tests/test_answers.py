from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resources_servers.calculator.answers import extract_number, parse_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("36", "36"),
        ("1,081", "1081"),
        ("1,234,567.5", "1234567.5"),
        ("$36.00", "36"),
        ("36%", "36"),
        ("-5", "-5"),
        ("\u22125", "-5"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("3/4 cup", "3/4"),
        ("2 1/2 cups", "5/2"),
        (".5", "1/2"),
        ("The answer is 36.", "36"),
        ("The answer is 36, which is 15% of 240.", "36"),
        ("15% of 240 is 36.", "36"),
        ("240 * 0.15 = 36", "36"),
        ("Answer: **36** apples in 4 bags", "36"),
        ("**Answer:** $1,081.00", "1081"),
        ("The final answer is: \\(36\\)", "36"),
        ("The answer is approximately 36", "36"),
        ("The answer is 3 + 4 = 7.", "7"),
        ("The answer is 15% of 240 = 36, so 36 of 240.", "36"),
        ("Answer: 5. No wait. Answer: 6. I had 7 before.", "6"),
        ("So 7 is left.\n#### 72\nDone in 2 steps", "72"),
        ("\\boxed{36} out of 240", "36"),
        ("first \\boxed{1}, then \\boxed{2}; the answer is 3", "2"),
        ("\\boxed{\\frac{1}{2}}", "1/2"),
        ("\\boxed{1{,}081\\%}", "1081"),
        ("\\boxed{x = 7}", "7"),
        ("It costs $3.50.", "7/2"),
        ("Between 3-5", "5"),
        ("3, 4, 5", "5"),
        ("Steps:\n- 7 apples", "7"),
        ("We sold 3\n* 7 apples", "7"),
        ("It weighs 1.5e3 grams", "1500"),
        ("The answer is 42 million.", "42000000"),
        ("2 dozen", "24"),
        ("The area is 36 cm^2", "36"),
        ("**36** apples", "36"),
        ("So 100 + 70 = 170", "170"),
        ("\\boxed{100 + 70 = 170}", "170"),
    ],
)
def test_the_final_number_is_found(text: str, number: str) -> None:
    assert extract_number(text) == Fraction(number)


@pytest.mark.parametrize(
    "text",
    [
        *("", "I do not know.", "\\boxed{unknown} of 5", "1/0", "9" * 41, "The answer is a lot"),
        *("\\boxed{100 + 70}", "The answer is 100 + 70", "Answer: 100 - 70", "100 * 70", "2^10", "(3) \u00d7 (4)"),
        *("$100 + $70", "100 x 70", "\\boxed{100 \\times 70}", "15% * 240", "\\boxed{100 70}"),
    ],
)
def test_no_number_is_no_answer(text: str) -> None:
    assert extract_number(text) is None


@pytest.mark.parametrize("text", ["3 or 4", "about 3", "", "three", "1/0"])
def test_an_expected_answer_must_be_one_number(text: str) -> None:
    assert parse_number(text) is None


# No arithmetic, which would round to the precision that another test of the process may have set.
NUMBERS = st.decimals(-(10**9), 10**9, places=2).map(lambda number: number or abs(number))
PHRASES = ["{}", "The answer is {}.", "Answer: {}", "so we get {}", "\\boxed{{{}}}", "2 + 2 = {}", "**Answer: {}**"]


@settings(deadline=None)
@given(NUMBERS, st.sampled_from(PHRASES), st.sampled_from(["{}", "{:,}"]))
def test_a_number_survives_every_way_of_saying_it(number: object, phrase: str, style: str) -> None:
    assert extract_number(phrase.format(style.format(number))) == Fraction(str(number))


@settings(deadline=None)
@given(st.text(max_size=400) | st.text("0123456789.,-$%/= answeri:*\\boxed{}#", max_size=200))
def test_any_text_is_survived(text: str) -> None:
    number = extract_number(text)
    assert number is None or isinstance(number, Fraction)


@pytest.mark.parametrize(
    "text",
    ["answer: " * 20_000, "answer" + " :" * 50_000, "\\boxed{" * 20_000, "1" * 100_000, "-$" * 50_000, "= " * 50_000],
)
def test_a_runaway_text_costs_little(text: str) -> None:
    assert extract_number(text) is None
