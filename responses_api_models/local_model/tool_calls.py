"""Tools for a model that was not trained to use any: how they are described, and how a call is written and read back.

A call is the text ``<tool_call>{"name": …, "arguments": …}</tool_call>``.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
OPEN_RESULT: Final = "<tool_response>"
CLOSE_RESULT: Final = "</tool_response>"
INTRODUCTION: Final = "You can call tools. To call one, answer with"
MAX_DEPTH: Final = 4
# A schema inside another is two levels down: below ``properties`` and below its name.
MAX_LEVELS: Final = 2 * MAX_DEPTH


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    @property
    def readable(self) -> Mapping[str, Any]:
        """The parameters with every reference replaced by what it refers to."""
        parameters: Mapping[str, Any] = _inlined(self.parameters, self.parameters)
        return parameters


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call; ``arguments`` is JSON exactly as it was generated."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The model's text and its calls."""

    text: str
    calls: list[Call]


def _inlined(schema: Any, root: Mapping[str, Any], level: int = 0) -> Any:
    if isinstance(schema, list):
        return [_inlined(item, root, level) for item in schema]
    if not isinstance(schema, Mapping) or level > MAX_LEVELS:
        return schema
    if isinstance(schema.get("$ref"), str):
        return _inlined(_referenced(schema["$ref"], root), root, level + 1)
    return {name: _inlined(inner, root, level + 1) for name, inner in schema.items() if name != "$defs"}


def _referenced(reference: str, root: Mapping[str, Any]) -> Any:
    """Follow a reference within the schema. Broken ones are not described; the grammar refuses them later."""
    found: Any = root
    for step in reference.lstrip("#").strip("/").split("/") if reference != "#" else ():
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return {} if found is None else found


def explains_tools(template: str) -> bool:
    """Whether a template tells the model which tools there are, and to call them in the form that is read here."""
    return "tools" in template and OPEN in template and CLOSE in template


def describe_tools(tools: Sequence[Tool]) -> str:
    """Describe the tools in a few words each."""
    form = f'{OPEN}{{"name": NAME, "arguments": {{...}}}}{CLOSE}'
    return "\n".join([f"{INTRODUCTION} {form}.", "Tools:", *map(_describe, tools)])


def _describe(tool: Tool) -> str:
    line = f"{tool.name}{_describe_parameters(tool.readable)}"
    return f"{line}: {' '.join(tool.description.split())}" if tool.description else line


def _describe_parameters(schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    properties = schema.get("properties", {})
    listed = [f"{name}{'' if name in required else '?'}: {describe_type(inner)}" for name, inner in properties.items()]
    return f"({', '.join(listed)})"


def describe_type(schema: Any, depth: int = 0) -> str:
    """Write a schema as briefly as a type in a signature."""
    if not isinstance(schema, Mapping) or depth > 3:
        return "any"
    if "const" in schema or "enum" in schema:
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in schema.get("enum", [schema.get("const")]))
    for combined in ("anyOf", "oneOf", "allOf"):
        if combined in schema:
            return (" & " if combined == "allOf" else " | ").join(
                dict.fromkeys(describe_type(part, depth + 1) for part in schema[combined])
            )
    kind = schema.get("type", "object" if "properties" in schema else "any")
    if kind == "array":
        return f"{describe_type(schema.get('items'), depth + 1)}[]"
    if kind == "object" and schema.get("properties"):
        return "{" + _describe_parameters(schema)[1:-1] + "}"
    return " | ".join(kind) if isinstance(kind, list) else str(kind)


def write_call(name: str, arguments: str) -> str:
    """Write a call as the model does."""
    return f'{OPEN}{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments}}}{CLOSE}'


def write_result(output: str) -> str:
    """Write a result in the form in which the model sees it."""
    return f"{OPEN_RESULT}{output}{CLOSE_RESULT}"


def read_answer(generated: str) -> Answer:
    """Split generated text into text and calls; a call that was cut off does not count."""
    start = generated.find(OPEN)
    text = generated if start < 0 else generated[:start]
    calls: list[Call] = []
    while start >= 0:
        call, end = _read_call(generated, start + len(OPEN))
        if call is None:
            break
        calls.append(call)
        start = generated.find(OPEN, end)
    return Answer(text, calls)


def _read_call(text: str, position: int) -> tuple[Call | None, int]:
    decoder = json.JSONDecoder()
    try:
        name, position = decoder.raw_decode(text, position + len('{"name": '))
        start = position + len(', "arguments": ')
        _, end = decoder.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None, 0
    if not text.startswith("}" + CLOSE, end):
        return None, 0
    return Call(name, text[start:end]), end
