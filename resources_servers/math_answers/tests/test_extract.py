import pytest

from resources_servers.math_answers.extract import extract_answer

CASES = {
    r"so \boxed{42}.": ("42", "box"),
    r"first \boxed{1}, no: \boxed{2}": ("2", "box"),
    r"\boxed{1} and then, much later in the text, \boxed{2}": ("2", "box"),
    r"$x = \boxed{1}$ or $\boxed{2}$": ("1, 2", "box"),
    r"\boxed{\frac{1}{\sqrt{2}}}": (r"\frac{1}{\sqrt{2}}", "box"),
    r"\boxed{\{1, 2\}}": (r"\{1, 2\}", "box"),
    r"\boxed{a \boxed{b} c}": (r"a \boxed{b} c", "box"),
    r"\fbox{7}": ("7", "box"),
    r"we get \boxed 5.": ("5", "box"),
    r"\boxed{3} and \boxed{4": ("3", "box"),
    "2 + 2 = 4\n#### 1,234": ("1,234", "announced"),
    "thinking\nA: 26": ("26", "announced"),
    "The final answer is $\\frac{1}{2}$.": (r"\frac{1}{2}", "announced"),
    "**Answer:** 12 cm": ("12 cm", "announced"),
    "**Answer**: 12": ("12", "announced"),
    "Answer:\n\n42": ("42", "announced"),
    "The answer is: 3.5. That was easy.": ("3.5", "announced"),
    "The answer to the question is 8": ("8", "announced"),
    "It is 3, then 4 apples": ("4", "last"),
    "so $x = 5$": ("x = 5", "last"),
    "so \\(x = 5\\) holds": ("x = 5", "last"),
    "costs $36.00 in all": ("$36.00", "last"),
}


@pytest.mark.parametrize("text", CASES)
def test_the_final_answer_is_found(text: str) -> None:
    answer = extract_answer(text)
    assert answer is not None
    assert (answer.text, answer.found) == CASES[text]


@pytest.mark.parametrize("text", ["", "I don't know.", "\\boxed{"])
def test_a_text_without_an_answer_has_none(text: str) -> None:
    assert extract_answer(text) is None
