"""The true tokens of a conversation go in front of what the template makes of it."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.conversion.completion_tokens import (
    PastTurn,
    PrefixMismatchError,
    end_of_turn,
    says,
    splice_prefix,
    true_prompt,
    turns_within,
)

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


A, B, C, NEW = 10, 11, 12, 13


def turn(prompt: list[int], generation: list[int], before: list[int], through: list[int], **more: bool) -> PastTurn:
    return PastTurn(prompt, generation, before, through, **more)


# The template writes the first answer as 20; it was generated as 21 22. The second is written as it was.
FIRST = turn([A, EOS], [21, 22, EOS], [A, EOS], [A, EOS, 20, EOS])
SECOND = turn([A, EOS, 21, 22, EOS, B, EOS], [30, EOS], [A, EOS, 20, EOS, B, EOS], [A, EOS, 20, EOS, B, EOS, 30, EOS])
WHOLE = [A, EOS, 20, EOS, B, EOS, 30, EOS, NEW, EOS]


def test_all_turns_that_are_what_they_were_are_kept() -> None:
    assert true_prompt([FIRST, SECOND], WHOLE, EOS) == (
        [A, EOS, 21, 22, EOS, B, EOS, 30, EOS, NEW, EOS],
        2,
        "",
    )
    assert true_prompt([], WHOLE, EOS) == (WHOLE, 0, "")


def test_what_was_said_before_an_answer_and_edited_since_is_not_kept() -> None:
    edited = [turn([A, EOS], [21, 22, EOS], [C, EOS], [C, EOS, 20, EOS])]
    ids, kept, reason = true_prompt(edited, [C, EOS, 20, EOS, NEW, EOS], EOS)
    assert (ids, kept) == ([C, EOS, 20, EOS, NEW, EOS], 0)
    assert "before completion 1" in reason


def test_earlier_turns_are_found_in_the_prompt_of_a_later_one() -> None:
    third = [A, EOS, 21, 22, EOS, B, EOS, 30, EOS, NEW, EOS]
    rendered = [(FIRST.before, FIRST.through), (SECOND.before, SECOND.through)]
    assert turns_within(third, rendered, EOS) == [FIRST, SECOND]
    last = turn(third, [40, EOS], WHOLE, [*WHOLE, 41, EOS])
    assert true_prompt([FIRST, SECOND, last], [*WHOLE, 41, EOS, 5], EOS).ids == [*third, 40, EOS, 5]


@pytest.mark.parametrize(
    "rendered",
    [
        [([B, EOS], [B, EOS, 20, EOS])],  # the question was edited
        [([], [A, EOS]), (SECOND.before[2:], SECOND.through[2:])],  # or removed, so what follows is another answer
    ],
)
def test_nothing_is_found_of_a_conversation_that_was_edited(rendered: list[tuple[list[int], list[int]]]) -> None:
    third = [A, EOS, 21, 22, EOS, B, EOS, 30, EOS, NEW, EOS]
    found = turns_within(third, rendered, EOS)
    last = turn(third, [40, EOS], rendered[-1][1], [*rendered[-1][1], 41, EOS])
    assert true_prompt([*found, last], WHOLE, EOS).reason


def test_turns_before_an_edit_are_kept() -> None:
    later = replace(SECOND, before=[A, EOS, 20, EOS, C, EOS])
    ids, kept, reason = true_prompt([FIRST, later], [A, EOS, 20, EOS, C, EOS, 30, EOS, NEW, EOS], EOS)
    assert (ids, kept) == ([A, EOS, 21, 22, EOS, C, EOS, 30, EOS, NEW, EOS], 1)
    assert "before completion 2" in reason
    assert true_prompt([FIRST, replace(SECOND, edited=True)], WHOLE, EOS).past == 1


def test_a_template_that_rewrites_history_is_told() -> None:
    ids, kept, reason = true_prompt([FIRST], [A, EOS, 99, EOS, NEW, EOS], EOS)
    assert (ids, kept) == ([A, EOS, 99, EOS, NEW, EOS], 0)
    assert "template" in reason


@pytest.mark.parametrize(
    ("through", "found"), [([1, 5, EOS], EOS), ([1, EOS, 9], EOS), ([EOS, 1, 2, 3], None), ([], None)]
)
def test_the_end_of_a_turn_is_at_its_end(through: list[int], found: int | None) -> None:
    assert end_of_turn(through, {EOS}) == found


CALL = {"function": {"name": "f", "arguments": '{"x": 1}'}}
CALLS = {"tool_calls": [CALL]}
TWO = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>' * 2


@pytest.mark.parametrize(
    ("generated", "message", "same"),
    [
        ("Hello  there", {"content": "Hello there"}, True),
        ("<think>hm</think>\n\nHello<|im_end|>", {"content": "Hello", "reasoning_content": "hm"}, True),
        ("<think>hm</think>\n\nHello", {"content": "<think>hm</think>Hello"}, True),
        ("hm</think>\n\nHello", {"content": "<think>hm</think>Hello"}, True),  # the template opened the block
        ("<think>\n\n</think>\n\nHello", {"content": "Hello"}, True),
        ("<think>hm</think>\n\nHello", {"content": "Hello"}, False),  # the agent took the reasoning out
        ("<think>hm</think>\n\nHello", {"content": "Hello", "reasoning_content": "well"}, False),
        ("Hello", {"content": "[redacted]"}, False),
        ("Hello there, my password is 1234</s>", {"content": "Hello there"}, False),
        ("Well. Hello", {"content": "Hello"}, False),
        ("Hello", {"content": ""}, False),
        ("</s>", {"content": ""}, True),
        ("Hello \ufffd", {"content": "Hello"}, True),  # the limit cut a character in two
        ('Well<tool_call>{"name', {"content": "Well"}, True),  # the limit cut a call off
        ('Well<tool_call>{"name', {"content": 'Well<tool_call>{"name'}, True),
        ('Well<tool_call>{"name": "f"}</tool_call>', {"content": "Well"}, False),  # the agent took the call out
        ("1 < 2<|im_end|>", {"content": "1 < 2"}, True),
        ('<tool_call>{"name": "f", "arguments": {"x":1}}</tool_call>', {"content": None, "tool_calls": [CALL]}, True),
        ('[{"name": "f", "parameters": {"x": 1}}]', {"tool_calls": [CALL]}, True),
        ('{"x": 2}', {"tool_calls": [CALL]}, False),
        ('{"x": 1}', {"tool_calls": [CALL]}, True),  # forced: the name is not generated
        ('[TOOL_CALLS]f{"x": 1}', {"tool_calls": [CALL]}, True),
        ('<function=f>{"x": 1}</function>', {"tool_calls": [CALL]}, True),
        ('<|call|>functions.f:0<|arguments|>{"x": 1}', {"tool_calls": [CALL]}, True),
        ('{"tool_call": {"name": "f", "arguments": {"x": 1}}}', {"tool_calls": [CALL]}, True),
        ('<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>', {"tool_calls": [CALL]}, True),
        ('Well.<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>Done', {"content": "Well.", **CALLS}, True),
        ('I mean {"a": 1}.\n{"x": 1}', {"content": 'I mean {"a": 1}.', **CALLS}, True),
        # The agent changed the name, the type of an argument, the words before the call, or the number of calls.
        ('<tool_call>{"name": "g", "arguments": {"x": 1}}</tool_call>', CALLS, False),
        ('[TOOL_CALLS]g{"x": 1}', CALLS, False),
        ('{"x": true}', CALLS, False),
        ('My pin: 1234. <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>', CALLS, False),
        (
            'My pin: 1234 <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>',
            {"content": "My pin:", **CALLS},
            False,
        ),
        ('<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>', {"content": "Well", **CALLS}, False),
        (TWO, {"tool_calls": [CALL, CALL]}, True),
        (TWO, CALLS, False),
        ('<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>', {"tool_calls": [CALL, CALL]}, False),
        # Reasoning may mention calls; it is compared as well.
        (
            '<think>{"name": "g", "arguments": {}}?</think>{"x": 1}',
            {"reasoning_content": '{"name": "g", "arguments": {}}?', **CALLS},
            True,
        ),
        ('<think>hm</think>{"x": 1}', {"reasoning_content": "well", **CALLS}, False),
        ('<think>hm</think>{"x": 1}', CALLS, False),
        ("Hello", {"content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]}, True),
    ],
)
def test_a_message_says_what_was_generated(generated: str, message: dict[str, Any], *, same: bool) -> None:
    assert says(generated, message) is same


def test_a_stop_string_is_no_part_of_a_message() -> None:
    message = {"content": "I will look"}
    assert says("I will look\nObservation: it", message, stops=["\nObservation:"])
    assert not says("I will look\nObservation: it", message, stops=["\n\n"])
    assert not says("I will look\nand then Observation:", message, stops=["Observation:"])


def test_an_endpoint_that_drops_all_calls_but_one_is_no_edit() -> None:
    assert says(TWO, CALLS, one_call=True)
    assert not says(TWO.replace("1", "2", 1), CALLS, one_call=True)
