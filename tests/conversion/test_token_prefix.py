"""The true tokens of a conversation go in front of what the template makes of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.conversion.token_prefix import PrefixMismatchError, splice_prefix

EOS = 0
token = st.integers(min_value=1, max_value=50)
text = st.lists(token, max_size=12)


def test_a_retokenised_answer_is_replaced_by_the_tokens_that_were_sampled() -> None:
    template_prefix = [10, 11, 20, EOS, 9]
    template = [*template_prefix, 12, EOS, 9, 13]
    assert splice_prefix(template, template_prefix, [10, 11, 21, 22, EOS], EOS) == [
        *(10, 11, 21, 22, EOS, 9),
        *(12, EOS, 9, 13),
    ]


def test_an_answer_that_was_cut_off_is_ended_by_the_template() -> None:
    assert splice_prefix([1, 2, EOS, 3], [1, 2, EOS], [1, 7], EOS) == [1, 7, EOS, 3]


def test_earlier_turns_are_replaced_as_a_whole() -> None:
    template_prefix = [1, EOS, 2, EOS, 3, EOS]
    assert splice_prefix([*template_prefix, 4], template_prefix, [5, 5, EOS], EOS) == [5, 5, EOS, 4]


def test_without_true_tokens_the_template_stands() -> None:
    assert splice_prefix((1, EOS, 2), (1, EOS), (), EOS) == [1, EOS, 2]


def test_a_line_break_that_merges_with_what_follows_does_no_harm() -> None:
    assert splice_prefix([1, EOS, 99, 3], [1, EOS, 9], [2, EOS], EOS) == [2, EOS, 99, 3]


def test_a_template_without_ends_of_turns_is_refused() -> None:
    with pytest.raises(PrefixMismatchError, match="not end turns with token 0"):
        splice_prefix([1, 2, 3], [1, 2], [1, 2], EOS)


def test_a_template_that_forgets_reasoning_is_refused_with_the_place() -> None:
    with pytest.raises(PrefixMismatchError, match="from token 1 on"):
        splice_prefix([1, 3, EOS, 4, EOS], [1, 2, 3, EOS], [1, 2, 3, EOS], EOS)


def test_a_prompt_shorter_than_its_own_history_is_refused() -> None:
    with pytest.raises(PrefixMismatchError, match="from token 2 on"):
        splice_prefix([1, 2], [1, 2, EOS], [1, EOS], EOS)


@given(
    history=text,
    answer=text,
    tail=text,
    following=text,
    true=st.lists(token, min_size=1, max_size=30),
    ended=st.booleans(),
)
def test_the_prompt_continues_what_was_seen_and_keeps_what_follows(
    history: list[int], answer: list[int], tail: list[int], following: list[int], true: list[int], ended: bool
) -> None:
    template_prefix = [*history, EOS, *answer, EOS, *tail]
    template = [*template_prefix, *following]
    seen = [*true, EOS] if ended else true
    prompt = splice_prefix(template, template_prefix, seen, EOS)
    assert prompt[: len(seen)] == seen
    assert prompt[len(true) :] == [EOS, *tail, *following]
