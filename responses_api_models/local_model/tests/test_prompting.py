"""A chat becomes messages that every template understands."""

from typing import Any

import pytest

from nemo_gym.conversion.parts import UnsupportedContentError
from responses_api_models.local_model.prompting import plain_messages, shows_calls
from responses_api_models.local_model.tool_calls import Tool

TOOL = Tool("add", "Adds.", {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
CALL: dict[str, Any] = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"n": 1}'}}
WRITTEN = '<tool_call>{"name": "add", "arguments": {"n": 1}}</tool_call>'


def test_only_three_roles_remain() -> None:
    chat = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "1 + "}, {"type": "text", "text": "1?"}]},
        {"role": "assistant", "content": "Hm. ", "tool_calls": [CALL, CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "2"},
        {"role": "tool", "tool_call_id": "c", "content": "3"},
        {"role": "assistant", "content": None},
    ]
    assert plain_messages(chat) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": f"Hm. {WRITTEN}\n{WRITTEN}"},
        {"role": "user", "content": "<tool_response>2</tool_response>\n<tool_response>3</tool_response>"},
        {"role": "assistant", "content": ""},
    ]


def test_tools_are_described_in_the_first_system_message() -> None:
    [described, *_] = plain_messages(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "?"}], [TOOL]
    )
    assert described["content"].startswith("Be brief.\n\nYou can call tools.")
    [described, *_, question] = plain_messages([{"role": "user", "content": "?"}], [TOOL])
    assert described["content"].endswith("add(n: integer): Adds.")
    assert question == {"role": "user", "content": "?"}


def test_examples_are_shown_until_the_conversation_has_its_own() -> None:
    ask = {"role": "user", "content": "?"}
    call = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "c", "content": "2"}
    first = plain_messages([ask], [TOOL])
    second = plain_messages([ask, call, result], [TOOL])
    assert second[: len(first)] == first
    shown = plain_messages([ask, call, result, {"role": "assistant", "content": "2"}, ask], [TOOL])
    assert [message["role"] for message in shown] == ["system", "user", "assistant", "user", "assistant", "user"]


def test_the_start_of_a_conversation_is_the_same_seen_from_its_end() -> None:
    ask = {"role": "user", "content": "?"}
    call = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    chat = [
        ask,
        call,
        {"role": "tool", "tool_call_id": "c", "content": "2"},
        {"role": "assistant", "content": "2"},
        ask,
    ]
    for count in range(1, len(chat)):
        start = plain_messages(chat[:count], [TOOL], examples=not shows_calls(chat))
        assert plain_messages(chat, [TOOL])[: len(start)] == start


def test_what_is_no_text_is_refused() -> None:
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
    with pytest.raises(UnsupportedContentError, match="image_url"):
        plain_messages([image])
