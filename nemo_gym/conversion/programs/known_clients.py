"""Adapts what known programs send to what every model server takes, and answers to what they expect. Pure.

A program knows features of the provider that it was written for: groups of tools, tools that only the provider can run,
bookkeeping. What means the same without a feature is rewritten (a ``namespace`` of tools becomes plain functions, a
custom tool becomes a function with one text, a deferred tool an ordinary one), and the answer is given under the names
that the program knows. What no model here can do is left out and named.

This holds for programs, whose requests their users don't write. Elsewhere an unknown option is a mistake worth telling.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson

from nemo_gym.conversion.parts import SAMPLING_EXTRAS
from nemo_gym.conversion.programs.dialects import Dialect
from nemo_gym.schemas.generate_content import camel_keys
from nemo_gym.schemas.responses import NeMoGymResponseCreateParamsNonStreaming

Json = dict[str, Any]
LONGEST_NAME: Final = 64
# Keys with which programs describe themselves, or how they want to be served; nothing is missing without them.
BOOKKEEPING: Final = frozenset(
    {"client_metadata", "betas", "metadata", "service_tier", "speed", "user", "store", "stream", "stream_options"}
    | {"prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier", "include"}
    | {"inference_geo", "diagnostics", "context_management", "container", "thinking", "truncation"}
)
_RESPONSES_KEYS: Final = frozenset(NeMoGymResponseCreateParamsNonStreaming.model_fields) | SAMPLING_EXTRAS
_MESSAGES_KEYS: Final = frozenset(
    {"messages", "model", "max_tokens", "system", "temperature", "top_p", "top_k", "stop_sequences"}
    | {"tools", "tool_choice", "output_config"}
)
_FUNCTION_KEYS: Final = frozenset({"type", "name", "description", "parameters", "strict"})
_MESSAGE_TOOL_KEYS: Final = frozenset({"name", "description", "input_schema", "strict", "cache_control"})
_TEXT_INPUT: Final = "input"
_CUSTOM_SCHEMA: Final = {
    "type": "object",
    "properties": {_TEXT_INPUT: {"type": "string"}},
    "required": [_TEXT_INPUT],
    "additionalProperties": False,
}


class ToolName(NamedTuple):
    """What a program calls a tool."""

    name: str
    namespace: str | None = None
    is_custom: bool = False


@dataclass(slots=True)
class Adapted:
    """A request as model servers take it."""

    body: Json
    names: dict[str, ToolName] = field(default_factory=dict)  # of tools that were renamed or rewritten
    left_out: list[str] = field(default_factory=list)

    def drop(self, unknown: Iterable[str], *, what: str = "") -> None:
        """Leave keys out, and name those that are not only bookkeeping."""
        for key in unknown:
            if key not in BOOKKEEPING:
                self.left_out.append(f"{what}{key}")


def adapt(dialect: Dialect, body: Mapping[str, Any]) -> Adapted:
    """A request of a program; always one for a whole completion."""
    adapted = Adapted({key: value for key, value in body.items() if key not in ("stream", "stream_options")})
    _ADAPT.get(dialect, _as_it_is)(adapted)
    return adapted


def restore(dialect: Dialect, completion: Json, names: Mapping[str, ToolName]) -> Json:
    """A completion with the names that the program knows."""
    if not names or dialect is not Dialect.RESPONSES:
        return completion
    return {**completion, "output": [_restored(item, names) for item in completion["output"]]}


def _as_it_is(_: Adapted) -> None:
    pass


# ---- Responses API ---------------------------------------------------------------------------------------------------
def _adapt_responses(adapted: Adapted) -> None:
    body = adapted.body
    adapted.drop(key for key, value in body.items() if key not in _RESPONSES_KEYS and value is not None)
    body = {key: value for key, value in body.items() if key in _RESPONSES_KEYS and key not in _SERVED_HERE}
    if body.get("tools") is not None:
        body["tools"] = list(_plain_functions(body["tools"], adapted))
        if not body["tools"]:
            del body["tools"]
            body.pop("tool_choice", None)
    if isinstance(body.get("tool_choice"), dict):
        body["tool_choice"] = _plain_choice(body["tool_choice"], adapted)
    if isinstance(body.get("reasoning"), dict):
        body["reasoning"] = {key: value for key, value in body["reasoning"].items() if key in ("effort", "summary")}
    if isinstance(body.get("input"), list):
        body["input"] = [plain for item in body["input"] if (plain := _plain_item(item, adapted)) is not None]
    adapted.body = body


# A model server keeps nothing, and programs that use it send everything again.
_SERVED_HERE: Final = frozenset({"store", "include", "background", "service_tier", "metadata", "user", "truncation"})


def _plain_functions(tools: Iterable[Mapping[str, Any]], adapted: Adapted) -> Iterator[Json]:
    for tool in tools:
        match tool.get("type"):
            case "function":
                yield _function(tool, adapted)
            case "custom":
                yield _function_of_custom(tool, adapted, None)
            case "namespace":
                for inner in tool.get("tools") or ():
                    yield _function_in(str(tool.get("name")), inner, adapted)
            case other:
                adapted.left_out.append(f"tools.{other}")


def _function(tool: Mapping[str, Any], adapted: Adapted) -> Json:
    hidden = ("defer_loading", "allowed_callers", "output_schema", "async")
    adapted.drop((key for key in tool if key not in _FUNCTION_KEYS and key not in hidden), what="tools.function.")
    return {key: value for key, value in tool.items() if key in _FUNCTION_KEYS}


def _function_in(space: str, tool: Mapping[str, Any], adapted: Adapted) -> Json:
    flat = flat_name(space, str(tool.get("name")))
    if tool.get("type") == "custom":
        return _function_of_custom({**tool, "name": flat}, adapted, space, name=str(tool.get("name")))
    adapted.names[flat] = ToolName(str(tool.get("name")), space)
    return {**_function({"type": "function", **tool}, adapted), "name": flat}


def _function_of_custom(
    tool: Mapping[str, Any], adapted: Adapted, space: str | None, *, name: str | None = None
) -> Json:
    adapted.names[tool["name"]] = ToolName(name or tool["name"], space, is_custom=True)
    shape = tool.get("format") or {}
    syntax = f"\n\nThe input has to follow this grammar:\n{shape['definition']}" if shape.get("definition") else ""
    described = f"{tool.get('description') or ''}{syntax}"
    return {
        "type": "function",
        "name": tool["name"],
        "description": described,
        "parameters": _CUSTOM_SCHEMA,
        "strict": False,
    }


def flat_name(space: str, name: str) -> str:
    """The name of a tool of a namespace as a plain function."""
    joined = f"{space}{name}" if space.endswith("__") else f"{space}__{name}"
    return joined if len(joined) <= LONGEST_NAME else f"{joined[:50]}_{_short_hash(joined)}"


def _short_hash(text: str) -> str:
    from hashlib import blake2b  # noqa: PLC0415 - hardly ever needed

    return blake2b(text.encode(), digest_size=6).hexdigest()


def _plain_choice(choice: Mapping[str, Any], adapted: Adapted) -> Any:
    if choice.get("type") in ("function", "custom") and choice.get("name"):
        space = choice.get("namespace")
        return {"type": "function", "name": flat_name(space, choice["name"]) if space else choice["name"]}
    if choice.get("type") == "allowed_tools":
        return {**choice, "tools": [_plain_choice(tool, adapted) for tool in choice.get("tools") or ()]}
    adapted.left_out.append(f"tool_choice.{choice.get('type')}")
    return "auto"


def _plain_item(item: Any, adapted: Adapted) -> Any:
    """An item of the conversation; None if no model here can read it."""
    if not isinstance(item, dict):
        return item
    match item.get("type", "message"):
        case "function_call" if item.get("namespace"):
            plain = {key: value for key, value in item.items() if key != "namespace"}
            return {**plain, "name": flat_name(item["namespace"], item["name"])}
        case "custom_tool_call":
            space = item.get("namespace")
            name = flat_name(space, item["name"]) if space else item["name"]
            arguments = orjson.dumps({_TEXT_INPUT: item.get("input") or ""}).decode()
            return {"type": "function_call", "call_id": item["call_id"], "name": name, "arguments": arguments}
        case "custom_tool_call_output":
            return {"type": "function_call_output", "call_id": item["call_id"], "output": item.get("output") or ""}
        case "message" | "reasoning" | "function_call" | "function_call_output":
            return item
        case other:
            adapted.left_out.append(f"items of type {other}")
            return None


def _restored(item: Json, names: Mapping[str, ToolName]) -> Json:
    known = names.get(item["name"]) if item.get("type") == "function_call" else None
    if known is None:
        return item
    space = {"namespace": known.namespace} if known.namespace else {}
    if not known.is_custom:
        return {**item, "name": known.name, **space}
    rest = {key: value for key, value in item.items() if key not in ("arguments", "type")}
    return {**rest, "type": "custom_tool_call", "name": known.name, "input": _custom_input(item["arguments"]), **space}


def _custom_input(arguments: str) -> str:
    try:
        given = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    text = given.get(_TEXT_INPUT) if isinstance(given, dict) else given
    return text if isinstance(text, str) else arguments


# ---- Messages API ----------------------------------------------------------------------------------------------------
def _adapt_messages(adapted: Adapted) -> None:
    body = adapted.body
    adapted.drop(key for key, value in body.items() if key not in _MESSAGES_KEYS and value)
    body = {key: value for key, value in body.items() if key in _MESSAGES_KEYS}
    if body.get("tools") is not None:
        body["tools"] = [plain for tool in body["tools"] if (plain := _message_tool(tool, adapted)) is not None]
        if not body["tools"]:
            del body["tools"]
            body.pop("tool_choice", None)
    if isinstance(body.get("output_config"), dict):
        config = {key: value for key, value in body["output_config"].items() if key in ("effort", "format")}
        adapted.drop((key for key in body["output_config"] if key not in config), what="output_config.")
        body["output_config"] = config
    adapted.body = body


def _message_tool(tool: Mapping[str, Any], adapted: Adapted) -> Json | None:
    if tool.get("input_schema") is None:
        adapted.left_out.append(f"tools.{tool.get('type') or tool.get('name')}")
        return None
    return {key: value for key, value in tool.items() if key in _MESSAGE_TOOL_KEYS}


# ---- Gemini's API ----------------------------------------------------------------------------------------------------
_GEMINI_KEYS: Final = frozenset({"contents", "systemInstruction", "tools", "toolConfig", "generationConfig"})
_GEMINI_SERVED: Final = frozenset({"model", "safetySettings", "labels", "sessionId"})
_CONFIG_KEYS: Final = frozenset(
    {"temperature", "topP", "topK", "maxOutputTokens", "stopSequences", "seed", "presencePenalty", "frequencyPenalty"}
    | {"candidateCount", "responseMimeType", "responseSchema", "responseJsonSchema", "responseModalities"}
    | {"thinkingConfig"}
)


def _adapt_gemini(adapted: Adapted) -> None:
    given = camel_keys(adapted.body)
    adapted.drop(key for key, value in given.items() if key not in _GEMINI_KEYS | _GEMINI_SERVED and value)
    body = {key: value for key, value in given.items() if key in _GEMINI_KEYS}
    if isinstance(body.get("tools"), list):
        tools = [camel_keys(tool) for tool in body["tools"] if isinstance(tool, dict)]
        adapted.drop((name for tool in tools for name in tool if name != "functionDeclarations"), what="tools.")
        declared = [one for tool in tools for one in tool.get("functionDeclarations") or ()]
        body["tools"] = [{"functionDeclarations": [_declared(one) for one in declared]}] if declared else []
    if isinstance(body.get("generationConfig"), dict):
        config = camel_keys(body["generationConfig"])
        adapted.drop((key for key in config if key not in _CONFIG_KEYS), what="generationConfig.")
        body["generationConfig"] = {key: value for key, value in config.items() if key in _CONFIG_KEYS}
    adapted.body = body


def _declared(function: Any) -> Any:
    return {key: value for key, value in camel_keys(function).items() if key != "behavior"}


_ADAPT: Final[Mapping[Dialect, Callable[[Adapted], None]]] = {
    Dialect.RESPONSES: _adapt_responses,
    Dialect.MESSAGES: _adapt_messages,
    Dialect.GEMINI: _adapt_gemini,
}
