"""The quick way to read an answer may refuse what is fine, but never reads it otherwise than the long way."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.conversion.chat_answers import answer_of, answer_to_response, assistant_to_items
from nemo_gym.conversion.plain_answers import is_plain_response, read_plain_completion
from nemo_gym.conversion.reading import read_chat_completion
from nemo_gym.schemas.responses import NeMoGymResponse

MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Hello.", "annotations": []}],
}
CALL = {"type": "function_call", "call_id": "call_1", "name": "look_up", "arguments": "{}", "id": "fc_1"}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]}
USAGE = {
    "input_tokens": 3,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 4,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 7,
}
RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "created_at": 1,
    "model": "m",
    "object": "response",
    "output": [REASONING, CALL, MESSAGE],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "usage": USAGE,
    "status": "completed",
    "metadata": {},
    "something_new": {"kept": True},
}


def encoded(**changes: Any) -> bytes:
    return json.dumps({**RESPONSE, **changes}).encode()


@pytest.mark.parametrize("item", [REASONING, CALL, MESSAGE], ids=lambda item: item["type"])
def test_what_endpoints_usually_say_is_plain(item: dict[str, Any]) -> None:
    assert is_plain_response(encoded(output=[item]))
    assert is_plain_response(encoded(output=[item], usage=None, temperature=0.5, tool_choice="none"))


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "failed"},
        {"error": {"message": "no"}},
        {"output": [CALL, CALL]},
        {"output": [{**CALL, "generation_token_ids": [1]}]},
        {"output": [{"type": "web_search_call", "id": "ws_1"}]},
        {"output": [{**MESSAGE, "role": "user"}]},
        {"output": "nothing"},
        {"usage": {**USAGE, "total_tokens": -1}},
        {"object": "error"},
        {"id": None},
    ],
    ids=str,
)
def test_whatever_needs_a_closer_look_is_not(changes: dict[str, Any]) -> None:
    assert not is_plain_response(encoded(**changes))


@pytest.mark.parametrize("content", [b"", b"<html>", b"[]", encoded()[:-1], b"data: {}\n\n", b'{"id": "\xff"}'])
def test_what_is_no_response_at_all_is_not(content: bytes) -> None:
    assert not is_plain_response(content)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.sampled_from(["", "x", "auto"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["id", "type", "text"]), inner),
    max_leaves=4,
)
PLACES = [
    *((name,) for name in RESPONSE),
    *(("output", n, name) for n, item in enumerate((REASONING, CALL, MESSAGE)) for name in item),
    *(("usage", name) for name in USAGE),
    ("output", 2, "content", 0, "text"),
    ("output", 2, "content", 0, "annotations"),
    ("output", 0, "summary", 0, "text"),
]


@given(place=st.sampled_from(PLACES), value=VALUES, drop=st.booleans())
def test_what_it_accepts_the_long_way_accepts_unchanged(place: tuple[Any, ...], value: Any, drop: bool) -> None:
    payload = json.loads(encoded())
    inner = payload
    for step in place[:-1]:
        inner = inner[step]
    if drop:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    content = orjson.dumps(payload)
    if is_plain_response(content):
        response = NeMoGymResponse.model_validate_json(content)
        assert response.status != "failed"
        assert response.error is None


CHAT_CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CHAT_USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
LOGPROBS = {"content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]}


def body(message: dict[str, Any], *, finish_reason: str = "stop", **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": finish_reason, "message": {"role": "assistant", **message}}
    whole = {"id": "x", "object": "chat.completion", "created": 7, "model": "m", "choices": [choice]}
    choice |= {name: fields.pop(name) for name in ("logprobs",) if name in fields}
    return whole | fields


PLAIN = [
    body({"content": "hi"}),
    body({"content": "hi é"}, usage=CHAT_USAGE, service_tier="default", system_fingerprint=None),
    body({"content": None, "tool_calls": [CHAT_CALL]}, finish_reason="tool_calls"),
    body(
        {"content": "", "tool_calls": [{"id": "d", "function": CHAT_CALL["function"]}, CHAT_CALL]},
        finish_reason="tool_calls",
    ),
    body({"content": "<think>hm</think>hi", "reasoning_content": "first", "refusal": None}, finish_reason="length"),
    body({"content": "hi", "reasoning": "hm", "annotations": [{"type": "url_citation", "url_citation": {"url": "u"}}]}),
    body({"content": None, "refusal": "no"}, finish_reason="content_filter", unknown={"a": 1}),
    body({"content": "hi", "policy_version": 3, "unknown": 1}, logprobs=LOGPROBS),
    body({"content": "hi"}, usage={**CHAT_USAGE, "prompt_tokens_details": {"cached_tokens": 1}, "cost": 0.1}),
    body({"content": "hi"}, usage={**CHAT_USAGE, "reasoning_tokens": 1, "completion_tokens_details": None}),
    body({"content": "hi"}, usage={**CHAT_USAGE, "completion_tokens_details": {"reasoning_tokens": None}}),
]
OTHER = [
    body({"content": "hi"}, finish_reason="eos"),
    body({"content": "hi"}, usage={**CHAT_USAGE, "prompt_tokens": -1}),
    body({"content": None, "tool_calls": [CHAT_CALL, CHAT_CALL]}),
    body({"content": None, "tool_calls": [{**CHAT_CALL, "function": {"name": "look", "arguments": {}}}]}),
    body({"content": None, "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "n", "input": "i"}}]}),
    body({"content": None, "function_call": CHAT_CALL["function"]}),
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
