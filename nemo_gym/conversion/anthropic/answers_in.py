"""A message of Anthropic's Messages API as a response. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from nemo_gym.conversion.anthropic.blocks import input_to_arguments
from nemo_gym.conversion.anthropic.requests_in import REDACTED
from nemo_gym.conversion.completion import response_to, response_usage
from nemo_gym.conversion.kept import keep_item
from nemo_gym.conversion.repair import FALSE_USAGE, is_true
from nemo_gym.conversion.to_responses import Item, NewId
from nemo_gym.schemas.anthropic import AnthropicMessage, AnthropicUsage

_INCOMPLETE: Final = {
    "max_tokens": "max_output_tokens",
    "model_context_window_exceeded": "max_output_tokens",
    "refusal": "content_filter",
    "pause_turn": "pause_turn",
}


def message_to_response(
    message: AnthropicMessage, asked: Mapping[str, Any], *, new_id: NewId, created_at: float, model: str
) -> dict[str, Any]:
    """The response that says what a message says."""
    return response_to(
        asked,
        message_to_items(message.content, new_id),
        id=f"resp_{new_id()}",
        created_at=created_at,
        model=model,
        reason=_INCOMPLETE.get(message.stop_reason or ""),
        usage=_usage(message.usage),
    )


def message_to_items(content: Iterable[Mapping[str, Any]], new_id: NewId) -> list[Item]:
    """The blocks of an answer as items, at least one; texts that follow each other are one message."""
    items: list[Item] = []
    for position, block in enumerate(content):
        if block["type"] == "text":
            if not items or items[-1]["type"] != "message":
                items.append(_message(new_id))
            part = {"annotations": block.get("citations") or [], "text": block["text"], "type": "output_text"}
            items[-1]["content"].append(part)
        else:
            items.append(_item(block, position, new_id))
    if not items:
        items.append(_message(new_id))
        items[-1]["content"].append({"annotations": [], "text": "", "type": "output_text"})
    return items


def _message(new_id: NewId) -> Item:
    return {"id": f"msg_{new_id()}", "content": [], "role": "assistant", "status": "completed", "type": "message"}


def _item(block: Mapping[str, Any], position: int, new_id: NewId) -> Item:
    match block["type"]:
        case "thinking":
            texts = [block["thinking"]] if block["thinking"] else []
            summary = [{"text": text, "type": "summary_text"} for text in texts]
            proof = {"encrypted_content": block["signature"]} if block.get("signature") else {}
            return {"id": f"rs_{new_id()}", "summary": summary, "type": "reasoning", **proof}
        case "redacted_thinking":
            return {
                "id": f"{REDACTED}{new_id()}",
                "summary": [],
                "type": "reasoning",
                "encrypted_content": block["data"],
            }
        case "tool_use":
            return {
                "arguments": input_to_arguments(block["input"]),
                "call_id": block["id"],
                "name": block["name"],
                "type": "function_call",
                "id": block["id"],
                "status": "completed",
            }
    return keep_item(block, position=position)


def _usage(usage: AnthropicUsage) -> dict[str, Any] | None:
    cached, written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
    if not is_true((usage.input_tokens, usage.output_tokens, cached, written)):
        return None
    details = (usage.model_extra or {}).get("output_tokens_details")
    thinking = details.get("thinking_tokens") if isinstance(details, dict) else None
    return response_usage(
        usage.input_tokens + cached + written,
        usage.output_tokens,
        cached=cached,
        reasoning=thinking if isinstance(thinking, int) else 0,
    )


def notes_on(message: AnthropicMessage) -> Iterator[str]:
    """What a person should know about how a message was read."""
    known = {"text", "thinking", "redacted_thinking", "tool_use"}
    for block in message.content:
        if block.get("type") not in known:
            yield f"blocks of type {block.get('type')}: they are kept, not understood"
    if _usage(message.usage) is None:
        yield FALSE_USAGE
