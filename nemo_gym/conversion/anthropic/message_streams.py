"""Streams of Anthropic's Messages API: the events of a message, and the message that events add up to. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson


def message_events(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of a stream that adds up to the message."""
    started = {**message, "content": [], "stop_reason": None, "usage": {**message["usage"], "output_tokens": 0}}
    yield {"type": "message_start", "message": started}
    for index, block in enumerate(message["content"]):
        empty, deltas = _unfold(block)
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ending = {"stop_reason": message["stop_reason"], "stop_sequence": message.get("stop_sequence")}
    yield {"type": "message_delta", "delta": ending, "usage": dict(message["usage"])}
    yield {"type": "message_stop"}


def _unfold(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The empty block that starts a stream, and the deltas that fill it."""
    match block["type"]:
        case "text":
            return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
        case "thinking":
            deltas = [{"type": "thinking_delta", "thinking": block["thinking"]}]
            signed = {"type": "signature_delta", "signature": block.get("signature") or ""}
            return {**block, "thinking": "", "signature": ""}, [*deltas, signed]
        case "tool_use":
            given = orjson.dumps(block["input"]).decode()
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": given}]
    return dict(block), []


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
