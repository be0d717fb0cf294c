"""A response as a message of Anthropic's Messages API, whole or as the events of a stream. Pure."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from nemo_gym.conversion.anthropic.blocks import arguments_to_input
from nemo_gym.conversion.anthropic.requests_in import REDACTED
from nemo_gym.conversion.reasoning import reasoning_texts

_STOP_REASONS: Final = {"max_output_tokens": "max_tokens", "content_filter": "refusal"}


def response_to_message(response: Mapping[str, Any]) -> dict[str, Any]:
    """The message that says what a response says."""
    output = response["output"]
    usage = response.get("usage") or {}
    return {
        # Made from the response's id, so that the same response is the same message.
        "id": f"msg_{_name(response['id'])}",
        "type": "message",
        "role": "assistant",
        "model": response["model"],
        "content": [block for item in output for block in _blocks(item)],
        "stop_reason": _stop_reason(output, response.get("incomplete_details") or {}),
        "stop_sequence": None,
        "usage": {
            "input_tokens": usage.get("input_tokens") or 0,
            "output_tokens": usage.get("output_tokens") or 0,
        },
    }


def _name(response_id: str) -> str:
    given = response_id.removeprefix("resp_")
    is_hex = bool(given) and all(digit in "0123456789abcdef" for digit in given)
    return given if is_hex else hashlib.blake2b(response_id.encode(), digest_size=16).hexdigest()


def _blocks(item: Mapping[str, Any]) -> list[dict[str, Any]]:
    match item["type"]:
        case "message":
            texts = [part.get("text") or part.get("refusal") or "" for part in item["content"]]
            return [{"type": "text", "text": text} for text in texts if text]
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
    """A block as it begins, and what is added to it."""
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


def event_bytes(events: Iterator[dict[str, Any]]) -> bytes:
    """The events as the body of a ``text/event-stream``."""
    return b"".join(b"event: %s\ndata: %s\n\n" % (event["type"].encode(), orjson.dumps(event)) for event in events)
