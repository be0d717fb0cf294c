"""A rollout's tokens are one growing sequence, or it is said where and why they are not."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.metrics.continuity import Continuity, check_continuity
from nemo_gym.schemas.call_tokens import common_prefix

END = 2
QUESTION = list(range(100, 130))
THOUGHT = list(range(200, 230))
RESULT = list(range(300, 310))


def message(prompt: Any, generation: Any, **fields: Any) -> dict[str, Any]:
    tokens = {"prompt_token_ids": prompt, "generation_token_ids": generation}
    return {"type": "message", "role": "assistant", "content": [], **tokens, **fields}


def call(prompt: list[int], generation: list[int], arguments: str) -> dict[str, Any]:
    return message(prompt, generation, type="function_call", arguments=arguments)


def two_turns(first: dict[str, Any], prompt: list[int]) -> Continuity:
    result = {"type": "function_call_output", "call_id": "1", "output": "7"}
    return check_continuity([first, result, message(prompt, [END])])


def test_turns_that_continue_each_other_are_one_sequence() -> None:
    first = message(QUESTION, [*THOUGHT, END])
    assert two_turns(first, [*QUESTION, *THOUGHT, END, *RESULT]) == Continuity(ok=True, calls=2)


def test_a_rollout_without_token_ids_has_nothing_to_break() -> None:
    output: list[dict[str, Any]] = [{"type": "message"}, {"type": "message", "generation_token_ids": None}]
    assert check_continuity(output) == Continuity(ok=True, calls=0)
    assert check_continuity([]) == Continuity(ok=True, calls=0)


def test_a_word_that_became_other_tokens_is_retokenised() -> None:
    first = message(QUESTION, [*THOUGHT, END])
    changed = [*THOUGHT[:10], 999, *THOUGHT[12:]]
    result = two_turns(first, [*QUESTION, *changed, END, *RESULT])
    [found] = result.breaks
    assert not result.ok
    assert (found.item, found.turn, found.token, found.reason) == (2, 2, len(QUESTION) + 10, "retokenisation")
    assert "turn 2" in found.message
    assert "token 40" in found.message
    assert "999" in found.message


def test_the_last_word_of_a_short_answer_is_retokenised() -> None:
    first = message(QUESTION, [200, 201, END])
    [found] = two_turns(first, [*QUESTION, 777, END, *RESULT]).breaks
    assert found.reason == "retokenisation"


def test_a_call_whose_arguments_are_printed_in_another_way_is_retemplated() -> None:
    prompt = [*QUESTION, *THOUGHT[:10], 999, *THOUGHT[12:], END, *RESULT]
    [found] = two_turns(call(QUESTION, [*THOUGHT, END], '{"a":1}'), prompt).breaks
    assert found.reason == "retemplating"
    [found] = two_turns(call(QUESTION, [*THOUGHT, END], '{"a": 1}'), prompt).breaks
    assert found.reason == "retokenisation"


@pytest.mark.parametrize("arguments", ["", "{", "[" * 100_000])
def test_arguments_that_are_no_json_can_not_be_written_back_as_they_were(arguments: str) -> None:
    prompt = [*QUESTION, *THOUGHT[:10], 999, *THOUGHT[12:], END, *RESULT]
    [found] = two_turns(call(QUESTION, [*THOUGHT, END], arguments), prompt).breaks
    assert found.reason == "retemplating"


def test_a_question_that_is_written_differently_is_retemplated() -> None:
    first = message(QUESTION, [*THOUGHT, END])
    [found] = two_turns(first, [*QUESTION[:5], 888, *QUESTION[6:], *THOUGHT, END, *RESULT]).breaks
    assert (found.token, found.reason) == (5, "retemplating")


def test_another_end_of_an_answer_is_retemplated() -> None:
    first = message(QUESTION, [*THOUGHT, END])
    [found] = two_turns(first, [*QUESTION, *THOUGHT, 3, *RESULT]).breaks
    assert (found.token, found.reason) == (len(QUESTION) + len(THOUGHT), "retemplating")


def test_reasoning_that_is_left_out_is_truncated_history() -> None:
    first = message(QUESTION, [*THOUGHT, END])
    [found] = two_turns(first, [*QUESTION, *THOUGHT[20:], END, *RESULT]).breaks
    assert (found.token, found.reason) == (len(QUESTION), "truncated_history")


def test_a_prompt_that_ends_early_is_truncated_history() -> None:
    first = message(QUESTION, [*THOUGHT, END])
    [found] = two_turns(first, QUESTION[:12]).breaks
    assert (found.token, found.reason) == (12, "truncated_history")
    assert "ends after 12 of the 61 tokens" in found.message


def test_a_prompt_of_something_else_altogether_is_unknown() -> None:
    [found] = two_turns(message(QUESTION, [END]), list(range(1000, 1100))).breaks
    assert (found.token, found.reason) == (0, "unknown")


def test_what_follows_a_break_is_judged_from_there() -> None:
    other = list(range(1000, 1040))
    output = [message(QUESTION, [5, END]), message(other, [6, END]), message([*other, 6, END, 7], [END])]
    assert [found.turn for found in check_continuity(output).breaks] == [2]


@pytest.mark.parametrize(("prompt", "generation"), [(None, [1]), ([1], "1"), (["1"], [1]), ([True], [1]), ([1.0], [1])])
def test_ids_that_are_no_numbers_are_a_break_and_no_crash(prompt: Any, generation: Any) -> None:
    result = check_continuity([message(prompt, generation), message([1], [2])])
    assert [(found.turn, found.reason) for found in result.breaks] == [(1, "unknown")]
    assert result.calls == 2


TOKENS = st.lists(st.integers(0, 3), max_size=12)


@given(st.lists(st.tuples(TOKENS, TOKENS), max_size=5))
def test_a_growing_sequence_never_breaks(turns: list[tuple[list[int], list[int]]]) -> None:
    seen: list[int] = []
    output = []
    for context, generation in turns:
        prompt = seen + context
        output.append(message(prompt, generation))
        seen = prompt + generation
    assert check_continuity(output) == Continuity(ok=True, calls=len(turns))


@given(st.lists(st.tuples(TOKENS, TOKENS), max_size=5))
def test_breaks_are_those_of_the_rule(turns: list[tuple[list[int], list[int]]]) -> None:
    seen: list[int] = []
    expected = []
    for number, (prompt, generation) in enumerate(turns):
        if prompt[: len(seen)] != seen:
            differs = next((i for i, (a, b) in enumerate(zip(seen, prompt, strict=False)) if a != b), len(prompt))
            expected.append((number, number + 1, differs))
        seen = prompt + generation
    found = check_continuity([message(*turn) for turn in turns]).breaks
    assert [(one.item, one.turn, one.token) for one in found] == expected


@given(TOKENS, TOKENS)
def test_a_common_prefix_is_as_long_as_can_be(first: list[int], second: list[int]) -> None:
    length = common_prefix(first, second)
    assert first[:length] == second[:length]
    assert first[: length + 1] != second[: length + 1] or length == min(len(first), len(second))
