"""Converts a request of the Responses API, its conversation and its options, to Anthropic's Messages API. Pure.

The Messages API requires user and assistant to alternate, every tool result to follow its call directly, and call ids
to be plain and unique. So consecutive items of one side are collected into one message, and ids are changed where
necessary, on the call and on its result.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from nemo_gym.conversion.anthropic.blocks import are_citations, arguments_to_input, part_to_block
from nemo_gym.conversion.anthropic.serving import REDACTED
from nemo_gym.conversion.chat_answers import LOGPROBS
from nemo_gym.conversion.losses import (
    ANNOTATIONS,
    LATE_INSTRUCTIONS,
    LOGPROBS_SAID,
    PHASE,
    UNSIGNED,
    lost_in_call,
    lost_in_parts,
    lost_in_tool,
)
from nemo_gym.conversion.parts import callable_choice, choice_without_tools, reasoning_texts
from nemo_gym.conversion.unknown_items import unknown_item

_NOT_PLAIN: Final = re.compile(r"[^a-zA-Z0-9_-]")
_INSTRUCTING: Final = ("system", "developer")


@dataclass
class MessageHistory:
    """The messages, the instructions before the first of them, and what has no equivalent."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    system: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)  # of calls
    has_begun: bool = False  # there are messages before these
    _open_calls: dict[str, list[str]] = field(default_factory=dict)

    @property
    def ends_with_user(self) -> bool:
        """Whether the assistant's next words start a new message."""
        return bool(self.messages) and self.messages[-1]["role"] == "user"

    @property
    def awaits_results(self) -> bool:
        """Whether a call has no result yet."""
        return any(self._open_calls.values())

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
    add_items(items, history)
    history.lost = list(dict.fromkeys(history.lost))
    return history


def add_items(items: str | Sequence[Mapping[str, Any]], history: MessageHistory) -> None:
    """Append items to messages."""
    if isinstance(items, str):
        history.add("user", [{"type": "text", "text": items}])
        return
    for item in items:
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
                content = _blocks(item["output"], history)
                name = history.name_result(item["call_id"])
                history.append("user", {"type": "tool_result", "tool_use_id": name, "content": content})
            case "reasoning":
                history.add("assistant", _thoughts(item, history))
            case other:
                history.lost.append(f"items of type {other}")


def _add_message(item: Mapping[str, Any], history: MessageHistory) -> None:
    role, blocks = item["role"], _blocks(item["content"], history)
    if role in _INSTRUCTING:
        if not history.messages and not history.has_begun and all(block["type"] == "text" for block in blocks):
            history.system.append("".join(block["text"] for block in blocks))
            return
        history.lost.append(LATE_INSTRUCTIONS)
        role = "user"
    if item.get("phase"):
        history.lost.append(PHASE)
    history.add(role, blocks)


def _blocks(content: str | Sequence[Mapping[str, Any]], history: MessageHistory) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    history.lost += lost_in_parts(content)
    for part in content:
        if part.get("logprobs"):
            history.lost.append(LOGPROBS_SAID)
        notes = part.get("annotations")
        if notes and not are_citations(notes):
            history.lost.append(ANNOTATIONS)
    return [part_to_block(part) for part in content]


def _thoughts(item: Mapping[str, Any], history: MessageHistory) -> list[dict[str, Any]]:
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


_SAME: Final = ("temperature", "top_p", "top_k")
_CARRIED: Final = frozenset(
    {
        *_SAME,
        "input",
        "instructions",
        "max_output_tokens",
        "model",
        "parallel_tool_calls",
        "reasoning",
        "safety_identifier",
    }
    | {"stop", "stream", "text", "tool_choice", "tools", "user"}
)
# Default values, which can be left out without losing anything.
_HARMLESS: Final[Mapping[str, tuple[Any, ...]]] = {
    "background": (False,),
    # Endpoints of this protocol always return encrypted reasoning.
    "include": ([], ["reasoning.encrypted_content"]),
    "prompt": ({},),
    "chat_template_kwargs": ({},),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "metadata": ({},),
    "presence_penalty": (0,),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "truncation": ("disabled",),
}
_EFFORTS: Final = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "max"}
_CHOICES: Final = {"auto": "auto", "none": "none", "required": "any"}


class MessagesRequest(NamedTuple):
    """A request of the Messages API, and the names of what has no equivalent there."""

    body: dict[str, Any]
    lost: list[str]


