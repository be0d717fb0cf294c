"""Converts conversations between items of the Responses API and messages of Anthropic's Messages API. Pure.

The Messages API requires user and assistant to alternate, every tool result to follow its call directly, and call ids
to be plain and unique. So consecutive items of one side are collected into one message, and ids are changed where
necessary, on the call and on its result.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from nemo_gym.conversion.anthropic.blocks import (
    are_citations,
    arguments_to_input,
    block_to_part,
    input_to_arguments,
    part_to_block,
)
from nemo_gym.conversion.losses import (
    ANNOTATIONS,
    LATE_INSTRUCTIONS,
    PAST_LOGPROBS,
    PHASE,
    UNSIGNED,
    lost_in_call,
    lost_in_parts,
)
from nemo_gym.conversion.parts import reasoning_texts, unknown_item

REDACTED: Final = "rs_redacted_"
_NOT_PLAIN: Final = re.compile(r"[^a-zA-Z0-9_-]")
_INSTRUCTING: Final = ("system", "developer")


@dataclass
class MessageHistory:
    """The messages, the instructions before the first of them, and what has no equivalent."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    system: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)  # of calls
    _open_calls: dict[str, list[str]] = field(default_factory=dict)

    def add(self, role: str, blocks: Iterable[dict[str, Any]]) -> None:
        """Append blocks to a side's message. Empty text blocks are left out, because endpoints refuse them."""
        for block in blocks:
            if block["type"] != "text" or block["text"]:
                self.append(role, block)

    def append(self, role: str, block: dict[str, Any]) -> None:
        """Append a block to a side's message."""
        last = self.messages[-1] if self.messages else None
        if last is not None and last["role"] == role:
            last["content"].append(block)
        else:
            self.messages.append({"role": role, "content": [block]})

    def name_call(self, call_id: str) -> str:
        """A plain and unique id for a call."""
        plain = name = _NOT_PLAIN.sub("_", call_id) or "call"
        number = 1
        while name in self.names:
            number += 1
            name = f"{plain}_{number}"
        self.names.add(name)
        if call_id in self._open_calls:
            self._open_calls[call_id].append(name)
        else:
            self._open_calls[call_id] = [name]
        return name

    def name_result(self, call_id: str) -> str:
        """The id of the call that a result belongs to: of several with the same id, the first without a result."""
        waiting = self._open_calls.get(call_id)
        return waiting.pop(0) if waiting else _NOT_PLAIN.sub("_", call_id) or "call"


def history_to_messages(items: str | Sequence[Mapping[str, Any]]) -> MessageHistory:
    """All items as messages."""
    history = MessageHistory()
    for item in [{"role": "user", "content": items}] if isinstance(items, str) else items:
        _add_item(item, history)
    history.lost = list(dict.fromkeys(history.lost))
    return history


def _add_item(item: Mapping[str, Any], history: MessageHistory) -> None:
    match item.get("type") or "message":
        case "message":
            _add_message(item, history)
        case "function_call":
            history.lost += lost_in_call(item)
            given = arguments_to_input(item["arguments"])
            name = history.name_call(item["call_id"])
            history.append("assistant", {"type": "tool_use", "id": name, "name": item["name"], "input": given})
        case "function_call_output":
            history.lost += lost_in_call(item)
            content = _blocks_of(item["output"], history)
            name = history.name_result(item["call_id"])
            history.append("user", {"type": "tool_result", "tool_use_id": name, "content": content})
        case "reasoning":
            history.add("assistant", _signed_thoughts(item, history))
        case other:
            history.lost.append(f"items of type {other}")


def _add_message(item: Mapping[str, Any], history: MessageHistory) -> None:
    role, blocks = item["role"], _blocks_of(item["content"], history)
    if role in _INSTRUCTING:
        if not history.messages and all(block["type"] == "text" for block in blocks):
            history.system.append("".join(block["text"] for block in blocks))
            return
        history.lost.append(LATE_INSTRUCTIONS)
        role = "user"
    if item.get("phase"):
        history.lost.append(PHASE)
    history.add(role, blocks)


def _blocks_of(content: str | Sequence[Mapping[str, Any]], history: MessageHistory) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    history.lost += lost_in_parts(content)
    for part in content:
        if part.get("logprobs"):
            history.lost.append(PAST_LOGPROBS)
        notes = part.get("annotations")
        if notes and not are_citations(notes):
            history.lost.append(ANNOTATIONS)
    return [part_to_block(part) for part in content]


def _signed_thoughts(item: Mapping[str, Any], history: MessageHistory) -> list[dict[str, Any]]:
    """Reasoning is sent back only with its signature, because endpoints refuse reasoning without one."""
    wrapped = unknown_item(item)
    if wrapped is not None:
        return [dict(wrapped)]
    proof = item.get("encrypted_content")
    if not proof:
        if reasoning_texts(item):
            history.lost.append(UNSIGNED)
        return []
    if str(item.get("id")).startswith(REDACTED):
        return [{"type": "redacted_thinking", "data": proof}]
    return [{"type": "thinking", "thinking": "\n".join(reasoning_texts(item)), "signature": proof}]


def messages_to_history(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """All messages as items."""
    return [item for message in messages for item in _message_to_items(message)]


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
            yield _message_item(role, together)
            together = []
        yield item
    if together:
        yield _message_item(role, together)


def _message_item(role: str, blocks: list[Mapping[str, Any]]) -> dict[str, Any]:
    parts = [block_to_part(block) for block in blocks]
    if role == "assistant":  # its own text goes back without the bookkeeping of an output message
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
