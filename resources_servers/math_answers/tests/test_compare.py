"""Equal and different answers, by the rules and by the library; and every labelled solution of GSM8K."""

import json
from pathlib import Path

import pytest

from nemo_gym import PARENT_DIR
from nemo_gym.process_pool import ProcessPool
from resources_servers.math_answers.compare import compare_plainly, repeats_question
from resources_servers.math_answers.extract import extract_answer
from resources_servers.math_answers.quantities import parse_quantity

SOLUTIONS = PARENT_DIR.parent / "shared/data/gsm8k/model_solutions.jsonl"

EQUAL = [
    ("18", "18.0"),
    ("90,000", r"\$90000"),
    ("1081", "1{,}081"),
    ("-5", "\u22125"),
    ("6.5", r"6\frac{1}{2}"),
    ("3/4", "0.75"),
    ("1/3", "0.333333"),
    (r"50\%", "50"),
    (r"50\%", "0.5"),
    ("0.5", "50%"),
    (r"90^\circ", "90"),
    (r"90^{\circ}", "90 degrees"),
    (r"10\text{ cm}", "10"),
    ("150 cm", "1.5 m"),
    ("2 hours", "120 min"),
    ("3 dollars", "300 cents"),
    ("18", "18 eggs"),
    ("42000000", "42 million"),
    ("42 million dollars", r"\$42,000,000"),
    ("2 dozen eggs", "24"),
    ("5 km/h", "5 kilometers per hour"),
    ("36 km/h", "10 m/s"),
    ("60 mph", "60 miles per hour"),
    ("12 dollars per hour", "12"),
    ("10 m^3", r"10\text{ m}^3"),
    ("10 cubic meters", "10000 liters"),
    ("1 m^2", "10000 square centimeters"),
    ("4 square units", "4"),
    ("2m", "200 cm"),
    (r"20^\circ\text{C}", "20 degrees Celsius"),
    ("7 p.m.", "7 PM"),
    ("$5", "500 cents"),
    ("1011_2", "11_{10}"),
    (r"\text{Evelyn}", "Evelyn"),
    ("(1,2]", r"\left(1, 2\right]"),
    ("1.5e3", "1500"),
    (r"\{1,2\}", "2, 1"),
    (r"\{1/2, 3\}", r"\{0.5, 3\}"),
    ("(3, 4)", r"\left(3, 4.0\right)"),
    ("[2, 3)", "[2.0,3)"),
]
DIFFERENT = [
    ("18", "18.01"),
    ("1000000", "1000001"),
    ("1/3", "0.33"),
    ("150 cm", "150 m"),
    ("150 cm", "150 kg"),
    ("2 1/2", "21/2"),
    ("1e-9", "0"),
    ("(1,2]", "[1,2]"),
    ("(1,2)", "(2,1)"),
    (r"\{1,2\}", r"\{1,3\}"),
    ("1,2", "1,2,3"),
    ("42", "42 million"),
    ("42", "42million"),
    ("42", r"42\text{ million}"),
    ("42 thousand", "42 million"),
    ("7 AM", "7 PM"),
    ("7", "7 PM"),
    ("4 m/s", "4 km/h"),
    ("10 m^3", "10 m^2"),
    ("10 m^2", "10 m"),
    ("10 cm^3", "10 m^3"),
    ("10 square feet", "10 feet"),
    (r"20^\circ C", r"20^\circ F"),
    ("18 books", "18 eggs"),
    ("18", "18 flurbs"),
    ("18", r"18\text{ flurbs}"),
    ("2m", "2"),
    ("2", "2m"),
    ("$5", "5 euros"),
    ("$5", "5 kg"),
    ("€5", "£5"),
    ("50%", "50 kg"),
    ("11_2", "11_3"),
]
SYMBOLICALLY_EQUAL = [
    (r"\sqrt{8}", r"2\sqrt2"),
    (r"\frac{1}{\sqrt2}", r"\frac{\sqrt2}{2}"),
    ("x^2+2x+1", "(x+1)^2"),
    ("(1,2]", r"(1, \sqrt{4}]"),
    (r"x\in[2,3)", "[2,3)"),
    (r"\{1,2\}", r"\{2, \sqrt{1}\}"),
    ("x=5", "5"),
    ("y=2x+3", "2x+3=y"),
    (r"2\pi", "6.283185"),
    ("3+2i", "2i+3"),
    (r"\left( 3, \frac{\pi}{2} \right)", r"(3, \pi/2)"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix}1\\2\end{bmatrix}"),
    (r"\log_2 8", "3"),
    ("2^{10}", "1024"),
]
SYMBOLICALLY_DIFFERENT = [
    ("2", "2x"),
    ("18", "18 or 19 or so"),
    ("20 C", "20 F"),
    ("2y", "2x"),
    ("2", "2 x"),
    ("3", "3i"),
    ("3", "3x^2"),
    ("42", "42M"),
    ("(1,2]", r"[\sqrt{1},2]"),
    ("p - q", "q - p"),
    ("x^3", "x^2"),
    (r"\sqrt{8}", "8"),
]


