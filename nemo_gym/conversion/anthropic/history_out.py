"""A conversation of items as messages of Anthropic's Messages API. Pure.

The Messages API wants user and assistant in turn, every tool result right after its call, and names of calls that are
plain and never repeat. So items of one side are collected into one message, and names are changed where they have to
be, on the call and on its result.
"""

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from nemo_gym.conversion.anthropic.blocks import arguments_to_input, part_to_block
from nemo_gym.conversion.anthropic.requests_in import REDACTED
from nemo_gym.conversion.kept import kept_item
from nemo_gym.conversion.reasoning import reasoning_texts

_NOT_PLAIN: Final = re.compile(r"[^a-zA-Z0-9_-]")
_INSTRUCTING: Final = ("system", "developer")


@dataclass
class History:
    """Messages, what was said before the first of them, and what could not be said."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    system: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    _open_calls: dict[str, deque[str]] = field(default_factory=dict)
    _names: set[str] = field(default_factory=set)

    def add(self, role: str, blocks: Iterable[dict[str, Any]]) -> None:
        """Append to what a side says; blocks of text without text are refused by endpoints."""
        kept = [block for block in blocks if block["type"] != "text" or block["text"]]
        if not kept:
            return
        if self.messages and self.messages[-1]["role"] == role:
            self.messages[-1]["content"] += kept
        else:
            self.messages.append({"role": role, "content": kept})

    def name_call(self, call_id: str) -> str:
        """The name of a call in this protocol."""
        plain = name = _NOT_PLAIN.sub("_", call_id) or "call"
        number = 1
        while name in self._names:
            number += 1
            name = f"{plain}_{number}"
        self._names.add(name)
        self._open_calls.setdefault(call_id, deque()).append(name)
        return name

    def name_result(self, call_id: str) -> str:
        """The name of the call that a result belongs to: of several with the same id, the first without a result."""
        waiting = self._open_calls.get(call_id)
        return waiting.popleft() if waiting else _NOT_PLAIN.sub("_", call_id) or "call"


def history_to_messages(items: str | Sequence[Mapping[str, Any]]) -> History:
    """All items as messages."""
    history = History()
    if isinstance(items, str):
        history.add("user", [{"type": "text", "text": items}])
        return history
    for item in items:
        match item.get("type") or "message":
            case "message":
                _add_message(item, history)
            case "function_call":
                given = arguments_to_input(item["arguments"])
                name = history.name_call(item["call_id"])
                history.add("assistant", [{"type": "tool_use", "id": name, "name": item["name"], "input": given}])
            case "function_call_output":
                content = _blocks(item["output"])
                name = history.name_result(item["call_id"])
                history.add("user", [{"type": "tool_result", "tool_use_id": name, "content": content}])
            case "reasoning":
                history.add("assistant", _thoughts(item, history))
            case other:
                history.lost.append(f"items of type {other}")
    return history


def _add_message(item: Mapping[str, Any], history: History) -> None:
    role, blocks = item["role"], _blocks(item["content"])
    if role in _INSTRUCTING:
        if not history.messages and all(block["type"] == "text" for block in blocks):
            history.system.append("".join(block["text"] for block in blocks))
            return
        history.lost.append("the role of instructions after the first message")
        role = "user"
    history.add(role, blocks)


def _blocks(content: str | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [part_to_block(part) for part in content]


def _thoughts(item: Mapping[str, Any], history: History) -> list[dict[str, Any]]:
    """Reasoning goes back only with the proof of where it came from; endpoints refuse any other."""
    kept = kept_item(item)
    if kept is not None:
        return [dict(kept)]
    proof = item.get("encrypted_content")
    if not proof:
        if reasoning_texts(item):
            history.lost.append("reasoning without a signature")
        return []
    if str(item.get("id")).startswith(REDACTED):
        return [{"type": "redacted_thinking", "data": proof}]
    return [{"type": "thinking", "thinking": "\n".join(reasoning_texts(item)), "signature": proof}]
