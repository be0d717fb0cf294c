import pytest

from resources_servers.multiple_choice.formats import MODES, find_choice
from resources_servers.multiple_choice.options import find_label, labels, read_options, render, shuffled

OPTIONS = {"A": "Paris", "B": "New York", "C": "42", "D": "York"}

CASES: dict[str, dict[str, str | None]] = {
    "strict_single_letter_boxed": {
        r"It is \boxed{B}.": "B",
        r"\boxed{(B)}": "B",
        r"\boxed{ B. }": "B",
        r"\boxed{\text{B}}": "B",
        r"\boxed{A} or rather \boxed{B}": "A",
        r"\boxed{b}": None,
        r"\boxed{AB}": None,
        r"\boxed{Z}": None,
        r"\boxed{New York}": None,
        r"\boxed{B": None,
        "B": None,
        "": None,
    },
    "lenient_boxed": {
        r"\boxed{B}": "B",
        r"\boxed{the city of Paris}": "A",
        r"\boxed{42}": "C",
        r"\boxed{\text{paris}}": "A",
        r"\boxed{New York}": None,  # "York" occurs in it as well
        r"\boxed{Rome}": None,
        r"\boxed{142}": None,  # 42 does not occur in it as a whole
        r"\boxed{Parisian}": None,
    },
    "lenient_answer_colon": {
        "Answer: B": "B",
        "answer: (b)": "B",
        "ANSWER: New York": "B",
        "Answer: A\nno wait\nAnswer: C": "C",
        "The answer is B": None,
        "**Answer:** B": "B",
        "**Answer**: B": None,
        "Answer: Rome": None,
        "Answer: B) New York": "B",
        "Answer: B. New York": "B",
        "Answer: (B) New York": "B",
        "Answer: B: New York": "B",
        "Answer: B because it is large": "B",
        "Answer:\nB": "B",
        "Answer:\n\n**B**": "B",
        "Answer: [B]": "B",
        r"Answer: $\boxed{B}$": "B",
        r"Answer: \boxed{\text{B}}": "B",
        r"Answer: $B$": "B",
        r"Answer: \(B\)": "B",
        "Answer: option B": "B",
        "Answer: B, since it is large.": "B",
        "Final Answer: B": "B",
        "Answer: A because it is large": "A",
        "Answer: A Paris": "A",
        "Answer: a combination of both": None,
        "Answer: A combination of both": None,
        "Answer: Bern": None,
        "Answer: B's rival": None,
        "Answer:": None,
    },
    "lenient_answer_colon_md": {
        "**Answer**: B": "B",
        "__Answer:__ **New York**": "B",
        "*Answer*: *C*": "C",
        "**Answer:** **B) New York**": "B",
        "**Answer**:\n(B)": "B",
        r"**Answer:** $\boxed{B}$": "B",
        "**Answer: a mixture**": None,
    },
    "answer_is": {
        "The answer is (B).": "B",
        "So the answer is B": "B",
        "the answer is **C**": "C",
        "the answer is A. No, the answer is D.": "D",
        "the answer is Paris": None,
        "the answer is E": None,
        "the answer is a combination of these": None,
        "The answer is A combination of these": None,
        "the answer is a.": "A",
        "the answer is (a)": "A",
        "the answer is A": "A",
        "the answer is A because it is large": "A",
        "the answer is B because it is large": "B",
        "the answer is b": "B",
        "the answer is by the sea": None,
        "the answer is: B) New York": "B",
        "the answer is **(B)**.": "B",
        r"the answer is $\boxed{B}$": "B",
        r"the answer is \(B\)": "B",
        "the answer is\nB": "B",
        "the answer is option B.": "B",
        "Answer: B": "B",
        "Answer: (B) New York": "B",
    },
    "any": {
        r"\boxed{A} no \boxed{B}": "B",
        r"\boxed{Paris}": "A",
        "The answer is (C)": "C",
        "Answer: D": "D",
        "The answer is a combination": None,
        "Answer: B) New York": "B",
        "B": "B",
        "(b)": "B",
        "New York.": "B",
        r"\boxed{B) New York}": "B",
        r"\boxed{\text{(b) new york}}": "B",
        r"\boxed{B) Paris}": None,
        r"\boxed{A, B}": None,
        "The answer is \u201cB\u201d": "B",
        "I like Paris and New York": None,
    },
}


def test_every_mode_has_cases() -> None:
    assert set(CASES) == set(MODES)


@pytest.mark.parametrize(("mode", "text"), [(mode, text) for mode, cases in CASES.items() for text in cases])
def test_the_choice_is_found_in_every_format(mode: str, text: str) -> None:
    assert find_choice(text, OPTIONS, mode) == CASES[mode][text]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("unit", ["\\boxed{", "answer: ", "answer is ", "{", "*", "A", "9", " ", "\n"])
def test_hostile_texts_are_read_in_bounded_time(mode: str, unit: str) -> None:
    assert find_choice(unit * (200_000 // len(unit)), OPTIONS, mode) in {None, "A"}


@pytest.mark.parametrize(
    "value",
    [["Paris", "Rome"], {"A": "Paris", "b": "Rome"}, [{"A": "Paris"}, {"B": "Rome"}]],
    ids=["texts", "by label", "list of labels"],
)
def test_options_are_read_in_every_form(value: object) -> None:
    assert read_options(value) == {"A": "Paris", "B": "Rome"}


@pytest.mark.parametrize("value", [None, "AB", ["only one"], [], [{"A": "x"}, {"a": "y"}], ["x"] * 1001])
def test_other_options_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="option"):
        read_options(value)


@pytest.mark.parametrize("count", [2, 10, 26, 27, 100, 1000])
def test_any_number_of_options_can_be_answered_by_letter(count: int) -> None:
    options = read_options([f"text {number}" for number in range(count)])
    last = list(options)[-1]
    assert find_choice(rf"\boxed{{{last}}}", options, "strict_single_letter_boxed") == last
    assert find_choice(f"The answer is ({last}).", options, "answer_is") == last


def test_the_right_option_is_given_by_label_position_or_text() -> None:
    assert [find_label(expected, OPTIONS) for expected in ("b", 1, "New York")] == ["B", "B", "B"]
    for wrong in ("E", 4, -1, "york city"):
        with pytest.raises(ValueError, match="option"):
            find_label(wrong, OPTIONS)


def test_the_seed_alone_decides_the_order() -> None:
    texts = [str(number) for number in range(10)]
    assert shuffled(texts, seed=1) == shuffled(texts, seed=1)
    assert shuffled(texts, seed=1) != shuffled(texts, seed=2)
    assert sorted(shuffled(texts, seed=1)) == texts


def test_options_are_written_one_on_a_line() -> None:
    assert render("Which?", ["x", "y"]) == "Which?\nA. x\nB. y"
    names = labels()
    assert [next(names) for _ in range(28)][-3:] == ["Z", "AA", "AB"]
