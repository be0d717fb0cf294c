"""A request that a handler called directly takes is the one that FastAPI would have validated."""

import json
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from nemo_gym.servers.models.model_requests import SentOptions, UnreadRequest

CALL = {"type": "function_call", "id": "fc", "call_id": "c", "name": "look", "arguments": "{}", "status": "completed"}
KEPT = {"type": "reasoning", "id": "rs", "summary": [], "unknown_item": {"type": "web_search_call", "id": "w"}}
THOUGHT = {"type": "reasoning", "id": "rs", "summary": [], "status": "completed"}
USER = {"role": "user", "content": "hi"}

REQUESTS = [
    '{"input": "hello"}',
    ' {"input": "caf\u00e9 \\u00e9", "temperature": 1.0}\n',
    '{"input": "deep", "metadata": ' + '{"a": [' * 150 + "]}" * 150 + "}",
    json.dumps({"tools": [], "input": [USER, CALL]}),
    '{"input": [{"type": 7}], "max_output_tokens": 123456789012345678901234567890}',
    '{"input": [{"ty\\u0070e": "r\\u0065asoning", "status": "completed", "id": "r", "summary": []}]}',
    json.dumps({"input": [{"role": "assistant", "content": "b", "type": "message"}], "top_k": 5}),
    '{"input": "hello", "mod\\u0065l": "another"}',
]
# Requests that a direct call leaves to FastAPI, which accepts them.
ODD = [
    '{"input": 7}',
    '{"input": null}',
    '{"input": [1]}',
    '{"input": "x", "stream": false}',
    '{"input": "x", "top_p": NaN}',
    '{"input": [{"role": "user", "content": "half of a pair: \\ud800"}]}',
]


def validated(text: str) -> UnreadRequest:
    """The way through FastAPI: parsed, then validated."""
    return TypeAdapter(UnreadRequest).validate_python(json.loads(text))


@pytest.mark.parametrize("defaults", [{}, {"temperature": 0.5, "top_p": 0.9}])
@pytest.mark.parametrize("text", REQUESTS)
def test_a_request_is_sent_alike_whether_fastapi_validated_it_or_not(text: str, defaults: dict[str, Any]) -> None:
    request = UnreadRequest.read(text.encode())
    assert request.fields == validated(text).fields
    sent = json.loads(request.sent_to("mine", defaults))
    assert sent == json.loads(validated(text).sent_to("mine", defaults))
    assert sent["model"] == "mine"
    for name in ("max_output_tokens", "model", "temperature", "tools"):
        options = SentOptions(request, "mine", defaults)
        assert options.get(name) == SentOptions(validated(text), "mine", defaults).get(name) == sent.get(name)


def test_items_are_sent_as_an_endpoint_takes_them_and_stay_as_they_came() -> None:
    assistant = {"role": "assistant", "content": "b"}
    items = [USER, THOUGHT, CALL, assistant, KEPT]
    request = UnreadRequest.read(json.dumps({"input": items}).encode())
    thought = {name: value for name, value in THOUGHT.items() if name != "status"}
    assert json.loads(request.sent_to("mine", {}))["input"] == [
        USER,
        thought,
        CALL,
        {**assistant, "type": "message"},
        KEPT["unknown_item"],
    ]
    assert request.fields["input"] == items


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "null", "{", "{}", '{"inputs": "hello"}', '{"input": "hello", "banana": 5}'),
        *('{"input": "hello"} {}', '{"input": "hello", "stream": true}'),
    ],
)
def test_what_fastapi_refuses_is_refused_in_a_direct_call(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - FastAPI finds the reason
        UnreadRequest.read(text.encode())
    with pytest.raises((ValidationError, ValueError)):
        validated(text)


@pytest.mark.parametrize("text", ODD)
def test_what_is_merely_odd_is_left_to_fastapi(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - FastAPI decides
        UnreadRequest.read(text.encode())
    assert validated(text).fields["input"] == json.loads(text)["input"]


def test_a_request_that_needs_no_change_is_passed_on_as_it_came() -> None:
    text = json.dumps({"tools": [], "input": [USER, CALL]})
    assert UnreadRequest.read(text.encode()).sent_to("mine", {}) == b'{"model":"mine",' + text[1:].encode()


@pytest.mark.parametrize("text", [b'{"input": "\xff"}', b"[" * 100_000])
def test_what_is_not_json_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - FastAPI finds the reason
        UnreadRequest.read(text)
