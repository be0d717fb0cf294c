"""The quick way to recognize a response may refuse what is fine, but passes on nothing that the general way changes."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.conversion.plain_responses import is_plain_response
from nemo_gym.conversion.reading import mark_cut_off, missing_completion, read_response

MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Hello.", "annotations": []}],
}
CALL = {"type": "function_call", "call_id": "call_1", "name": "look_up", "arguments": "{}", "id": "fc_1"}
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
    "output": [CALL, MESSAGE],
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


def test_what_endpoints_usually_send_is_plain() -> None:
    assert is_plain_response(encoded(), None)
    assert is_plain_response(encoded(output=[MESSAGE], usage=None, temperature=0.5, tool_choice="none"), 4)


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "failed"},
        {"status": "incomplete"},
        {"error": {"message": "no"}},
        {"output": [CALL, CALL]},
        {"output": [{**CALL, "generation_token_ids": [1]}]},
        {"output": [{"type": "web_search_call", "id": "ws_1"}]},
        {"output": [{**MESSAGE, "role": "user"}]},
        {"max_output_tokens": 4},
        {"usage": {**USAGE, "total_tokens": -1}},
        {"temperature": float("nan")},
    ],
    ids=str,
)
def test_whatever_needs_a_closer_look_is_not(changes: dict[str, Any]) -> None:
    assert not is_plain_response(encoded(**changes), None)


@pytest.mark.parametrize("content", [b"", b"<html>", b"[]", encoded()[:-1], b"data: {}\n\n", b'{"id": "\xff"}'])
def test_what_is_not_a_response_at_all_is_not(content: bytes) -> None:
    assert not is_plain_response(content, None)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 4) | st.floats(allow_nan=False) | st.sampled_from(["", "x", "auto"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["id", "type", "text"]), inner),
    max_leaves=4,
)
PLACES = [
    *((name,) for name in RESPONSE),
    *(("output", n, name) for n, item in enumerate((CALL, MESSAGE)) for name in item),
    *(("usage", name) for name in USAGE),
    ("output", 1, "content", 0, "text"),
    ("output", 1, "content", 0, "annotations"),
]


@given(place=st.sampled_from(PLACES), value=VALUES, drop=st.booleans(), limit=st.sampled_from([None, 4, 5]))
def test_what_it_accepts_the_general_way_passes_on_unchanged(
    place: tuple[Any, ...], value: Any, drop: bool, limit: int | None
) -> None:
    payload = json.loads(encoded())
    inner = payload
    for step in place[:-1]:
        inner = inner[step]
    if drop:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    content = orjson.dumps(payload)
    if is_plain_response(content, limit):
        request = {"max_output_tokens": limit}
        reading = read_response(content, request)
        assert not reading.is_repaired
        assert missing_completion(reading.response) is None
        assert not mark_cut_off(reading.response, request)
