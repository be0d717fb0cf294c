"""Options of a request, from the Responses API to Chat Completions. Pure.

What Chat Completions calls by another name is renamed, what it does not know is listed, so that the caller can say so.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from nemo_gym.conversion.completion import LOGPROBS

_SAME: Final = frozenset({"metadata", "model", "service_tier", "store", "temperature", "top_p", "user", "stream"})
# Values that ask for nothing special, so nothing is lost without them.
_HARMLESS: Final[Mapping[str, tuple[Any, ...]]] = {
    "background": (False,),
    "prompt": ({},),
    "truncation": ("disabled",),
}
_UNKNOWN_TO_CHAT: Final = frozenset({"background", "max_tool_calls", "previous_response_id", "prompt", "truncation"})
_WRAPPING: Final = ("type",)
_WRAPPING_AND_STRICT: Final = ("type", "strict")
_FORMAT_FIELDS: Final = ("name", "description", "schema", "strict")


class ChatOptions(NamedTuple):
    """Options for Chat Completions, and the names of those that got lost."""

    options: dict[str, Any]
    lost: list[str]


def options_to_chat(asked: Mapping[str, Any], *, keep_strict: bool = False) -> ChatOptions:
    """Everything that a request sets, apart from its conversation."""
    options: dict[str, Any] = {}
    lost: list[str] = []
    for name, value in asked.items():
        if value is None:
            continue
        if name in _SAME:
            options[name] = value
        elif name == "tools":
            lost += _add_tools(options, asked, keep_strict=keep_strict)
        elif name in _CONVERTED:
            lost += _CONVERTED[name](options, value)
        elif name in _UNKNOWN_TO_CHAT and value not in _HARMLESS.get(name, ()):
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


def _add_tools(options: dict[str, Any], asked: Mapping[str, Any], *, keep_strict: bool) -> list[str]:
    """Add the tools and what is said about them; endpoints refuse the latter without the former."""
    tools = asked["tools"]
    dropped = _WRAPPING if keep_strict else _WRAPPING_AND_STRICT
    functions = [
        {"type": "function", "function": {name: value for name, value in tool.items() if name not in dropped}}
        for tool in tools
        if tool["type"] == "function"
    ]
    if functions:
        options["tools"] = functions
        if asked.get("tool_choice") is not None:
            options["tool_choice"] = _tool_choice(asked["tool_choice"])
        if asked.get("parallel_tool_calls") is not None:
            options["parallel_tool_calls"] = asked["parallel_tool_calls"]
    if len(functions) == len(tools):
        return []
    return [f"tools.{tool['type']}" for tool in tools if tool["type"] != "function"]


def _tool_choice(choice: str | Mapping[str, Any]) -> Any:
    if isinstance(choice, str):
        return choice
    if choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice["name"]}}
    if choice.get("type") == "allowed_tools":
        tools = [_tool_choice(tool) for tool in choice.get("tools", [])]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode", "auto"), "tools": tools}}
    return dict(choice)


_CONVERTED: Final[Mapping[str, Callable[[dict[str, Any], Any], list[str]]]] = {
    "include": _add_inclusions,
    "max_output_tokens": _add_limit,
    "reasoning": _add_reasoning,
    "text": _add_text,
    "top_logprobs": _add_scores,
}
