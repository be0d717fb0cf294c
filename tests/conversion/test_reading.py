"""Answers of endpoints that are not quite as they should be, that ended at their limit, or that are no answers."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from nemo_gym.conversion.parts import release_items
from nemo_gym.conversion.reading import (
    first_errors,
    mark_cut_off,
    missing_completion,
    read_chat_completion,
    read_response,
    unknown_finish,
)
from nemo_gym.schemas.chat import NeMoGymChatCompletion
from nemo_gym.schemas.responses import NeMoGymResponse

ASKED = {"input": "hi", "tools": [{"type": "function", "name": "f"}]}


def read(body: dict[str, Any]) -> Any:
    return read_response(json.dumps(body).encode(), ASKED).response


def test_bookkeeping_that_is_missing_is_taken_from_the_request() -> None:
    response = read({"id": "r", "model": "m", "output": []})

    assert (response.object, response.tools, response.tool_choice) == ("response", ASKED["tools"], "auto")
    assert response.parallel_tool_calls is True


def test_gaps_in_items_are_filled() -> None:
    output = [
        {"type": "reasoning", "id": None, "summary": None},
        {"type": "message", "role": "assistant", "status": None, "content": [{"type": "output_text", "text": "a"}]},
        {"type": "message", "content": "b"},
        {"type": "message", "id": "m", "role": "assistant", "content": None},
        {"type": "function_call", "id": "c", "name": "f", "arguments": {"x": 1}, "status": None},
        {"type": "function_call", "call_id": "d", "name": "f"},
    ]

    response = read({"output": output})

    assert response.output_text == "ab"
    assert [(item.call_id, item.arguments) for item in response.output[-2:]] == [("c", '{"x":1}'), ("d", "{}")]


@pytest.mark.parametrize(
    "usage",
    [
        {"input_tokens": 3, "output_tokens": 4},
        {"input_tokens": 3, "output_tokens": 4, "total_tokens": None, "input_tokens_details": None},
        {"input_tokens": 3, "output_tokens": 4, "output_tokens_details": {"reasoning_tokens": None}},
    ],
)
def test_usage_without_details_has_zeros(usage: dict[str, Any]) -> None:
    response = read({"output": [], "usage": usage})

    assert response.usage.model_dump() == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 7,
    }


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[]", b"{}", b'{"output": 1}', b'{"output": ["text"]}', b'{"output": [{"type": "x"}]}', b"{"],
)
def test_what_is_no_response_is_refused(body: bytes) -> None:
    with pytest.raises(ValidationError):
        read_response(body, ASKED)


def test_gaps_in_a_completion_are_filled() -> None:
    calls = [{"function": {"name": "f", "arguments": {"x": 1}}}, {"id": "c", "function": {"name": "g"}}]
    choices = [{"message": {"content": None, "tool_calls": calls}}, {"message": {"content": "hi"}}]
    body = {"choices": choices, "usage": {"prompt_tokens": 3, "completion_tokens": None}}

    completion = read_chat_completion(json.dumps(body).encode()).completion

    assert [(choice.index, choice.finish_reason) for choice in completion.choices] == [(0, "tool_calls"), (1, "stop")]
    first = completion.choices[0].message.tool_calls
    assert first is not None
    assert [(call.id, call.function.arguments) for call in first] == [("call_0", '{"x":1}'), ("c", "{}")]
    assert completion.usage is not None
    assert completion.usage.total_tokens == 3


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"choices": [1]}', b'{"choices": [{"message": "hi"}]}'])
def test_what_is_no_completion_is_refused(body: bytes) -> None:
    with pytest.raises(ValidationError):
        read_chat_completion(body)


def test_an_explanation_is_short_and_names_the_place() -> None:
    with pytest.raises(ValidationError) as error:
        read({"output": [{"type": "message", "content": [3]} for _ in range(6)]})

    words = first_errors(error.value)
    assert words.startswith("output.0.output_message.content.0: Input should be a valid dictionary")
    assert words.endswith("; and 3 more")


CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
CHAT_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def test_call_ids_that_repeat_are_told_apart() -> None:
    reading = read_response(json.dumps({"output": [CALL, CALL | {"call_id": "c_2"}, CALL]}).encode(), ASKED)
    message = {"role": "assistant", "tool_calls": [CHAT_CALL, CHAT_CALL]}
    completion, notes = read_chat_completion(json.dumps({"choices": [{"message": message}]}).encode())

    assert [getattr(item, "call_id", None) for item in reading.response.output] == ["c", "c_2", "c_3"]
    assert [call.id for call in completion.choices[0].message.tool_calls or []] == ["c", "c_2"]
    assert "repeated call ids" in reading.notes[0]
    assert reading.notes == notes


def test_usage_that_cannot_be_true_is_left_out() -> None:
    usage = {"prompt_tokens": -1, "completion_tokens": 4, "total_tokens": 3}
    completion, notes = read_chat_completion(json.dumps({"choices": [], "usage": usage}).encode())

    assert completion.usage is None
    assert "negative" in notes[0]


def test_items_of_unknown_types_are_kept_beside_known_ones() -> None:
    search = {"type": "web_search_call", "id": "w"}
    reading = read_response(json.dumps({"output": [search, CALL]}).encode(), ASKED)

    kept = reading.response.output[0]
    assert (kept.type, kept.model_dump()["unknown_item"]) == ("reasoning", search)
    assert reading.notes == ("items of type web_search_call, which are kept but not understood",)
    assert release_items([item.model_dump(exclude_unset=True) for item in reading.response.output]) == [search, CALL]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "x", "message", "function_call", "text"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("output", "choices", "message", "content", "tool_calls", "usage", "type", "id", "call_id"),
                    *("function", "arguments", "input_tokens", "input_tokens_details", "prompt_tokens", "text", "name"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.fixed_dictionaries({"output": st.lists(json_values, max_size=3), "usage": json_values}) | json_values)
def test_whatever_comes_is_read_or_refused(body: Any) -> None:
    for read_body in (lambda content: read_response(content, ASKED), read_chat_completion):
        with suppress(ValidationError):
            read_body(json.dumps(body).encode())


@given(st.lists(st.fixed_dictionaries({"message": json_values, "index": json_values}), max_size=2), json_values)
def test_whatever_choices_come_are_read_or_refused(choices: Any, usage: Any) -> None:
    with suppress(ValidationError):
        read_chat_completion(json.dumps({"choices": choices, "usage": usage}).encode())


def test_parts_of_an_answer_are_text_reasoning_or_noted() -> None:
    thinking = [{"type": "text", "text": "h"}, {"type": "text", "text": "m"}]
    content = [
        {"type": "thinking", "thinking": thinking},
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": "https://a"}},
        {"type": "text", "text": "b"},
    ]
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}

    completion, notes = read_chat_completion(json.dumps({"id": "x", "choices": [choice]}).encode())

    message = completion.choices[0].message.model_dump(exclude_none=True)
    assert (message["content"], message["reasoning_content"]) == ("ab", "hm")
    assert notes == ("content of type image_url, which is left out",)


PART = {"type": "output_text", "text": "hi", "annotations": []}
SAID = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [PART]}


def response(written: int = 5, **fields: Any) -> NeMoGymResponse:
    usage = {
        "input_tokens": 1,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": written + 1,
    }
    known = {"id": "r", "created_at": 0.0, "model": "m", "object": "response", "output": [SAID], "usage": usage}
    return NeMoGymResponse.model_validate(
        known | {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "status": "completed"} | fields
    )


def call(arguments: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}


@pytest.mark.parametrize(
    ("found", "asked", "cut"),
    [
        (response(), {"max_output_tokens": 5}, True),
        (response(max_output_tokens=5), {}, True),
        (response(), {"max_output_tokens": 6}, False),
        (response(9), {"max_output_tokens": 5}, False),
        (response(), {}, False),
        (response(usage=None), {"max_output_tokens": 5}, False),
        (response(output=[SAID, call('{"x": 1}')]), {"max_output_tokens": 5}, False),
        (response(output=[call('{"x": ')]), {"max_output_tokens": 5}, True),
        (response(output=[]), {"max_output_tokens": 5}, True),
    ],
)
def test_an_answer_with_as_many_tokens_as_allowed_was_cut_off(
    found: NeMoGymResponse, asked: dict[str, Any], *, cut: bool
) -> None:
    assert mark_cut_off(found, asked) is cut
    assert (found.status == "incomplete") is cut
    assert not mark_cut_off(found, asked)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("completed", None),
        ("incomplete", None),
        ("queued", "a response that is queued"),
        ("in_progress", "in progress"),
    ],
)
def test_only_what_is_done_is_an_answer(status: str, words: str | None) -> None:
    said = missing_completion(response(status=status))
    assert said is None if words is None else words in str(said)


@pytest.mark.parametrize(
    ("reason", "becomes", "unknown"),
    [("stop", "stop", None), ("max_tokens", "length", None), ("eos", "stop", None), ("abort", "abort", "abort")],
)
def test_other_names_of_a_reason_are_known(reason: str, becomes: str, unknown: str | None) -> None:
    choice = {"index": 0, "finish_reason": reason, "message": {"role": "assistant", "content": "hi"}}
    completion = NeMoGymChatCompletion.model_validate(
        {"id": "x", "created": 0, "model": "m", "object": "chat.completion", "choices": [choice]}
    )
    assert unknown_finish(completion) == unknown
    assert completion.choices[0].finish_reason == becomes
