"""Options of a request, from the Responses API to Chat Completions. Pure.

What Chat Completions calls by another name is renamed, what it does not know is listed, so that the caller can say so.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from nemo_gym.schemas.responses import NeMoGymResponseCreateParamsNonStreaming

_SAME: Final[Sequence[str]] = ("metadata", "model", "service_tier", "store", "temperature", "top_p", "user", "stream")
# Values that ask for nothing special, so nothing is lost without them.
_HARMLESS: Final[Mapping[str, tuple[Any, ...]]] = {
    "background": (False,),
    "include": ([],),
    "prompt": ({},),
    "truncation": ("disabled",),
}
_UNKNOWN_TO_CHAT: Final[Sequence[str]] = (
    "background",
    "include",
    "max_tool_calls",
    "previous_response_id",
    "prompt",
    "truncation",
)
_FORMAT_FIELDS: Final = ("name", "description", "schema", "strict")


class ChatOptions(NamedTuple):
    """Options for Chat Completions, and the names of those that got lost."""

    options: dict[str, Any]
    lost: list[str]


def options_to_chat(params: NeMoGymResponseCreateParamsNonStreaming, *, keep_strict: bool = False) -> ChatOptions:
    """Everything that a request sets, apart from its conversation."""
    given = {name: value for name in params.model_fields_set if (value := getattr(params, name)) is not None}
    options = {name: given[name] for name in _SAME if name in given}
    lost = [name for name in _UNKNOWN_TO_CHAT if name in given and given[name] not in _HARMLESS.get(name, ())]
    if "max_output_tokens" in given:
        options["max_tokens"] = given["max_output_tokens"]
    if "top_logprobs" in given:
        options |= {"logprobs": True, "top_logprobs": given["top_logprobs"]}
    lost += _add_reasoning(options, given.get("reasoning", {}))
    lost += _add_text(options, given.get("text", {}))
    lost += _add_tools(options, given, keep_strict=keep_strict)
    return ChatOptions(options, lost)


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


def _add_tools(options: dict[str, Any], given: Mapping[str, Any], *, keep_strict: bool) -> list[str]:
    """Add the tools and what is said about them; endpoints refuse the latter without the former."""
    tools = given.get("tools", [])
    functions = [tool for tool in tools if tool["type"] == "function"]
    if functions:
        dropped = {"type"} if keep_strict else {"type", "strict"}
        options["tools"] = [
            {"type": "function", "function": {name: value for name, value in tool.items() if name not in dropped}}
            for tool in functions
        ]
        if "tool_choice" in given:
            options["tool_choice"] = _tool_choice(given["tool_choice"])
        if "parallel_tool_calls" in given:
            options["parallel_tool_calls"] = given["parallel_tool_calls"]
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
