"""A request of Anthropic's Messages API as a request of the Responses API. Pure."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from nemo_gym.conversion.anthropic.blocks import block_to_part, input_to_arguments

# Options that change what the model says, and that the Responses API has no words for.
_LOST: Final = ("stop_sequences", "top_k", "thinking", "mcp_servers", "container")
_SAME: Final = {"model": "model", "max_tokens": "max_output_tokens", "temperature": "temperature", "top_p": "top_p"}
_CHOICES: Final = {"auto": "auto", "none": "none", "any": "required"}
REDACTED: Final = "rs_redacted_"


class ResponsesRequest(NamedTuple):
    """A request of the Responses API, and the names of the options that got lost."""

    asked: dict[str, Any]
    lost: list[str]


def messages_to_request(body: Mapping[str, Any]) -> ResponsesRequest:
    """The same request for the Responses API; the keys without a value count as left out."""
    items = [item for message in body["messages"] for item in _message_to_items(message)]
    asked: dict[str, Any] = {"input": items}
    asked |= {other: body[name] for name, other in _SAME.items() if body.get(name) is not None}
    system = body.get("system")
    if system:
        asked["instructions"] = system if isinstance(system, str) else "\n".join(block["text"] for block in system)
    lost = [name for name in _LOST if body.get(name)]
    tools = body.get("tools") or []
    functions = [tool for tool in tools if tool.get("input_schema") is not None]
    lost += [f"tools.{tool.get('type')}" for tool in tools if tool.get("input_schema") is None]
    if functions:
        asked["tools"] = [_tool(tool) for tool in functions]
        _add_choice(asked, body.get("tool_choice") or {"type": "auto"})
    return ResponsesRequest(asked, lost)


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    # Strict unless somebody says otherwise is the other protocol's rule; these schemas were not written for it.
    function = {"type": "function", "name": tool["name"], "parameters": tool["input_schema"]}
    described = {"description": tool["description"]} if tool.get("description") is not None else {}
    return {**function, **described, "strict": bool(tool.get("strict"))}


def _add_choice(asked: dict[str, Any], choice: Mapping[str, Any]) -> None:
    kind = choice["type"]
    asked["tool_choice"] = {"type": "function", "name": choice["name"]} if kind == "tool" else _CHOICES[kind]
    if choice.get("disable_parallel_tool_use"):
        asked["parallel_tool_calls"] = False


def _message_to_items(message: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """The items of a message, in its order; texts and images that follow each other stay together."""
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
        parts = [part | {"type": "output_text"} if "text" in part else part for part in parts]
    return {"role": role, "content": parts, "type": "message"}


def _block_to_item(block: Mapping[str, Any]) -> dict[str, Any] | None:
    match block["type"]:
        case "tool_use":
            arguments = input_to_arguments(block["input"])
            return {"type": "function_call", "call_id": block["id"], "name": block["name"], "arguments": arguments}
        case "tool_result":
            output = _result(block.get("content"))
            return {"type": "function_call_output", "call_id": block["tool_use_id"], "output": output}
        case "thinking":
            summary = [{"type": "summary_text", "text": block["thinking"]}] if block["thinking"] else []
            return _reasoning("rs_", summary, block.get("signature") or None, block["thinking"])
        case "redacted_thinking":
            return _reasoning(REDACTED, [], block["data"], block["data"])
    return None


def _reasoning(prefix: str, summary: list[dict[str, Any]], proof: str | None, seed: str) -> dict[str, Any]:
    """Blocks have no ids; one made from the content is the same whenever the history is sent."""
    name = hashlib.blake2b((proof or seed).encode(), digest_size=16).hexdigest()
    item = {"type": "reasoning", "id": prefix + name, "summary": summary}
    return item | ({"encrypted_content": proof} if proof else {})


def _result(content: Any) -> str | list[dict[str, Any]]:
    if content is None or isinstance(content, str):
        return content or ""
    if all(block["type"] == "text" for block in content):
        return "".join(block["text"] for block in content)
    return [block_to_part(block) for block in content]
