"""Tools for a model that knows none: how they are described, how a call is written, and how it is read back. Pure.

A call is the text ``<tool_call>{"name": …, "arguments": …}</tool_call>``. The grammar lets the model write either text
or calls of the tools it was offered, with arguments that fit their schemas; nothing else can be generated.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from responses_api_models.local_model.grammar import GrammarBuilder, SchemaError
from responses_api_models.local_model.grammar.gbnf import (
    Chars,
    EmptyGrammarError,
    Node,
    Ref,
    Repeat,
    choice,
    optional,
    sequence,
)
from responses_api_models.local_model.grammar.json_strings import literal
from responses_api_models.local_model.worked_examples import Tool

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
OPEN_RESULT: Final = "<tool_response>"
CLOSE_RESULT: Final = "</tool_response>"
# Text never contains this, or a model that has seen results would make up its own.
RESERVED: Final = "<tool"
NO_ARGUMENTS: Final = {"type": "object", "additionalProperties": False}
INTRODUCTION: Final = "You can call tools. To call one, answer with"

Choice = Literal["auto", "required"]


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call; ``arguments`` is JSON exactly as it was generated."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model said and which tools it called."""

    text: str
    calls: list[Call]


def describe_tools(tools: Sequence[Tool]) -> str:
    """The tools in a few words."""
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
    """A schema as briefly as a type in a signature."""
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
    """A call as the model writes it."""
    return f'{OPEN}{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments}}}{CLOSE}'


def write_result(output: str) -> str:
    """A result as the model is shown it."""
    return f"{OPEN_RESULT}{output}{CLOSE_RESULT}"


def answer_grammar(tools: Sequence[Tool], *, mode: Choice = "auto", max_calls: int = 1, schema: Any = None) -> str:
    """The grammar of answers: calls of these tools, or (``auto``) also text, which is JSON if it has a schema."""
    builder = GrammarBuilder()
    calls = _calls(builder, tools, max_calls)
    if mode == "required":
        root = calls
    elif schema is not None:
        root = choice([builder.add_schema(schema, "response format"), calls])
    else:
        text = _text_without(builder, RESERVED)
        root = choice([text, sequence(optional(text), calls)])
    try:
        return builder.text(root)
    except EmptyGrammarError:
        what = "tools" if mode == "required" else "response format"
        raise SchemaError(what, "nothing fits what is asked for") from None


def _calls(builder: GrammarBuilder, tools: Sequence[Tool], max_calls: int) -> Node:
    call = builder.define(sequence(OPEN, choice(_call(builder, tool) for tool in tools), CLOSE))
    return sequence(call, Repeat(sequence("\n", call), 0, max_calls - 1)) if max_calls > 1 else call


def _call(builder: GrammarBuilder, tool: Tool) -> Node:
    schema = tool.parameters or NO_ARGUMENTS
    if schema.get("properties") == {} and not schema.keys() - {"type", "properties", "required", "title"}:
        schema = NO_ARGUMENTS  # any object would fit, but whoever lists no arguments means none
    if not ({"type", "$ref", "allOf", "anyOf", "oneOf"} & schema.keys()):
        schema = {"type": "object", **schema}
    arguments = builder.add_schema(schema, tool.name)
    return sequence('{"name": ', literal(tool.name), ', "arguments": ', arguments, "}")


def _text_without(builder: GrammarBuilder, reserved: str) -> Node:
    """At least one character, and never the reserved text: after every part of it, anything but its next letter."""
    opening = reserved[0]
    names = [f"text-{position}" for position in range(len(reserved))]
    steps: list[list[Node]] = []
    for position, letter in enumerate(reserved):
        other = Chars(tuple((ord(one), ord(one)) for one in sorted({letter, opening})), negated=True)
        options: list[Node] = [sequence(other, Ref(names[0]))]
        if letter != opening:
            options.append(sequence(opening, Ref(names[1])))
        if position + 1 < len(reserved):
            options.append(sequence(letter, Ref(names[position + 1])))
        steps.append(options)
    for name, options in zip(names, steps, strict=True):
        builder.define(choice([*options, sequence()]), name)
    return choice(steps[0])


def read_answer(generated: str) -> Answer:
    """Split what was generated into text and calls; a call that was cut off is no call."""
    text, opened, rest = generated.partition(OPEN)
    calls: list[Call] = []
    while opened:
        call, end = _read_call(rest)
        if call is None:
            break
        calls.append(call)
        _, opened, rest = rest[end:].partition(OPEN)
    return Answer(text, calls)


def _read_call(text: str) -> tuple[Call | None, int]:
    decoder = json.JSONDecoder()
    prefix = '{"name": '
    try:
        name, position = decoder.raw_decode(text, len(prefix))
        start = position + len(', "arguments": ')
        _, end = decoder.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None, 0
    if not text.startswith("}" + CLOSE, end):
        return None, 0
    return Call(name, text[start:end]), end
