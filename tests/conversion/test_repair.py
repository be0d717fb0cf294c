"""Answers of endpoints that are not quite as they should be."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from nemo_gym.conversion.repair import explain, read_chat_completion, read_response

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

    completion = read_chat_completion(json.dumps(body).encode())

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
        read({"output": [{"type": "web_search_call"}, *({"type": "message", "content": [3]} for _ in range(5))]})

    words = explain(error.value)
    assert words.startswith("output.0: Input tag 'web_search_call'")
    assert words.endswith("; and 3 more")
