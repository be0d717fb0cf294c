"""A request of the Responses API as a request of Anthropic's Messages API: its options. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from nemo_gym.conversion.anthropic.history_out import history_to_messages

_SAME: Final = ("temperature", "top_p")
_UNKNOWN: Final[Sequence[str]] = (
    "background",
    "include",
    "max_tool_calls",
    "previous_response_id",
    "prompt",
    "service_tier",
    "top_logprobs",
    "truncation",
)
# Values that ask for nothing special, so nothing is lost without them.
_HARMLESS: Final[Mapping[str, tuple[Any, ...]]] = {
    "background": (False,),
    # What is asked for here, an endpoint of this kind does in any case.
    "include": ([], ["reasoning.encrypted_content"]),
    "prompt": ({},),
    "service_tier": ("auto", "default"),
    "truncation": ("disabled",),
}
_EFFORTS: Final = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "max"}
_CHOICES: Final = {"auto": "auto", "none": "none", "required": "any"}


class MessagesRequest(NamedTuple):
    """A request of the Messages API, and the names of what got lost."""

    body: dict[str, Any]
    lost: list[str]


def request_to_messages(asked: Mapping[str, Any], *, max_tokens: int) -> MessagesRequest:
    """The same request for the Messages API; ``max_tokens`` is for a request that names no limit."""
    given = {name: value for name, value in asked.items() if value is not None}
    history = history_to_messages(given["input"])
    body: dict[str, Any] = {"messages": history.messages, "max_tokens": given.get("max_output_tokens", max_tokens)}
    body |= {name: given[name] for name in _SAME if name in given}
    system = [*([given["instructions"]] if given.get("instructions") else []), *history.system]
    if system:
        body["system"] = "\n\n".join(system)
    if given.get("user"):
        body["metadata"] = {"user_id": given["user"]}
    lost = [name for name in _UNKNOWN if name in given and given[name] not in _HARMLESS.get(name, ())]
    lost += history.lost
    lost += _add_output_config(body, given.get("reasoning", {}), given.get("text", {}))
    lost += _add_tools(body, given)
    return MessagesRequest(body, lost)


def _add_output_config(body: dict[str, Any], reasoning: Mapping[str, Any], text: Mapping[str, Any]) -> list[str]:
    config: dict[str, Any] = {}
    lost = []
    effort = reasoning.get("effort")
    if effort in _EFFORTS:
        config["effort"] = _EFFORTS[effort]
    elif effort not in (None, "none"):
        lost.append("reasoning.effort")
    wanted = text.get("format") or {"type": "text"}
    if wanted["type"] == "json_schema":
        config["format"] = {"type": "json_schema", "schema": wanted["schema"]}
    elif wanted["type"] != "text":
        lost.append(f"text.format {wanted['type']}")
    if text.get("verbosity") is not None:
        lost.append("text.verbosity")
    if config:
        body["output_config"] = config
    return lost


def _add_tools(body: dict[str, Any], given: Mapping[str, Any]) -> list[str]:
    tools = given.get("tools", [])
    functions = [tool for tool in tools if tool["type"] == "function"]
    if functions:
        body["tools"] = [_tool(tool) for tool in functions]
        choice = _tool_choice(given.get("tool_choice", "auto"))
        if given.get("parallel_tool_calls") is False and choice["type"] != "none":
            choice["disable_parallel_tool_use"] = True
        if choice != {"type": "auto"}:
            body["tool_choice"] = choice
    return [f"tools.{tool['type']}" for tool in tools if tool["type"] != "function"]


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
