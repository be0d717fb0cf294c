"""Converts requests between the Responses API and Anthropic's Messages API; what gets lost is listed. Pure."""

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from nemo_gym.conversion.anthropic.message_history import history_to_messages, messages_to_history
from nemo_gym.conversion.losses import CACHE_CONTROL, DOCUMENT_CITATIONS, DOCUMENT_CONTEXT, IS_ERROR, lost_in_tool
from nemo_gym.conversion.new_responses import LOGPROBS, ConvertedRequest
from nemo_gym.conversion.parts import callable_choice, choice_without_tools

_SAME_IN_MESSAGES: Final = ("temperature", "top_p", "top_k")
_CARRIED: Final = frozenset(
    {
        *_SAME_IN_MESSAGES,
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
_CHOICES_OF_MESSAGES: Final = {"auto": "auto", "none": "none", "required": "any"}


class MessagesRequest(NamedTuple):
    """A request of the Messages API, and the names of what has no equivalent there."""

    body: dict[str, Any]
    lost: list[str]


def request_to_messages(request: Mapping[str, Any], *, max_tokens: int) -> MessagesRequest:
    """The same request for the Messages API; ``max_tokens`` is the limit for a request that sets none."""
    given = {name: value for name, value in request.items() if value is not None}
    history = history_to_messages(given["input"])
    body: dict[str, Any] = {"messages": history.messages, "max_tokens": given.get("max_output_tokens", max_tokens)}
    body |= {name: given[name] for name in _SAME_IN_MESSAGES if name in given}
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
    """The name of an option that is lost; None if it is nothing special."""
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
        body["tools"] = [_tool_of_messages(tool) for tool in functions]
        choice = _choice_of_messages(wanted or "auto")
        if given.get("parallel_tool_calls") is False and choice["type"] != "none":
            choice["disable_parallel_tool_use"] = True
        if choice != {"type": "auto"}:
            body["tool_choice"] = choice
    return lost


def _tool_of_messages(tool: Mapping[str, Any]) -> dict[str, Any]:
    schema = tool.get("parameters") or {"type": "object", "properties": {}}
    described = {"description": tool["description"]} if tool.get("description") else {}
    strict = {"strict": True} if tool.get("strict") else {}
    return {"name": tool["name"], **described, "input_schema": schema, **strict}


def _choice_of_messages(choice: str | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(choice, str):
        return {"type": _CHOICES_OF_MESSAGES[choice]}
    if choice.get("type") == "function":
        return {"type": "tool", "name": choice["name"]}
    return {"type": "any" if choice.get("mode") == "required" else "auto"}


# Options that only Chat Completions has besides, and their names there.
_EXTRAS: Final = {"stop_sequences": "stop", "top_k": "top_k"}
_SAME: Final = {"model": "model", "max_tokens": "max_output_tokens", "temperature": "temperature", "top_p": "top_p"}
_CHOICES: Final = {"auto": "auto", "none": "none", "any": "required"}
_KNOWN: Final = frozenset(
    {*_SAME, *_EXTRAS, "messages", "system", "tools", "tool_choice", "stream", "thinking", "metadata", "output_config"}
)
_TOOL_KEYS: Final = frozenset({"type", "name", "description", "input_schema", "strict", "cache_control"})


def messages_to_request(body: Mapping[str, Any], *, extras: Container[str] = ()) -> ConvertedRequest:
    """The same request for the Responses API; keys without a value count as left out.

    ``extras`` names options besides those of the Responses API that can be carried all the same.
    """
    request: dict[str, Any] = {"input": messages_to_history(body["messages"])}
    request |= {other: body[name] for name, other in _SAME.items() if body.get(name) is not None}
    system = body.get("system")
    if system:
        request["instructions"] = system if isinstance(system, str) else "\n".join(block["text"] for block in system)
    lost = [name for name, value in body.items() if value and name not in _KNOWN]
    for name, other in _EXTRAS.items():
        if body.get(name) and other in extras:
            request[other] = body[name]
        elif body.get(name):
            lost.append(name)
    lost += _add_options(request, body) + list(lost_in_blocks(body["messages"]))
    if _has_cache_marks(body.get("system")) or _has_cache_marks(body.get("tools")):
        lost.append(CACHE_CONTROL)
    tools = body.get("tools") or []
    functions = [tool for tool in tools if tool.get("input_schema") is not None]
    lost += [f"tools.{tool.get('type')}" for tool in tools if tool.get("input_schema") is None]
    lost += [f"options of tools: {name}" for tool in functions for name in tool if name not in _TOOL_KEYS]
    if functions:
        request["tools"] = [_tool(tool) for tool in functions]
        _add_choice(request, body.get("tool_choice") or {"type": "auto"})
    return ConvertedRequest(request, list(dict.fromkeys(lost)))


def _add_options(request: dict[str, Any], body: Mapping[str, Any]) -> list[str]:
    """Add what the Responses API calls by other names; gives what it has no names for."""
    metadata = dict(body.get("metadata") or {})
    if metadata.pop("user_id", None):
        request["user"] = body["metadata"]["user_id"]
    config = dict(body.get("output_config") or {})
    effort, wanted = config.pop("effort", None), config.pop("format", None)
    if effort:
        request["reasoning"] = {"effort": effort}
    if wanted:
        # The name is required there, and unknown here.
        request["text"] = {"format": {"name": "answer", "strict": True, **wanted}}
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


def _add_choice(request: dict[str, Any], choice: Mapping[str, Any]) -> None:
    kind = choice["type"]
    request["tool_choice"] = {"type": "function", "name": choice["name"]} if kind == "tool" else _CHOICES[kind]
    if choice.get("disable_parallel_tool_use"):
        request["parallel_tool_calls"] = False
