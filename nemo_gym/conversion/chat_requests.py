"""Converts a request of the Responses API, its options and its conversation, to Chat Completions. Pure.

Options with another name are renamed; options without an equivalent are listed, so that the caller can report them.

The Responses API lists what a model did item by item; Chat Completions expects one assistant message per turn. So
reasoning, text and tool calls are collected and become a message when the turn ends.

Items are dictionaries, as on the wire: a long conversation is converted at every call, and that must not cost more than
parsing its JSON.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from nemo_gym.conversion.chat_answers import LOGPROBS
from nemo_gym.conversion.losses import (
    ANNOTATIONS,
    ENCRYPTED,
    LOGPROBS_SAID,
    PHASE,
    SUMMARY,
    lost_in_call,
    lost_in_parts,
    lost_in_tool,
    without_hosting,
)
from nemo_gym.conversion.parts import (
    REASONING_FIELDS,
    SAMPLING_EXTRAS,
    TOKEN_FIELDS,
    UnsupportedContentError,
    callable_choice,
    choice_without_tools,
    parts_to_chat,
    reasoning_texts,
    wrap_reasoning,
)
from nemo_gym.conversion.unknown_items import unknown_item

_SAME: Final = SAMPLING_EXTRAS | {
    *("metadata", "model", "service_tier", "store", "temperature", "top_p", "user", "stream"),
    *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier", "moderation"),
}
# Default values, which can be left out without losing anything.
_HARMLESS: Final[Mapping[str, tuple[Any, ...]]] = {
    "background": (False,),
    "prompt": ({},),
    "truncation": ("disabled",),
}
# Options that become part of something else.
_ELSEWHERE: Final = frozenset({"input", "instructions", "parallel_tool_calls"})
_WRAPPING: Final = ("type",)
_WRAPPING_AND_STRICT: Final = ("type", "strict")
_FORMAT_FIELDS: Final = ("name", "description", "schema", "strict")


class ChatOptions(NamedTuple):
    """Options for Chat Completions, and the names of those that have no equivalent there."""

    options: dict[str, Any]
    lost: list[str]


def options_to_chat(asked: Mapping[str, Any], *, keep_strict: bool = False, custom_tools: bool = False) -> ChatOptions:
    """All options that a request sets; everything but its conversation. ``custom_tools``: the endpoint knows those."""
    options: dict[str, Any] = {}
    lost: list[str] = []
    for name, value in asked.items():
        if value is None:
            continue
        if name in _SAME:
            options[name] = value
        elif name == "tool_choice":
            lost += choice_without_tools(value, asked.get("tools"))
        elif name == "tools":
            lost += _add_tools(options, asked, keep_strict=keep_strict, custom_tools=custom_tools)
        elif name in _CONVERTED:
            lost += _CONVERTED[name](options, value)
        elif name not in _ELSEWHERE and value not in _HARMLESS.get(name, ()):
            lost.append(name)
    return ChatOptions(options, lost)


def _add_limit(options: dict[str, Any], limit: int) -> list[str]:
    options["max_tokens"] = limit
    return []


def _add_scores(options: dict[str, Any], top: int) -> list[str]:
    options |= {"logprobs": True, "top_logprobs": top}
    return []


def _add_inclusions(options: dict[str, Any], wanted: Sequence[str]) -> list[str]:
    if LOGPROBS in wanted:
        options["logprobs"] = True
    return ["include"] if any(name != LOGPROBS for name in wanted) else []


def _add_reasoning(options: dict[str, Any], reasoning: Mapping[str, Any]) -> list[str]:
    if reasoning.get("effort") is not None:
        options["reasoning_effort"] = reasoning["effort"]
    return [f"reasoning.{name}" for name, value in reasoning.items() if name != "effort" and value is not None]


def _add_text(options: dict[str, Any], text: Mapping[str, Any]) -> list[str]:
    wanted = text.get("format") or {"type": "text"}
    if wanted["type"] == "json_schema":
        schema = {name: wanted[name] for name in _FORMAT_FIELDS if wanted.get(name) is not None}
        options["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif wanted["type"] != "text":
        options["response_format"] = {"type": wanted["type"]}
    if text.get("verbosity") is not None:
        options["verbosity"] = text["verbosity"]
    return [f"text.{name}" for name, value in text.items() if name not in ("format", "verbosity") and value is not None]


def _add_tools(
    options: dict[str, Any], asked: Mapping[str, Any], *, keep_strict: bool, custom_tools: bool
) -> list[str]:
    """Add the tools and the options about tools, which endpoints refuse if there are no tools."""
    tools = asked["tools"]
    dropped = _WRAPPING if keep_strict else _WRAPPING_AND_STRICT
    lost: list[str] = []
    carried: list[dict[str, Any]] = []
    for tool in tools:
        if tool["type"] == "function":
            function = {name: value for name, value in tool.items() if name not in dropped}
            lost += lost_in_tool(tool)
            carried.append({"type": "function", "function": without_hosting(function)})
        elif tool["type"] == "custom" and custom_tools:
            lost += lost_in_tool(tool)
            carried.append({"type": "custom", "custom": without_hosting(_custom_tool(tool))})
        else:
            lost.append(f"tools.{tool['type']}")
    kinds = ("function", "custom") if custom_tools else ("function",)
    choice, lost_choices = callable_choice(asked.get("tool_choice"), kinds)
    lost += lost_choices
    if carried:
        options["tools"] = carried
        if choice is not None:
            options["tool_choice"] = _tool_choice(choice)
        if asked.get("parallel_tool_calls") is not None:
            options["parallel_tool_calls"] = asked["parallel_tool_calls"]
    return lost


def _custom_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    custom = {name: value for name, value in tool.items() if name != "type"}
    wanted = custom.get("format")
    if wanted and wanted.get("type") == "grammar":
        grammar = {name: value for name, value in wanted.items() if name != "type"}
        custom["format"] = {"type": "grammar", "grammar": grammar}
    return custom


def _tool_choice(choice: str | Mapping[str, Any]) -> Any:
    if isinstance(choice, str):
        return choice
    kind = choice["type"]
    if kind in ("function", "custom"):
        return {"type": kind, kind: {"name": choice["name"]}}
    tools = [_tool_choice(tool) for tool in choice.get("tools", [])]
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode", "auto"), "tools": tools}}


_CONVERTED: Final[Mapping[str, Callable[[dict[str, Any], Any], list[str]]]] = {
    "include": _add_inclusions,
    "max_output_tokens": _add_limit,
    "reasoning": _add_reasoning,
    "text": _add_text,
    "top_logprobs": _add_scores,
}


# How reasoning of earlier turns is sent: inside the content, in one field beside it, in both fields that endpoints use,
# or not at all.
PastReasoning: TypeAlias = Literal["think", "reasoning_content", "separate", "drop"]


@dataclass
class ResponsesConverterState:
    """The finished messages, and the assistant's current turn."""

    return_token_id_information: bool = False
    past_reasoning: PastReasoning = "think"
    messages: list[dict[str, Any]] = field(default_factory=list)
    content_buffer: str | None = None
    reasoning_buffer: list[str] = field(default_factory=list)
    refusal_buffer: str | None = None
    tool_calls_buffer: list[dict[str, Any]] = field(default_factory=list)
    token_information: dict[str, Any] | None = None
    # Whether the endpoint knows calls of tools that take free text.
    custom_tools: bool = False
    # What could not be said in a chat, and remarks on what was said.
    lost: list[str] = field(default_factory=list)
    remarks: set[str] = field(default_factory=set)

    def parts(self, content: str | Sequence[Mapping[str, Any]]) -> str | list[dict[str, Any]]:
        """The content of an input message; what is lost of its parts is noted."""
        if not isinstance(content, str):
            self.remarks.update(lost_in_parts(content, images=False))
        return parts_to_chat(content)

    def add_text(self, text: str) -> None:
        """Append to the assistant's text in this turn."""
        self.content_buffer = (self.content_buffer or "") + text

    def add_refusal(self, text: str) -> None:
        """Append to the assistant's refusal in this turn."""
        self.refusal_buffer = (self.refusal_buffer or "") + text

    def add_reasoning(self, item: Mapping[str, Any]) -> None:
        """Append to the assistant's reasoning in this turn."""
        texts = reasoning_texts(item)
        if not texts:
            wrapped = unknown_item(item)
            if wrapped is not None:
                self.lost.append(f"items of type {wrapped.get('type')}")
            elif item.get("encrypted_content"):
                self.lost.append(ENCRYPTED)
            return
        if item.get("content") and item.get("summary"):
            self.remarks.add(SUMMARY)
        if item.get("encrypted_content"):
            self.remarks.add(ENCRYPTED)
        if self.past_reasoning == "think":
            self.add_text(wrap_reasoning(texts))
        elif self.past_reasoning != "drop":
            self.reasoning_buffer += texts

    def flush_assistant(self) -> None:
        """End the assistant's turn."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content_buffer}
        if self.reasoning_buffer:
            names = REASONING_FIELDS if self.past_reasoning == "separate" else REASONING_FIELDS[:1]
            message |= dict.fromkeys(names, "".join(self.reasoning_buffer))
            self.reasoning_buffer = []
        if self.refusal_buffer is not None:
            message["refusal"] = self.refusal_buffer
        if self.tool_calls_buffer:
            message["tool_calls"] = self.tool_calls_buffer
            self.tool_calls_buffer = []
        # A turn without text, calls, reasoning or refusal gives no message.
        if len(message) > 2 or self.content_buffer is not None:
            if self.token_information is not None:
                message |= self.token_information
            self.messages.append(message)
        self.content_buffer = self.refusal_buffer = self.token_information = None


def items_to_messages(items: Iterable[Mapping[str, Any]], state: ResponsesConverterState) -> list[dict[str, Any]]:
    """All items as chat messages, appended to those already in the state."""
    for item in items:
        kind = item.get("type") or "message"
        if kind == "message":
            _add_message(item, state)
        elif kind == "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            state.tool_calls_buffer.append({"id": item["call_id"], "type": "function", "function": function})
            state.remarks.update(lost_in_call(item))
        elif kind == "custom_tool_call" and state.custom_tools:
            custom = {"name": item["name"], "input": item["input"]}
            state.tool_calls_buffer.append({"id": item["call_id"], "type": "custom", "custom": custom})
            state.remarks.update(lost_in_call(item))
        elif kind == "function_call_output" or (kind == "custom_tool_call_output" and state.custom_tools):
            state.flush_assistant()
            state.remarks.update(lost_in_call(item))
            content = state.parts(item["output"])
            state.messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
        elif kind == "reasoning":
            state.add_reasoning(item)
        else:
            state.lost.append(f"items of type {kind}")
        if state.return_token_id_information and item.get("generation_token_ids") is not None:
            state.token_information = {name: item[name] for name in TOKEN_FIELDS if item.get(name) is not None}
    state.flush_assistant()
    return state.messages


def _add_message(item: Mapping[str, Any], state: ResponsesConverterState) -> None:
    role, content = item["role"], item["content"]
    if role != "assistant":
        state.flush_assistant()
        state.messages.append({"role": role, "content": state.parts(content)})
        return
    if item.get("phase"):
        state.remarks.add(PHASE)
    if isinstance(content, str):
        state.add_text(content)
    else:
        for part in content:
            _add_part(part, state)


def _add_part(part: Mapping[str, Any], state: ResponsesConverterState) -> None:
    kind = part["type"]
    if kind in ("output_text", "input_text"):
        state.add_text(part["text"])
        if part.get("annotations"):
            state.remarks.add(ANNOTATIONS)
        if part.get("logprobs"):
            state.remarks.add(LOGPROBS_SAID)
    elif kind == "refusal":
        state.add_refusal(part["refusal"])
    else:
        raise UnsupportedContentError(f"Chat Completions has no {kind!r} in an assistant message")
