"""A body that is passed on unread says the same as one that was validated first."""

import json
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from nemo_gym.conversion.request_texts import LONG
from nemo_gym.servers.models.answering import ConvertedParams, ForwardedParams
from responses_api_agents.simple_agent.app import ForwardedRow

CALL = {"type": "function_call", "id": "fc", "call_id": "c", "name": "look", "arguments": "{}", "status": "completed"}
KEPT = {"type": "reasoning", "id": "rs", "summary": [], "unknown_item": {"type": "web_search_call", "id": "w"}}
THOUGHT = {"type": "reasoning", "id": "rs", "summary": [], "status": "completed"}

# Requests that both ways accept, and whether they can go as they came.
REQUESTS = [
    ('{"input": "hello"}', True),
    (' {"input": "caf\u00e9 \\u00e9", "temperature": 1.0}\n', True),
    ('{"input": "deep", "metadata": ' + '{"a": [' * 150 + "]}" * 150 + "}", True),
    (json.dumps({"tools": [], "input": [{"role": "user", "content": "hi"}, CALL]}), True),
    (json.dumps({"input": [{"role": "user", "content": 'the words "reasoning" and "model"'}]}), True),
    ('{"input": [{"type": 7}], "max_output_tokens": 123456789012345678901234567890}', True),
    (json.dumps({"input": [THOUGHT, CALL]}), False),
    ('{"input": [{"ty\\u0070e": "r\\u0065asoning", "status": "completed", "id": "r", "summary": []}]}', False),
    (json.dumps({"input": [KEPT]}), False),
    (json.dumps({"input": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}), False),
    (json.dumps({"input": [{"role": "assistant", "content": "b", "type": "message"}], "top_k": 5}), True),
    (json.dumps({"input": "hello", "model": "another"}), False),
    ('{"input": "hello", "mod\\u0065l": "another"}', False),
]


def slowly(text: str) -> ForwardedParams:
    """The way through FastAPI: parsed, then validated."""
    return TypeAdapter(ForwardedParams).validate_python(json.loads(text))


@pytest.mark.parametrize("defaults", [{}, {"temperature": 0.5, "top_p": 0.9}])
@pytest.mark.parametrize(("text", "as_it_came"), REQUESTS)
def test_a_request_is_sent_alike_whether_it_was_read_or_not(
    text: str, as_it_came: bool, defaults: dict[str, Any]
) -> None:
    sent = ForwardedParams.read(text.encode()).sent_to("mine", defaults)
    assert json.loads(sent) == json.loads(slowly(text).sent_to("mine", defaults))
    assert json.loads(sent)["model"] == "mine"
    assert sent.endswith(text.lstrip()[1:].encode()) == (as_it_came and not defaults)


@pytest.mark.parametrize(("text", "as_it_came"), REQUESTS)
def test_an_unread_request_has_the_fields_of_a_validated_one(text: str, as_it_came: bool) -> None:
    assert ForwardedParams.read(text.encode()).asked() == slowly(text).asked()


@pytest.mark.parametrize(("text", "as_it_came"), REQUESTS)
@pytest.mark.parametrize("name", ["max_output_tokens", "temperature", "tools", "top_p"])
def test_an_option_is_the_same_read_alone_or_with_the_rest(text: str, as_it_came: bool, name: str) -> None:
    assert ForwardedParams.read(text.encode()).option(name, "default") == slowly(text).option(name, "default")


@pytest.mark.parametrize(("text", "as_it_came"), REQUESTS)
@pytest.mark.parametrize("padding", ["", " " * LONG])
def test_a_request_that_is_converted_is_read_whole_or_in_parts(text: str, as_it_came: bool, padding: str) -> None:
    request = ConvertedParams.read(f"{padding}{text}".encode())
    asked = dict(request.options)
    if request.split is not None:
        asked["input"] = json.loads(request.split.conversation)
    assert asked == request.asked() == slowly(text).asked()


def test_a_growing_conversation_is_sent_alike_whether_its_beginning_is_known_or_not() -> None:
    said = {"role": "user", "content": "x" * LONG}
    items = [said, CALL, said, THOUGHT, CALL, {"role": "assistant", "content": "b"}, said, KEPT, CALL, said]
    for defaults in ({}, {"top_p": 0.9}):
        for length in range(1, len(items) + 1):
            for _ in range(2):
                text = json.dumps({"input": items[:length], "temperature": length})
                sent = ForwardedParams.read(text.encode()).sent_to("mine", defaults)
                assert json.loads(sent) == json.loads(slowly(text).sent_to("mine", defaults))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "{", "{}", '{"inputs": "hello"}', '{"input": "hello", "banana": 5}', '{"input": "hello"} {}'],
)
def test_what_validation_refuses_is_refused_unread(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - asks for the long way, which finds the words
        ForwardedParams.read(text.encode())
    with pytest.raises((ValidationError, ValueError)):
        slowly(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"input": 7}',
        '{"input": null}',
        '{"input": [1]}',
        '{"input": "x", "stream": false}',
        '{"input": "x", "top_p": NaN}',
        '{"input": [{"role": "user", "content": "half of a pair: \\ud800"}]}',
    ],
)
def test_what_is_merely_odd_takes_the_long_way(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - asks for the long way
        ForwardedParams.read(text.encode())
    assert slowly(text).asked()["input"] == json.loads(text)["input"]


def test_bytes_that_are_not_utf_8_take_the_long_way() -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - asks for the long way
        ForwardedParams.read(b'{"input": "\xff"}')
    with pytest.raises(ValueError):  # noqa: PT011
        ForwardedParams.read(b"[" * 100_000)


def test_a_row_is_passed_on_as_it_came() -> None:
    text = b' {"responses_create_params": {"input": "hi"}, "answer": 1.50, "extra": {"a": [1]}} '
    row = ForwardedRow.read(text)
    validated = TypeAdapter(ForwardedRow).validate_python(json.loads(text))
    assert row.text == text
    assert row.params == validated.params == {"input": "hi"}
    assert json.loads(validated.text) == json.loads(text)


@pytest.mark.parametrize("text", [b"{}", b'{"responses_create_params": []}', b'{"responses_create_params": null}'])
def test_a_row_without_a_request_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - asks for the long way, which finds the words
        ForwardedRow.read(text)
    with pytest.raises(ValidationError):
        TypeAdapter(ForwardedRow).validate_python(json.loads(text))
