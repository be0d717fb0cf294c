"""Converts the options of requests between the Responses API and Chat Completions. Pure.

Options with another name are renamed; options without an equivalent are listed, so that the caller can report them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from nemo_gym.conversion.losses import ANNOTATIONS, PAST_AUDIO, SPEAKERS, lost_in_tool, without_hosting
from nemo_gym.conversion.new_responses import LOGPROBS, ConvertedRequest, Item
from nemo_gym.conversion.parts import SAMPLING_EXTRAS, callable_choice, choice_without_tools

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


def options_to_chat(
    request: Mapping[str, Any], *, keep_strict: bool = False, custom_tools: bool = False
) -> ChatOptions:
    """All options that a request sets; everything but its conversation. ``custom_tools``: the endpoint knows those."""
    options: dict[str, Any] = {}
    lost: list[str] = []
    for name, value in request.items():
        if value is None:
            continue
        if name in _SAME:
            options[name] = value
        elif name == "tool_choice":
            lost += choice_without_tools(value, request.get("tools"))
        elif name == "tools":
            lost += _add_tools(options, request, keep_strict=keep_strict, custom_tools=custom_tools)
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
    options: dict[str, Any], request: Mapping[str, Any], *, keep_strict: bool, custom_tools: bool
) -> list[str]:
    """Add the tools and the options about tools, which endpoints refuse if there are no tools."""
    tools = request["tools"]
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
    choice, lost_choices = callable_choice(request.get("tool_choice"), kinds)
    lost += lost_choices
    if carried:
        options["tools"] = carried
        if choice is not None:
            options["tool_choice"] = _tool_choice(choice)
        if request.get("parallel_tool_calls") is not None:
            options["parallel_tool_calls"] = request["parallel_tool_calls"]
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
_SAME_IN_REQUESTS: Final = (
    *("metadata", "model", "service_tier", "store", "temperature", "top_p", "user", "parallel_tool_calls"),
    # No options of the Responses API, but of the protocols behind it.
    *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier", "stop", "top_k"),
)
_RENAMED_FROM_CHAT: Final = {
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "top_logprobs": "top_logprobs",
}
_CARRIED_FROM_CHAT: Final = frozenset(
    {
        *_SAME_IN_REQUESTS,
        *_RENAMED_FROM_CHAT,
        "messages",
        "tools",
        "tool_choice",
        "reasoning_effort",
        "verbosity",
        "response_format",
    }
    | {"logprobs", "stream", "stream_options"}
)
# Default values, which can be left out without losing anything.
_HARMLESS_IN_CHATS: Final[Mapping[str, Any]] = {
    "n": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "modalities": ["text"],
}
_LOST_KEYS: Final = {"audio": PAST_AUDIO, "annotations": ANNOTATIONS, "name": SPEAKERS}


def chat_to_request(
    chat: Mapping[str, Any], to_items: Callable[[Sequence[Mapping[str, Any]]], list[Item]]
) -> ConvertedRequest:
    """The same request for the Responses API; ``to_items`` converts the history."""
    given = {name: value for name, value in chat.items() if value is not None}
    request: dict[str, Any] = {"input": to_items(given["messages"])}
    request |= {name: given[name] for name in _SAME_IN_REQUESTS if name in given}
    request |= {other: given[name] for name, other in _RENAMED_FROM_CHAT.items() if name in given}
    if given.get("logprobs"):
        request["include"] = [LOGPROBS]
    if "reasoning_effort" in given:
        request["reasoning"] = {"effort": given["reasoning_effort"]}
    text = _text_options_of_chat(given)
    if text:
        request["text"] = text
    if given.get("tools"):
        request["tools"] = [_tool_of_chat(tool) for tool in given["tools"]]
        if "tool_choice" in given:
            request["tool_choice"] = _choice_of_chat(given["tool_choice"])
    lost = [name for name in given if name not in _CARRIED_FROM_CHAT and given[name] != _HARMLESS_IN_CHATS.get(name)]
    return ConvertedRequest(request, lost + _lost_in_history(given["messages"]))


def _lost_in_history(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """What messages have besides their content; each kind once."""
    lost = [name for key, name in _LOST_KEYS.items() if any(message.get(key) for message in messages)]
    return list(dict.fromkeys(lost))


def _text_options_of_chat(given: Mapping[str, Any]) -> dict[str, Any]:
    text: dict[str, Any] = {}
    wanted = given.get("response_format")
    if wanted:
        text["format"] = {"type": wanted["type"], **(wanted.get("json_schema") or {})}
    if "verbosity" in given:
        text["verbosity"] = given["verbosity"]
    return text


def _tool_of_chat(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", **tool["function"]} if tool["type"] == "function" else dict(tool)


def _choice_of_chat(choice: str | Mapping[str, Any]) -> Any:
    if isinstance(choice, str):
        return choice
    if choice.get("type") == "function":
        return {"type": "function", "name": choice["function"]["name"]}
    if choice.get("type") == "allowed_tools":
        allowed = choice["allowed_tools"]
        tools = [_choice_of_chat(tool) for tool in allowed.get("tools", [])]
        return {"type": "allowed_tools", "mode": allowed.get("mode", "auto"), "tools": tools}
    return dict(choice)
