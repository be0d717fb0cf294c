"""Lets a server of the Responses API answer requests of Anthropic's Messages API. Pure.

Converts the request to the Responses API, and the response to a message, whole or as the events of a stream.
"""

import hashlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from nemo_gym.conversion.answer_events import encode_event
from nemo_gym.conversion.anthropic.blocks import (
    are_citations,
    arguments_to_input,
    block_to_part,
    input_to_arguments,
    part_to_block,
)
from nemo_gym.conversion.losses import (
    ANNOTATIONS_ANSWERED,
    CACHE_CONTROL,
    DOCUMENT_CITATIONS,
    DOCUMENT_CONTEXT,
    IS_ERROR,
)
from nemo_gym.conversion.parts import reasoning_texts
from nemo_gym.schemas.responses import SPENT

# Options that only Chat Completions has besides, and their names there.
_EXTRAS: Final = {"stop_sequences": "stop", "top_k": "top_k"}
_SAME: Final = {"model": "model", "max_tokens": "max_output_tokens", "temperature": "temperature", "top_p": "top_p"}
_CHOICES: Final = {"auto": "auto", "none": "none", "any": "required"}
REDACTED: Final = "rs_redacted_"


_KNOWN: Final = frozenset(
    {*_SAME, *_EXTRAS, "messages", "system", "tools", "tool_choice", "stream", "thinking", "metadata", "output_config"}
)


_TOOL_KEYS: Final = frozenset({"type", "name", "description", "input_schema", "strict", "cache_control"})


class ConvertedRequest(NamedTuple):
    """A request of the Responses API, and the names of what got lost."""

    asked: dict[str, Any]
    lost: list[str]


def messages_to_request(body: Mapping[str, Any], *, extras: Container[str] = ()) -> ConvertedRequest:
    """The same request for the Responses API; keys without a value count as left out.

    ``extras`` names options besides those of the Responses API that can be carried all the same.
    """
    items = [item for message in body["messages"] for item in _message_to_items(message)]
    asked: dict[str, Any] = {"input": items}
    asked |= {other: body[name] for name, other in _SAME.items() if body.get(name) is not None}
    system = body.get("system")
    if system:
        asked["instructions"] = system if isinstance(system, str) else "\n".join(block["text"] for block in system)
    lost = [name for name, value in body.items() if value and name not in _KNOWN]
    for name, other in _EXTRAS.items():
        if body.get(name) and other in extras:
            asked[other] = body[name]
        elif body.get(name):
            lost.append(name)
    lost += _add_options(asked, body) + list(lost_in_blocks(body["messages"]))
    if _has_cache_marks(body.get("system")) or _has_cache_marks(body.get("tools")):
        lost.append(CACHE_CONTROL)
    tools = body.get("tools") or []
    functions = [tool for tool in tools if tool.get("input_schema") is not None]
    lost += [f"tools.{tool.get('type')}" for tool in tools if tool.get("input_schema") is None]
    lost += [f"options of tools: {name}" for tool in functions for name in tool if name not in _TOOL_KEYS]
    if functions:
        asked["tools"] = [_tool(tool) for tool in functions]
        _add_choice(asked, body.get("tool_choice") or {"type": "auto"})
    return ConvertedRequest(asked, list(dict.fromkeys(lost)))


def _add_options(asked: dict[str, Any], body: Mapping[str, Any]) -> list[str]:
    """Add what the Responses API calls by other names; gives what it has no names for."""
    metadata = dict(body.get("metadata") or {})
    if metadata.pop("user_id", None):
        asked["user"] = body["metadata"]["user_id"]
    config = dict(body.get("output_config") or {})
    effort, wanted = config.pop("effort", None), config.pop("format", None)
    if effort:
        asked["reasoning"] = {"effort": effort}
    if wanted:
        # The name is required there, and unknown here.
        asked["text"] = {"format": {"name": "answer", "strict": True, **wanted}}
    lost = ["thinking"] if (body.get("thinking") or {}).get("type") == "enabled" else []
    lost += [f"metadata.{name}" for name in metadata]
    return lost + [f"output_config.{name}" for name, value in config.items() if value]