@pytest.mark.parametrize(("expected", "answer"), EQUAL)
def test_equal_numbers_and_texts_need_no_library(expected: str, answer: str) -> None:
    found = compare_plainly(expected, answer)
    assert found is not None
    assert found.equal


@pytest.mark.parametrize(("expected", "answer"), DIFFERENT)
def test_different_numbers_need_no_library(expected: str, answer: str) -> None:
    found = compare_plainly(expected, answer)
    assert found is not None
    assert not found.equal


@pytest.mark.parametrize("text", ["", "x", "1,2", "(1,2)", "1/0", "2+2", "12 x 3", "9" * 300, r"\frac{1}{x}", "1.2.3"])
def test_what_is_more_than_a_number_is_left_to_the_library(text: str) -> None:
    assert parse_quantity(text) is None


@pytest.mark.parametrize(("expected", "answer"), SYMBOLICALLY_EQUAL)
async def test_equal_formulas_are_compared_by_meaning(library: ProcessPool, expected: str, answer: str) -> None:
    plain = compare_plainly(expected, answer)
    assert plain is None or (plain.equal and plain.method == "polynomial")
    assert await library.call(expected, answer)


@pytest.mark.parametrize(("expected", "answer"), SYMBOLICALLY_DIFFERENT)
async def test_different_formulas_are_compared_by_meaning(library: ProcessPool, expected: str, answer: str) -> None:
    plain = compare_plainly(expected, answer)
    assert plain is None or (not plain.equal and plain.method == "polynomial")
    assert not await library.call(expected, answer)


def test_the_question_says_what_is_counted() -> None:
    def equal(expected: str, answer: str, question: str) -> bool:
        found = compare_plainly(expected, answer, question)
        return found is not None and found.equal

    question = "A farm of 3 million acres has red hens and brown goats. How many goats are there at 7 am?"
    assert equal("18", "18 goats", question)
    assert equal("18", "18 brown goats", question)
    assert equal("18 goats", "18 brown goats", question)
    assert not equal("18 hens", "18 goats", question)
    assert not equal("18", "18 cows", question)
    assert not equal("18", "18 million", question)
    assert not equal("7", "7 am", question)


@pytest.mark.parametrize(
    ("expected", "answer", "equal"),
    [
        ("east", "East", True),
        ("east", "seat", False),
        (r"\text{Monday}", "dayMon", False),
        ("abc", "cba", True),  # a product
        ("10:30", "10:30", True),
        ("10:30", "1/3", False),
        ("10:30", "20:60", False),
        ("10:30 AM", r"10:30\text{ a.m.}", True),
        ("10:30 AM", "10:30", True),
        ("10:30 AM", "10:30 PM", False),
        ("7:00 PM", "7 PM", True),
        ("7:15", "7/15", None),  # a ratio
        ("7:15", "8:15", None),
        ("2020-12-20", "1988", False),
        ("2020-12-20", "2020-20-12", False),
        ("12/20/2020", "12/20/2020", True),
        ("12/05/2020", "12/5/2020", True),
        ("5-10", "-5", False),
        ("5-10", "5--10", True),
        ("3/4", "0.75", True),
    ],
)
def test_words_dates_ranges_and_times_are_not_calculated(expected: str, answer: str, equal: bool | None) -> None:
    found = compare_plainly(expected, answer)
    assert (found and found.equal) is equal


