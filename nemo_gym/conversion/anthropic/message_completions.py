"""Converts completions between Anthropic's Messages API and the Responses API. Pure."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from nemo_gym.conversion.anthropic.blocks import are_citations, arguments_to_input, input_to_arguments, part_to_block
from nemo_gym.conversion.anthropic.message_history import REDACTED
from nemo_gym.conversion.losses import COMPLETION_ANNOTATIONS
from nemo_gym.conversion.new_responses import Item, MakeId, response_to, response_usage
from nemo_gym.conversion.parts import reasoning_texts, wrap_unknown_item
from nemo_gym.conversion.reading import FALSE_USAGE, is_true
from nemo_gym.schemas.messages import AnthropicMessage, AnthropicUsage
from nemo_gym.schemas.rows import SPENT

_INCOMPLETE: Final = {
    "max_tokens": "max_output_tokens",
    "model_context_window_exceeded": "max_output_tokens",
    "refusal": "content_filter",
    "pause_turn": "pause_turn",
}
_FINISHED: Final = frozenset({*_INCOMPLETE, "end_turn", "stop_sequence", "tool_use"})


def unknown_stop(message: AnthropicMessage) -> str | None:
    """The reason why a message ended, if it is not a known one: then the message may be incomplete."""
    reason = message.stop_reason
    return None if reason is None or reason in _FINISHED else reason


def message_to_response(
    message: AnthropicMessage, request: Mapping[str, Any], *, new_id: MakeId, created_at: float, model: str
) -> dict[str, Any]:
    """The response with the same content as a message."""
    return response_to(
        request,
        message_to_items(message.content, new_id),
        id=f"resp_{new_id()}",
        created_at=created_at,
        model=model,
        reason=_INCOMPLETE.get(message.stop_reason or ""),
        usage=_response_usage_of(message.usage),
    )


def message_to_items(content: Iterable[Mapping[str, Any]], new_id: MakeId) -> list[Item]:
    """The blocks of a message as items, at least one. Consecutive texts become one message."""
    items: list[Item] = []
    for position, block in enumerate(content):
        if block["type"] == "text":
            if not items or items[-1]["type"] != "message":
                items.append(_output_message(new_id))
            part = {"annotations": block.get("citations") or [], "text": block["text"], "type": "output_text"}
            items[-1]["content"].append(part)
        else:
            items.append(_block_item(block, position, new_id))
    if not items:
        items.append(_output_message(new_id))
        items[-1]["content"].append({"annotations": [], "text": "", "type": "output_text"})
    return items


def _output_message(new_id: MakeId) -> Item:
    return {"id": f"msg_{new_id()}", "content": [], "role": "assistant", "status": "completed", "type": "message"}


def _block_item(block: Mapping[str, Any], position: int, new_id: MakeId) -> Item:
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
    return wrap_unknown_item(block, position=position)


def _response_usage_of(usage: AnthropicUsage) -> dict[str, Any] | None:
    cached, written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
    if not is_true((usage.input_tokens, usage.output_tokens, cached, written)):
        return None
    details = getattr(usage, "output_tokens_details", None)  # among the extras of a model
    thinking = details.get("thinking_tokens") if isinstance(details, dict) else None
    return response_usage(
        usage.input_tokens + cached + written,
        usage.output_tokens,
        cached=cached,
        reasoning=thinking if isinstance(thinking, int) else 0,
    )


def notes_on(message: AnthropicMessage) -> Iterator[str]:
    """Notes for people about how a message was read."""
    known = {"text", "thinking", "redacted_thinking", "tool_use"}
    for block in message.content:
        if block.get("type") not in known:
            yield f"blocks of type {block.get('type')}, which are kept but not understood"
    if _response_usage_of(message.usage) is None:
        yield FALSE_USAGE


_STOP_REASONS: Final = {"max_output_tokens": "max_tokens", "content_filter": "refusal"}


def response_to_message(response: Mapping[str, Any]) -> dict[str, Any]:
    """The message with the same content as a response."""
    output = response["output"]
    return {
        # Derived from the response's id, so that the same response always gives the same message.
        "id": f"msg_{_name(response['id'])}",
        "type": "message",
        "role": "assistant",
        "model": response["model"],
        "content": [block for item in output for block in _blocks(item)],
        "stop_reason": _stop_reason(output, response.get("incomplete_details") or {}),
        "stop_sequence": None,
        "usage": _usage(response.get("usage") or {}),
    }


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Token counts; in this protocol, cached tokens are counted apart. What was paid for is named as elsewhere."""
    read, written = usage.get("input_tokens") or 0, usage.get("output_tokens") or 0
    cached = (usage.get("input_tokens_details") or {}).get("cached_tokens") or 0
    paid = {SPENT: usage[SPENT]} if SPENT in usage else {}
    if not 0 < cached <= read:
        return {"input_tokens": read, "output_tokens": written, **paid}
    return {"input_tokens": read - cached, "cache_read_input_tokens": cached, "output_tokens": written, **paid}


def lost_in_completion(response: Mapping[str, Any]) -> list[str]:
    """What a message can't say of a response."""
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    notes = [part["annotations"] for part in parts if part.get("annotations")]
    return [] if all(map(are_citations, notes)) else [COMPLETION_ANNOTATIONS]


def _name(response_id: str) -> str:
    given = response_id.removeprefix("resp_")
    is_hex = bool(given) and all(digit in "0123456789abcdef" for digit in given)
    return given if is_hex else hashlib.blake2b(response_id.encode(), digest_size=16).hexdigest()


def _blocks(item: Mapping[str, Any]) -> list[dict[str, Any]]:
    match item["type"]:
        case "message":
            blocks = [part_to_block(part) for part in item["content"]]
            return [block for block in blocks if block.get("text")]
        case "function_call":
            given = arguments_to_input(item["arguments"])
            return [{"type": "tool_use", "id": item["call_id"], "name": item["name"], "input": given}]
        case "reasoning":
            return _thoughts(item)
    return []


def _thoughts(item: Mapping[str, Any]) -> list[dict[str, Any]]:
    texts, proof = reasoning_texts(item), item.get("encrypted_content") or ""
    if item["id"].startswith(REDACTED):
        return [{"type": "redacted_thinking", "data": proof}]
    if not texts and not proof:
        return []
    return [{"type": "thinking", "thinking": "\n".join(texts), "signature": proof}]


def _stop_reason(output: Sequence[Mapping[str, Any]], incomplete: Mapping[str, Any]) -> str:
    if incomplete.get("reason"):
        return _STOP_REASONS.get(incomplete["reason"], "max_tokens")
    if any(item["type"] == "function_call" for item in output):
        return "tool_use"
    parts = [part for item in output if item["type"] == "message" for part in item["content"]]
    return "refusal" if any(part["type"] == "refusal" for part in parts) else "end_turn"