def lost_in_blocks(messages: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """What blocks say besides their content, and the Responses API cannot."""
    for message in messages:
        for block in message["content"] if isinstance(message["content"], list) else ():
            if "cache_control" in block:
                yield CACHE_CONTROL
            if block.get("is_error"):
                yield IS_ERROR
            if block["type"] == "document":
                if (block.get("citations") or {}).get("enabled"):
                    yield DOCUMENT_CITATIONS
                if block.get("context"):
                    yield DOCUMENT_CONTEXT


def _has_cache_marks(blocks: Any) -> bool:
    return isinstance(blocks, list) and any("cache_control" in block for block in blocks)


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    # The Responses API is strict by default, but these schemas were not written for that.
    function = {"type": "function", "name": tool["name"], "parameters": tool["input_schema"]}
    described = {"description": tool["description"]} if tool.get("description") is not None else {}
    return {**function, **described, "strict": bool(tool.get("strict"))}


def _add_choice(asked: dict[str, Any], choice: Mapping[str, Any]) -> None:
    kind = choice["type"]
    asked["tool_choice"] = {"type": "function", "name": choice["name"]} if kind == "tool" else _CHOICES[kind]
    if choice.get("disable_parallel_tool_use"):
        asked["parallel_tool_calls"] = False


def _message_to_items(message: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """The items of a message, in order. Consecutive texts and images stay together."""
    role, content = message["role"], message["content"]
    if isinstance(content, str):
        yield {"role": role, "content": content, "type": "message"}
        return
    together: list[Mapping[str, Any]] = []
    for block in content:
        item = _block_to_item(block)
        if item is None:
            together.append(block)
            continue
        if together:
            yield _said(role, together)
            together = []
        yield item
    if together:
        yield _said(role, together)


def _said(role: str, blocks: list[Mapping[str, Any]]) -> dict[str, Any]:
    parts = [block_to_part(block) for block in blocks]
    if role == "assistant":  # its own words go back without the bookkeeping of an output message
        for part, block in zip(parts, blocks, strict=True):
            if "text" in part:
                part["type"] = "output_text"
                if block.get("citations"):
                    part["annotations"] = block["citations"]
    return {"role": role, "content": parts, "type": "message"}


def _block_to_item(block: Mapping[str, Any]) -> dict[str, Any] | None:
    match block["type"]:
        case "tool_use":
            arguments = input_to_arguments(block["input"])
            return {"type": "function_call", "call_id": block["id"], "name": block["name"], "arguments": arguments}
        case "tool_result":
            output = _result(block.get("content")) or ("error" if block.get("is_error") else "")
            return {"type": "function_call_output", "call_id": block["tool_use_id"], "output": output}
        case "thinking":
            summary = [{"type": "summary_text", "text": block["thinking"]}] if block["thinking"] else []
            return _reasoning("rs_", summary, block.get("signature") or None, block["thinking"])
        case "redacted_thinking":
            return _reasoning(REDACTED, [], block["data"], block["data"])
    return None


def _reasoning(prefix: str, summary: list[dict[str, Any]], proof: str | None, seed: str) -> dict[str, Any]:
    """Blocks have no ids, so the id is a hash of the content and stays the same whenever the history is sent."""
    name = hashlib.blake2b((proof or seed).encode(), digest_size=16).hexdigest()
    item = {"type": "reasoning", "id": prefix + name, "summary": summary}
    return item | ({"encrypted_content": proof} if proof else {})


def _result(content: Any) -> str | list[dict[str, Any]]:
    if content is None or isinstance(content, str):
        return content or ""
    if all(block["type"] == "text" for block in content):
        return "".join(block["text"] for block in content)
    return [block_to_part(block) for block in content]


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


def lost_in_answer(response: Mapping[str, Any]) -> list[str]:
    """What a message can't say of a response."""
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    notes = [part["annotations"] for part in parts if part.get("annotations")]
    return [] if all(map(are_citations, notes)) else [ANNOTATIONS_ANSWERED]


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


def event_bytes(events: Iterator[dict[str, Any]]) -> bytes:
    """The events as the body of a ``text/event-stream``."""
    return b"".join(map(encode_event, events))
