"""Converts a message of Anthropic's Messages API, whole or as a stream of events, to a response. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
import orjson

from nemo_gym.conversion.anthropic.blocks import input_to_arguments
from nemo_gym.conversion.anthropic.serving import REDACTED
from nemo_gym.conversion.chat_answers import Item, MakeId, ResponseTemplate, response_to, response_usage
from nemo_gym.conversion.reading import FALSE_USAGE, is_true
from nemo_gym.conversion.unknown_items import wrap_unknown_item
from nemo_gym.schemas.messages import AnthropicMessage, AnthropicUsage

_INCOMPLETE: Final = {
    "max_tokens": "max_output_tokens",
    "model_context_window_exceeded": "max_output_tokens",
    "refusal": "content_filter",
    "pause_turn": "pause_turn",
}
_FINISHED: Final = frozenset({*_INCOMPLETE, "end_turn", "stop_sequence", "tool_use"})


_Count = Annotated[int, msgspec.Meta(ge=0)]
# The blocks that a plain message has, and what each of them must have.
_PLAIN_BLOCKS: Final[Mapping[str, Mapping[str, type]]] = {
    "text": {"text": str},
    "thinking": {"thinking": str},
    "tool_use": {"id": str, "name": str, "input": dict},
}


class _PlainUsage(msgspec.Struct, gc=False):
    input_tokens: _Count
    output_tokens: _Count
    cache_read_input_tokens: _Count | None = None
    cache_creation_input_tokens: _Count | None = None
    output_tokens_details: dict[str, Any] | None = None


class PlainMessage(msgspec.Struct, gc=False):
    """A message with only what endpoints usually send. What this accepts, ``AnthropicMessage`` accepts too."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    content: list[dict[str, Any]]
    model: str
    stop_reason: Literal["end_turn", "stop_sequence", "tool_use", "max_tokens"]
    usage: _PlainUsage


_decode = msgspec.json.Decoder(PlainMessage).decode


def read_plain_message(content: bytes) -> PlainMessage | None:
    """A message that is certainly valid, at a fraction of the cost of validating it; None if there is any doubt."""
    try:
        str(content, "utf-8")  # the decoder does not check strings that it skips
        message = _decode(content)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return None
    for block in message.content:
        needed = _PLAIN_BLOCKS.get(str(block.get("type")))
        if needed is None or not all(isinstance(block.get(name), kind) for name, kind in needed.items()):
            return None
    return message


def unknown_stop(message: AnthropicMessage) -> str | None:
    """The reason why a message ended, if it is not a known one: then the message may be incomplete."""
    reason = message.stop_reason
    return None if reason is None or reason in _FINISHED else reason


def message_to_response(
    message: AnthropicMessage, asked: Mapping[str, Any], *, new_id: MakeId, created_at: float, model: str
) -> dict[str, Any]:
    """The response with the same content as a message."""
    return response_to(
        asked,
        message_to_items(message.content, new_id),
        id=f"resp_{new_id()}",
        created_at=created_at,
        model=model,
        reason=_INCOMPLETE.get(message.stop_reason or ""),
        usage=_usage(message.usage),
    )


def message_to_text(
    message: AnthropicMessage | PlainMessage, template: ResponseTemplate, *, new_id: MakeId, created: int
) -> bytes:
    """The same as text, for requests whose responses are alike."""
    usage = _usage(message.usage)
    return template.join(
        message_to_items(message.content, new_id),
        id=f"resp_{new_id()}",
        created=created,
        reason=_INCOMPLETE.get(message.stop_reason or ""),
        usage=orjson.dumps(usage) if usage else b"null",
    )


def message_to_items(content: Iterable[Mapping[str, Any]], new_id: MakeId) -> list[Item]:
    """The blocks of an answer as items, at least one. Consecutive texts become one message."""
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


def _message(new_id: MakeId) -> Item:
    return {"id": f"msg_{new_id()}", "content": [], "role": "assistant", "status": "completed", "type": "message"}


def _item(block: Mapping[str, Any], position: int, new_id: MakeId) -> Item:
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


def _usage(usage: AnthropicUsage | _PlainUsage) -> dict[str, Any] | None:
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
    if _usage(message.usage) is None:
        yield FALSE_USAGE


_GROWING: Final = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


def message_of_stream(events: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
    """The message that the events add up to; None if they end before the message does."""
    message: dict[str, Any] | None = None
    blocks: dict[int, dict[str, Any]] = {}
    inputs: dict[int, str] = {}
    for event in events:
        match event.get("type"):
            case "message_start":
                message = dict(event["message"])
            case "content_block_start":
                blocks[event["index"]] = dict(event["content_block"])
            case "content_block_delta":
                _grow(blocks.setdefault(event["index"], {"type": "text", "text": ""}), event, inputs)
            case "message_delta" if message is not None:
                message |= event.get("delta") or {}
                message["usage"] = {**(message.get("usage") or {}), **(event.get("usage") or {})}
            case "message_stop" if message is not None:
                return message | {"content": _whole(blocks, inputs)}
    return None


def _grow(block: dict[str, Any], event: dict[str, Any], inputs: dict[int, str]) -> None:
    delta = event.get("delta") or {}
    kind = delta.get("type")
    if kind in _GROWING:
        name = _GROWING[kind]
        block[name] = (block.get(name) or "") + delta[name]
    elif kind == "input_json_delta":
        inputs[event["index"]] = inputs.get(event["index"], "") + delta["partial_json"]
    elif kind == "citations_delta":
        block["citations"] = [*(block.get("citations") or []), delta["citation"]]


def _whole(blocks: dict[int, dict[str, Any]], inputs: dict[int, str]) -> list[dict[str, Any]]:
    for index, text in inputs.items():
        try:
            blocks[index]["input"] = orjson.loads(text or "{}")
        except orjson.JSONDecodeError:
            blocks[index]["input"] = text  # invalid JSON is kept as the model wrote it
    return [blocks[index] for index in sorted(blocks)]