def request_to_messages(asked: Mapping[str, Any], *, max_tokens: int) -> MessagesRequest:
    """The same request for the Messages API; ``max_tokens`` is the limit for a request that sets none."""
    given = {name: value for name, value in asked.items() if value is not None}
    history = history_to_messages(given["input"])
    body: dict[str, Any] = {"messages": history.messages, "max_tokens": given.get("max_output_tokens", max_tokens)}
    body |= {name: given[name] for name in _SAME if name in given}
    system = [*([given["instructions"]] if given.get("instructions") else []), *history.system]
    if system:
        body["system"] = "\n\n".join(system)
    user = given.get("user") or given.get("safety_identifier")
    if user:
        body["metadata"] = {"user_id": user}
    if given.get("stop"):
        body["stop_sequences"] = [given["stop"]] if isinstance(given["stop"], str) else list(given["stop"])
    unknown = [_named(name, given[name]) for name in given if name not in _CARRIED]
    lost = [name for name in unknown if name] + history.lost
    if given.get("safety_identifier", user) != user:
        lost.append("safety_identifier")
    lost += _add_output_config(body, given.get("reasoning", {}), given.get("text", {}))
    lost += _add_tools(body, given)
    return MessagesRequest(body, lost)


def _named(name: str, value: Any) -> str | None:
    """The name of an option that is lost; None if it asks for nothing special."""
    if value in _HARMLESS.get(name, ()):
        return None
    return f"include.{LOGPROBS}" if name == "include" and LOGPROBS in value else name


def _add_output_config(body: dict[str, Any], reasoning: Mapping[str, Any], text: Mapping[str, Any]) -> list[str]:
    config: dict[str, Any] = {}
    lost = []
    effort = reasoning.get("effort")
    if effort in _EFFORTS:
        config["effort"] = _EFFORTS[effort]
    elif effort not in (None, "none"):
        lost.append("reasoning.effort")
    lost += [f"reasoning.{name}" for name, value in reasoning.items() if name != "effort" and value is not None]
    wanted = text.get("format") or {"type": "text"}
    if wanted["type"] == "json_schema":
        config["format"] = {"type": "json_schema", "schema": wanted["schema"]}
    elif wanted["type"] != "text":
        lost.append(f"text.format {wanted['type']}")
    lost += [f"text.{name}" for name, value in text.items() if name != "format" and value is not None]
    if config:
        body["output_config"] = config
    return lost


def _add_tools(body: dict[str, Any], given: Mapping[str, Any]) -> list[str]:
    tools = given.get("tools", [])
    functions = [tool for tool in tools if tool["type"] == "function"]
    lost = [f"tools.{tool['type']}" for tool in tools if tool["type"] != "function"]
    lost += [name for tool in functions for name in lost_in_tool(tool)]
    lost += choice_without_tools(given.get("tool_choice", "auto"), tools)
    wanted, lost_choices = callable_choice(given.get("tool_choice", "auto"), ("function",))
    lost += lost_choices
    if not isinstance(wanted, str | None) and wanted["type"] == "allowed_tools":
        # Offering the others as well would say that the model may call them.
        allowed = [tool.get("name") for tool in wanted["tools"]]
        named = {tool["name"] for tool in functions}
        lost += [f"tool_choice.allowed_tools {name}" for name in allowed if name not in named]
        functions = [tool for tool in functions if tool["name"] in allowed]
    if functions:
        body["tools"] = [_tool(tool) for tool in functions]
        choice = _tool_choice(wanted or "auto")
        if given.get("parallel_tool_calls") is False and choice["type"] != "none":
            choice["disable_parallel_tool_use"] = True
        if choice != {"type": "auto"}:
            body["tool_choice"] = choice
    return lost


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    schema = tool.get("parameters") or {"type": "object", "properties": {}}
    described = {"description": tool["description"]} if tool.get("description") else {}
    strict = {"strict": True} if tool.get("strict") else {}
    return {"name": tool["name"], **described, "input_schema": schema, **strict}


def _tool_choice(choice: str | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(choice, str):
        return {"type": _CHOICES[choice]}
    if choice.get("type") == "function":
        return {"type": "tool", "name": choice["name"]}
    return {"type": "any" if choice.get("mode") == "required" else "auto"}
