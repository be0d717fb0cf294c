"""A completion that is read the short way says the same as one that was validated."""

import json
from typing import Any

import pytest

from nemo_gym.conversion.chat_answers import answer_of, answer_to_response, assistant_to_items
from nemo_gym.conversion.plain_completion import read_plain_completion
from nemo_gym.conversion.reading import read_chat_completion

CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
LOGPROBS = {"content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]}


def body(message: dict[str, Any], *, finish_reason: str = "stop", **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": finish_reason, "message": {"role": "assistant", **message}}
    whole = {"id": "x", "object": "chat.completion", "created": 7, "model": "m", "choices": [choice]}
    choice |= {name: fields.pop(name) for name in ("logprobs",) if name in fields}
    return whole | fields


PLAIN = [
    body({"content": "hi"}),
    body({"content": "hi é"}, usage=USAGE, service_tier="default", system_fingerprint=None),
    body({"content": None, "tool_calls": [CALL]}, finish_reason="tool_calls"),
    body({"content": "", "tool_calls": [{"id": "d", "function": CALL["function"]}, CALL]}, finish_reason="tool_calls"),
    body({"content": "<think>hm</think>hi", "reasoning_content": "first", "refusal": None}, finish_reason="length"),
    body({"content": "hi", "reasoning": "hm", "annotations": [{"type": "url_citation", "url_citation": {"url": "u"}}]}),
    body({"content": None, "refusal": "no"}, finish_reason="content_filter", unknown={"a": 1}),
    body({"content": "hi", "policy_version": 3, "unknown": 1}, logprobs=LOGPROBS),
    body({"content": "hi"}, usage={**USAGE, "prompt_tokens_details": {"cached_tokens": 1}, "cost": 0.1}),
    body({"content": "hi"}, usage={**USAGE, "reasoning_tokens": 1, "completion_tokens_details": None}),
    body({"content": "hi"}, usage={**USAGE, "completion_tokens_details": {"reasoning_tokens": None}}),
]
OTHER = [
    body({"content": "hi"}, finish_reason="eos"),
    body({"content": "hi"}, usage={**USAGE, "prompt_tokens": -1}),
    body({"content": None, "tool_calls": [CALL, CALL]}),
    body({"content": None, "tool_calls": [{**CALL, "function": {"name": "look", "arguments": {}}}]}),
    body({"content": None, "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "n", "input": "i"}}]}),
    body({"content": None, "function_call": CALL["function"]}),
    body({"content": [{"type": "text", "text": "hi"}]}),
    body({"content": "hi", "audio": {"id": "a", "data": "", "transcript": "hi"}}),
    body({"content": "hi", "generation_token_ids": [1]}),
    body({"content": "hi"}, created=None),
    {**body({"content": "hi"}), "choices": []},
    {"error": {"message": "busy"}},
]


def response(answer: Any) -> dict[str, Any]:
    items = assistant_to_items(answer.message, lambda: "new")
    asked = {"include": ["message.output_text.logprobs"]}
    return answer_to_response(answer, items, asked, id="r", model="m")


@pytest.mark.parametrize("completion", PLAIN)
def test_a_plain_completion_becomes_the_same_response(completion: dict[str, Any]) -> None:
    content = json.dumps(completion).encode()
    answer = read_plain_completion(content)
    assert answer is not None
    assert response(answer) == response(answer_of(read_chat_completion(content).completion))


@pytest.mark.parametrize("completion", OTHER)
def test_any_doubt_is_left_to_validation(completion: dict[str, Any]) -> None:
    assert read_plain_completion(json.dumps(completion).encode()) is None


@pytest.mark.parametrize("content", [b"", b"<html>", b'{"id": "\xff"}', b"data: {}\n\n", b"[" * 100_000])
def test_what_is_not_json_is_not_plain(content: bytes) -> None:
    assert read_plain_completion(content) is None
