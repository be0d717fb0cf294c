"""Chat messages as items of a conversation. Pure: items are dictionaries, and have no key without a value."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nemo_gym.conversion.parts import joined_text, parts_to_responses
from nemo_gym.conversion.reasoning import extract_reasoning, separate_reasoning
from nemo_gym.conversion.to_chat import TOKEN_FIELDS

Item = dict[str, Any]
NewId = Callable[[], str]


def assistant_to_items(message: Mapping[str, Any], new_id: NewId) -> list[Item]:
    """An assistant message as reasoning, text and tool calls, in this order; at least one item."""
    get = message.get
    content = get("content")
    thoughts, text = extract_reasoning(content if isinstance(content, str) else joined_text(content))
    if get("reasoning_content") or get("reasoning"):
        thoughts = [separate_reasoning(message), *thoughts]
    items: list[Item] = []
    if thoughts:
        summary = [{"text": thought, "type": "summary_text"} for thought in thoughts]
        items.append({"id": f"rs_{new_id()}", "summary": summary, "type": "reasoning"})
    refusal = get("refusal")
    calls = get("tool_calls") or _only_call(message, new_id)
    if text or refusal or not (thoughts or calls):
        items.append(_message(text, refusal, new_id))
    items += map(_call, calls)
    return items


def _call(call: Mapping[str, Any]) -> Item:
    function, name = call["function"], call["id"]
    return {
        "arguments": function["arguments"],
        "call_id": name,
        "name": function["name"],
        "type": "function_call",
        "id": name,
        "status": "completed",
    }


def _only_call(message: Mapping[str, Any], new_id: NewId) -> list[Item]:
    """The call in the form that was usual before there were several."""
    function = message.get("function_call")
    return [{"id": f"call_{new_id()}", "function": function}] if function else []


def _message(text: str, refusal: str | None, new_id: NewId) -> Item:
    parts: list[dict[str, Any]] = []
    if text or not refusal:
        parts.append({"annotations": [], "text": text, "type": "output_text"})
    if refusal:
        parts.append({"refusal": refusal, "type": "refusal"})
    return {"id": f"msg_{new_id()}", "content": parts, "role": "assistant", "status": "completed", "type": "message"}


def with_tokens(items: list[Item], message: Mapping[str, Any]) -> list[Item]:
    """The items of one model call, the last of them with the tokens of the call, if the message has any."""
    if message.get("generation_token_ids") is not None:
        items[-1] |= {name: message[name] for name in TOKEN_FIELDS if message.get(name) is not None}
    return items


def messages_to_items(
    messages: Iterable[Mapping[str, Any]], assistant: Callable[[Mapping[str, Any]], list[Item]]
) -> list[Item]:
    """A chat history as items; ``assistant`` converts the messages of the assistant."""
    items: list[Item] = []
    for message in messages:
        role = message["role"]
        if role == "assistant":
            items += assistant(message)
            continue
        content = message.get("content") or ""
        if not isinstance(content, str):
            content = parts_to_responses(content)
        if role == "tool":
            items.append({"call_id": message["tool_call_id"], "output": content, "type": "function_call_output"})
        else:
            items.append({"content": content, "role": role, "type": "message"})
    return items
