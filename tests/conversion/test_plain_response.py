"""The quick check of a response may refuse what is fine, but never accepts what the long way would not."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.conversion.plain_response import is_plain_response
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
