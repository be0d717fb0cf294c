"""The events of Anthropic's Messages API, read as the whole message they amount to. Pure."""

from collections.abc import Iterator
from typing import Any, Final

import orjson

_GROWING: Final = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


def message_of_stream(events: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
    """The message that the events add up to; None if they end before it does."""
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
            blocks[index]["input"] = text  # as the model wrote it
    return [blocks[index] for index in sorted(blocks)]