def test_a_question_about_ratios_is_not_about_times() -> None:
    assert compare_plainly("10:30", "1:3", "At what ratio are they mixed?") is None
    assert compare_plainly("10:30", "1:3", "When does the train leave?") == (False, "literal")


@pytest.mark.parametrize(
    ("expected", "answer", "question", "repeats"),
    [
        (r"3\sqrt{3}", r"\sqrt{27}", r"Simplify $\sqrt{27}$.", True),
        ("x^2 + 3x + 2", "(x + 1)(x + 2)", "Expand $(x+1)(x+2)$.", True),
        ("17", "4 + 13", "What is 4 + 13?", True),
        (r"\frac{5}{6}", r"\frac{1}{2} + \frac{1}{3}", r"What is $\frac{1}{2} + \frac{1}{3}$ as a fraction?", True),
        (r"1200 \text{ cm}", "12 meters", "Convert 12 meters to cm.", True),
        (r"1200 \text{ cm}", "1200 cm", "Convert 12 meters to cm.", False),
        ("18", "18 dollars", "Is it 18 dollars?", False),
        ("x+1", "x + 1", "Is $x+1$ a factor?", False),
        ("5", "5", "Is it 15 or 5?", False),
        (r"3\sqrt{3}", r"\sqrt{27}", "", False),
        (r"2^2 \cdot 3", "12", "Factorise 12.", True),
        ("2^{10}", "1024", "Write 1024 as a power of 2.", True),
        (r"\sqrt{144}", "12", "What is the root of 144, 12.5 or 312?", False),
        (r"\frac{3}{4}", r"\frac{6}{8}", r"Reduce $\frac{6}{8}$ to lowest terms.", True),
        (r"\frac{3}{4}", "0.75", "Write 0.75 as a common fraction.", True),
        ("0.75", "3/4", "Convert 3/4 to a decimal.", True),
        (r"75\%", "0.75", "Express 0.75 as a percentage.", True),
        ("5", "$5.00", "Write how much of $5.00 is left after nothing was spent.", False),
        (r"\frac{1}{2}", "0.5", "Heads come with probability 0.5. How likely are tails?", False),
        (r"\frac{3}{4}", "0.75", "Write 10.75 minus 10 as a common fraction.", False),
    ],
)
def test_the_expression_of_the_question_is_not_an_answer(
    expected: str, answer: str, question: str, repeats: bool
) -> None:
    assert repeats_question(expected, answer, question) is repeats


def labelled_solutions(path: Path) -> list[tuple[str, str, bool]]:
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [
        (row["ground_truth"].rpartition("A:")[2].strip(), solution["solution"], solution["is_correct"])
        for row in rows
        for solution in row.values()
        if isinstance(solution, dict)
    ]


@pytest.mark.skipif(not SOLUTIONS.is_file(), reason="the labelled solutions of GSM8K are not beside the repository")
def test_every_labelled_solution_of_gsm8k_is_judged_alike() -> None:
    """The three answers of hundreds of digits are not plain numbers; the library is not needed to see them differ."""
    solutions = labelled_solutions(SOLUTIONS)
    disagreements = []
    for expected, text, is_correct in solutions:
        answer = extract_answer(text)
        found = compare_plainly(expected, answer.text) if answer else None
        if (found.equal if found else False) != is_correct:
            disagreements.append((expected, answer, is_correct))
    assert len(solutions) == 2640
    assert disagreements == []
