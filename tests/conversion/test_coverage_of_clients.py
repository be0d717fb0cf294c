"""Whatever the installed clients can say is carried to another protocol, or named as a loss, or refused.

The types of the packages are enumerated, so a newer package with something new in it fails here until it is handled.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import pytest
from anthropic.types import ContentBlockParam
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from openai.types.chat import ChatCompletionContentPartParam
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from openai.types.responses import ResponseInputContentParam, ResponseInputItemParam, ToolParam
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming, ToolChoice

from nemo_gym.conversion.anthropic.message_requests import messages_to_request, request_to_messages
from nemo_gym.conversion.chat_history import ResponsesConverterState, items_to_messages
from nemo_gym.conversion.chat_requests import chat_to_request, options_to_chat
from nemo_gym.conversion.losses import Way, find_loss
from nemo_gym.conversion.parts import UnsupportedContentError, parts_to_responses
from nemo_gym.responses_converter import ResponsesConverter
from nemo_gym.servers.models.model_requests import REQUEST_KEYS

Converted = tuple[Any, list[str]]  # what is sent, and the names of what is lost
CONVERTER = ResponsesConverter(return_token_id_information=False)
USER = {"role": "user", "content": "hi"}
# Ids and states of items, which no other protocol needs; a result repeats the name of its call.
BOOKKEEPING = {"id", "status", "type", "role"}
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": True}


def to_chat(asked: Mapping[str, Any]) -> Converted:
    options, lost = options_to_chat(asked, keep_strict=True, custom_tools=True)
    state = ResponsesConverterState(past_reasoning="separate", custom_tools=True)
    messages = items_to_messages([USER] if asked["input"] == "hi" else asked["input"], state)
    if asked.get("instructions"):
        messages.insert(0, {"role": "system", "content": asked["instructions"]})
    lost = [*lost, *state.lost, *state.remarks]
    for name in lost:
        find_loss(Way.TO_CHAT, name)
    return {"messages": messages, **options}, lost


def to_messages(asked: Mapping[str, Any]) -> Converted:
    body, lost = request_to_messages(asked, max_tokens=7)
    for name in lost:
        find_loss(Way.TO_MESSAGES, name)
    return body, lost


WAYS = pytest.mark.parametrize("convert", [to_chat, to_messages])


def members(union: Any) -> Iterator[Any]:
    """The types in a union, however it is nested."""
    if get_origin(union) is Annotated:
        union = get_args(union)[0]
    if isinstance(union, type) or get_origin(union) is Literal:
        yield union
    else:
        for one in get_args(union):
            yield from members(one)


def kinds(union: Any) -> dict[str, Any]:
    """The types in a union by what their ``type`` says."""
    found = {}
    for one in members(union):
        hint = get_type_hints(one).get("type") if isinstance(one, type) else None
        for kind in (value for literal in members(hint) for value in get_args(literal)) if hint else ():
            found[kind] = one
    return found


def is_handled(convert: Callable[[Mapping[str, Any]], Converted], base: Any, changed: Any) -> bool:
    """Whether a change of a request changes what is sent, or is named, or refused."""
    try:
        sent, lost = convert(changed)
    except UnsupportedContentError:
        return True
    before, already_lost = convert(base)
    return bool(sent != before or set(lost) - set(already_lost) or any("items of type" in name for name in lost))


def test_the_types_are_found() -> None:
    assert {"message", "function_call", "item_reference", "compaction"} <= kinds(ResponseInputItemParam).keys()
    assert {"function", "mcp", "web_search"} <= kinds(ToolParam).keys()


# ---- items ----------------------------------------------------------------------------------------------------------
TEXT = {"type": "output_text", "text": "yes", "annotations": []}
ITEMS: dict[str, dict[str, Any]] = {
    "message": {"type": "message", "role": "assistant", "content": [TEXT]},
    "function_call": {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    "function_call_output": {"type": "function_call_output", "call_id": "c", "output": "1"},
    "custom_tool_call": {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"},
    "custom_tool_call_output": {"type": "custom_tool_call_output", "call_id": "c", "output": "1"},
    "reasoning": {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
}
VALUES: dict[str, Any] = {
    "content": [{"type": "reasoning_text", "text": "new"}],
    "summary": [{"type": "summary_text", "text": "new"}],
    "arguments": '{"new": 1}',
}


@WAYS
@pytest.mark.parametrize("kind", sorted(kinds(ResponseInputItemParam).keys() - ITEMS.keys()))
def test_an_item_without_an_equivalent_is_named(convert: Any, kind: str) -> None:
    _, lost = convert({"input": [USER, {"type": kind, "id": "i", "call_id": "c"}]})
    assert lost == [f"items of type {kind}"]


@WAYS
@pytest.mark.parametrize("kind", sorted(ITEMS))
def test_every_field_of_an_item_is_carried_or_named(convert: Any, kind: str) -> None:
    item = ITEMS[kind]
    if kind == "reasoning" and convert is to_messages:
        item = item | {"encrypted_content": "signed"}  # else it is lost as a whole
    fields = {name for one in members(ResponseInputItemParam) for name in _fields(one, kind)} - BOOKKEEPING
    if kind == "function_call_output":
        fields -= {"name"}
    for field in fields:
        value = VALUES.get(field, "new") if kind != "message" or field != "content" else "new"
        base = {"input": [USER, item]}
        assert is_handled(convert, base, {"input": [USER, {**item, field: value}]}), field


def _fields(item: type, kind: str) -> set[str]:
    hints = get_type_hints(item)
    return set(hints) if kind in kinds(item) else set()


@WAYS
@pytest.mark.parametrize("kind", sorted(kinds(ResponseInputContentParam)))
def test_every_field_of_a_part_is_carried_or_named(convert: Any, kind: str) -> None:
    part = {"type": kind} | {"input_text": {"text": "x"}, "input_image": {"image_url": "https://a/b.png"}}.get(
        kind, {"file_data": "data:text/plain;base64,eA=="}
    )
    for field in get_type_hints(kinds(ResponseInputContentParam)[kind]).keys() - {"type"}:
        changed = part | {field: "https://new"}
        if field in ("file_id", "file_url"):  # instead of the content
            changed = {name: value for name, value in changed.items() if name not in ("image_url", "file_data")}
        base, other = ({"input": [{"role": "user", "content": [one]}]} for one in (part, changed))
        assert is_handled(convert, base, other), field


# ---- options --------------------------------------------------------------------------------------------------------
OPTIONS: dict[str, Any] = {
    "input": "bye",
    "include": ["message.output_text.logprobs"],
    "reasoning": {"effort": "high"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
    "tools": [FUNCTION],
    "tool_choice": "required",
    "max_output_tokens": 9,
    "metadata": {"a": "b"},
    "parallel_tool_calls": False,
}


@WAYS
@pytest.mark.parametrize("name", sorted(get_type_hints(ResponseCreateParamsNonStreaming).keys() - {"stream", "model"}))
def test_every_option_of_a_response_is_carried_or_named_or_refused(convert: Any, name: str) -> None:
    base: dict[str, Any] = {"input": "hi"}
    if name in ("tool_choice", "parallel_tool_calls"):
        base["tools"] = [FUNCTION]
    if name == "input":
        base, changed = {"input": [USER]}, {"input": [{**USER, "content": "bye"}]}
    else:
        changed = base | {name: OPTIONS.get(name, "new")}
    if name in REQUEST_KEYS:
        assert is_handled(convert, base, changed)
    else:
        assert name == "stream_options"  # refused, as there is no stream


@WAYS
@pytest.mark.parametrize("kind", sorted(kinds(ToolParam)))
def test_every_tool_is_carried_or_named(convert: Any, kind: str) -> None:
    tool = {"type": kind, "name": "g"}
    assert is_handled(convert, {"input": "hi", "tools": [FUNCTION]}, {"input": "hi", "tools": [FUNCTION, tool]})


@WAYS
def test_every_option_of_a_function_is_carried_or_named(convert: Any) -> None:
    for field in get_type_hints(kinds(ToolParam)["function"]).keys() - {"type"}:
        changed = FUNCTION | {field: False if field == "strict" else "new"}
        base, other = ({"input": "hi", "tools": [one]} for one in (FUNCTION, changed))
        assert is_handled(convert, base, other), field


@WAYS
@pytest.mark.parametrize("kind", sorted(kinds(ToolChoice)))
def test_every_choice_of_tools_is_carried_or_named(convert: Any, kind: str) -> None:
    base = {"input": "hi", "tools": [FUNCTION, FUNCTION | {"name": "g"}]}
    choice = {"type": kind, "name": "f", "mode": "required", "tools": [{"type": "function", "name": "f"}]}
    assert is_handled(convert, base, base | {"tool_choice": choice})


# ---- from the other protocols ---------------------------------------------------------------------------------------
def from_chat(chat: Mapping[str, Any]) -> Converted:
    asked, lost = chat_to_request(chat, CONVERTER.history_to_items)
    for name in lost:
        find_loss(Way.FROM_CHAT, name)
    return asked, lost


CHAT_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CHAT_OPTIONS: dict[str, Any] = {
    "messages": [{**USER, "content": "bye"}],
    "response_format": {"type": "json_object"},
    "tools": [CHAT_TOOL],
    "tool_choice": "required",
}


@pytest.mark.parametrize("name", sorted(get_type_hints(CompletionCreateParamsNonStreaming)))
def test_every_option_of_a_chat_is_carried_or_named(name: str) -> None:
    base: dict[str, Any] = {"messages": [USER]} | ({"tools": [CHAT_TOOL]} if name == "tool_choice" else {})
    if name not in ("stream", "stream_options"):  # these are the model server's own
        assert is_handled(from_chat, base, base | {name: CHAT_OPTIONS.get(name, "new")})


@pytest.mark.parametrize("kind", sorted(kinds(ChatCompletionContentPartParam)))
def test_every_part_of_a_chat_is_carried(kind: str) -> None:
    inner = {"text": "x", "image_url": {"url": "u"}, "input_audio": {"data": "d"}, "file": {"file_id": "f"}}
    part = {"type": kind, kind: inner[kind]}
    for field in get_type_hints(kinds(ChatCompletionContentPartParam)[kind]).keys() - {"type", kind}:
        assert field in parts_to_responses([part | {field: "new"}])[0]


def from_messages(body: Mapping[str, Any]) -> Converted:
    asked, lost = messages_to_request(body)
    for name in lost:
        find_loss(Way.FROM_MESSAGES, name)
    return asked, lost


MESSAGES_OPTIONS: dict[str, Any] = {
    "messages": [{**USER, "content": "bye"}],
    "metadata": {"user_id": "u"},
    "output_config": {"effort": "high"},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "tools": [{"name": "f", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "any"},
}


@pytest.mark.parametrize("name", sorted(get_type_hints(MessageCreateParamsNonStreaming).keys() - {"stream", "model"}))
def test_every_option_of_a_message_is_carried_or_named(name: str) -> None:
    base: dict[str, Any] = {"messages": [USER], "max_tokens": 7}
    base |= {"tools": MESSAGES_OPTIONS["tools"]} if name == "tool_choice" else {}
    assert is_handled(from_messages, base, base | {name: MESSAGES_OPTIONS.get(name, "new")})


@pytest.mark.parametrize("kind", sorted(kinds(ContentBlockParam)))
def test_every_block_of_a_message_is_carried_or_refused(kind: str) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "AA=="}
    block = {"type": kind, "text": "x", "thinking": "x", "data": "x", "id": "i", "name": "f", "input": {}}
    block |= {"tool_use_id": "i", "content": "x", "source": source}
    base: dict[str, Any] = {"messages": [USER], "max_tokens": 7}
    assert is_handled(from_messages, base, base | {"messages": [USER, {"role": "user", "content": [block]}]})
