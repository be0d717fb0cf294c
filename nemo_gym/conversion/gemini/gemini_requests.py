"""Converts requests of Gemini's API to the Responses API; what gets lost is listed. Pure."""

from collections.abc import Container, Iterable, Mapping
from typing import Any, Final

from nemo_gym.conversion.gemini.gemini_history import contents_to_items
from nemo_gym.conversion.new_responses import ConvertedRequest
from nemo_gym.schemas.generate_content import camel_keys

_SAME: Final = {"temperature": "temperature", "topP": "top_p", "maxOutputTokens": "max_output_tokens"}
# Options that only Chat Completions has besides, and their names there.
_EXTRAS: Final = {
    "stopSequences": "stop",
    "topK": "top_k",
    "seed": "seed",
    "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
}
_CHOICES: Final = {"AUTO": "auto", "VALIDATED": "auto", "NONE": "none", "ANY": "required"}
_KNOWN: Final = frozenset({"contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "model"})
_OUTPUT: Final = frozenset({"responseMimeType", "responseSchema", "responseJsonSchema"})
_HARMLESS: Final[Mapping[str, tuple[Any, ...]]] = {"candidateCount": (1,), "responseModalities": (["TEXT"],)}
_DECLARED: Final = frozenset({"name", "description", "parameters", "parametersJsonSchema"})
_NUMBERS: Final = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")


def gemini_to_request(body: Mapping[str, Any], *, model: str = "", extras: Container[str] = ()) -> ConvertedRequest:
    """The same request for the Responses API.

    ``extras`` names options besides those of the Responses API that can be carried all the same.
    """
    request: dict[str, Any] = {"input": contents_to_items(body["contents"])}
    if model:
        request["model"] = model
    system = (body.get("systemInstruction") or {}).get("parts") or ()
    if system:
        request["instructions"] = "\n".join(part["text"] for part in system if part.get("text"))
    lost = [name for name, value in body.items() if value and name not in _KNOWN]
    lost += _add_options(request, camel_keys(body.get("generationConfig") or {}), extras)
    lost += _add_tools(request, body)
    return ConvertedRequest(request, list(dict.fromkeys(lost)))


def _add_options(request: dict[str, Any], config: Mapping[str, Any], extras: Container[str]) -> list[str]:
    """Add what the Responses API calls by other names; gives what it has no names for."""
    lost = []
    for name, value in config.items():
        if value is None or value in _HARMLESS.get(name, ()):
            continue
        if name in _SAME:
            request[_SAME[name]] = value
        elif name in _EXTRAS and _EXTRAS[name] in extras:
            request[_EXTRAS[name]] = value
        elif name == "thinkingConfig":
            lost += _add_thinking(request, camel_keys(value))
        elif name not in _OUTPUT:
            lost.append(f"generationConfig.{name}")
    schema = config.get("responseJsonSchema") or json_schema(config.get("responseSchema"))
    kind = config.get("responseMimeType") or "text/plain"
    if schema:
        # The name is required there, and unknown here.
        request["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}}
    elif kind == "application/json":
        request["text"] = {"format": {"type": "json_object"}}
    if kind not in ("text/plain", "application/json"):
        lost.append("generationConfig.responseMimeType")
    return lost


def _add_thinking(request: dict[str, Any], thinking: Mapping[str, Any]) -> list[str]:
    level = thinking.get("thinkingLevel")
    if level:
        request["reasoning"] = {"effort": str(level).lower()}
    return ["generationConfig.thinkingConfig.thinkingBudget"] if thinking.get("thinkingBudget") is not None else []


def _add_tools(request: dict[str, Any], body: Mapping[str, Any]) -> list[str]:
    lost: list[str] = []
    functions: list[dict[str, Any]] = []
    for tool in map(camel_keys, body.get("tools") or ()):
        functions += [_function(camel_keys(one), lost) for one in tool.get("functionDeclarations") or ()]
        lost += [
            f"tools.{name}" for name, value in tool.items() if name != "functionDeclarations" and value is not None
        ]
    config = camel_keys(camel_keys(body.get("toolConfig") or {}).get("functionCallingConfig") or {})
    if functions:
        request["tools"] = functions
        request["tool_choice"] = _choice(config, functions)
    return lost


def _function(declared: Mapping[str, Any], lost: list[str]) -> dict[str, Any]:
    # What a function returns is described for people; only a call that does not block is another call.
    lost += [f"options of tools: {name}" for name in declared if name == "behavior" and declared[name] != "BLOCKING"]
    schema = declared.get("parametersJsonSchema") or json_schema(declared.get("parameters"))
    described = {"description": declared["description"]} if declared.get("description") else {}
    empty = {"type": "object", "properties": {}}
    return {"type": "function", "name": declared["name"], **described, "parameters": schema or empty, "strict": False}


def _choice(config: Mapping[str, Any], functions: Iterable[Mapping[str, Any]]) -> Any:
    choice = _CHOICES.get(str(config.get("mode") or "AUTO").upper(), "auto")
    allowed = config.get("allowedFunctionNames")
    if not allowed or choice == "none":
        return choice
    names = [tool["name"] for tool in functions if tool["name"] in allowed]
    if choice == "required" and len(names) == 1:
        return {"type": "function", "name": names[0]}
    return {"type": "allowed_tools", "mode": choice, "tools": [{"type": "function", "name": name} for name in names]}


def json_schema(schema: Any) -> Any:
    """A schema of this API, which follows OpenAPI 3.0, as JSON Schema."""
    if not isinstance(schema, Mapping):
        return schema
    plain = {key: value for key, value in camel_keys(schema).items() if key not in ("propertyOrdering", "nullable")}
    if isinstance(plain.get("type"), str):
        plain["type"] = plain["type"].lower()
    for name in _NUMBERS:
        if isinstance(plain.get(name), str):
            plain[name] = int(plain[name])
    if isinstance(plain.get("properties"), Mapping):
        plain["properties"] = {name: json_schema(inner) for name, inner in plain["properties"].items()}
    if "items" in plain:
        plain["items"] = json_schema(plain["items"])
    if isinstance(plain.get("anyOf"), list):
        plain["anyOf"] = [json_schema(inner) for inner in plain["anyOf"]]
    if schema.get("nullable") and isinstance(plain.get("type"), str):
        plain["type"] = [plain["type"], "null"]
        if isinstance(plain.get("enum"), list):
            plain["enum"] = [*plain["enum"], None]
    return plain
