"""Worked examples of tool calls, made from the tools' schemas. Pure.

A small model does not follow instructions about tools; it continues what it sees. So it is shown short conversations in
which questions are answered by a call, and results by a sentence.
"""

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

# With fewer, or with questions that differ more from what people ask, the smallest models rarely call anything.
EXAMPLES: Final = 4
QUESTIONS: Final = (
    "{description}: {values}",
    "What is {values}?",
    "How much is {values}?",
    "I need the {name}. What about {values}?",
)
BARE_QUESTIONS: Final = ("{description}", "What is the {name}?", "How about the {name}?", "I need the {name}.")
RESULTS: Final = (42, 17, 5, 230)
QUOTED_EXAMPLE: Final = re.compile(r"(?:for example|for instance|e\.g\.|such as)[,:]?\s+(.+?)[.)]?$", re.IGNORECASE)
MAX_DEPTH: Final = 4


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WorkedExample:
    """A question, the call that answers it, what the tool says, and what is made of that."""

    question: str
    tool: str
    arguments: str
    result: str
    answer: str


def worked_examples(tools: Sequence[Tool], count: int = EXAMPLES) -> list[WorkedExample]:
    """A few examples, of as many tools as possible."""
    return [_example(tool, number) for number, tool in enumerate(itertools.islice(itertools.cycle(tools), count))]


def _example(tool: Tool, number: int) -> WorkedExample:
    arguments = example_value(tool.parameters, "", number)
    if not isinstance(arguments, dict):
        arguments = {}
    values = ", ".join(_spoken(arguments))
    questions = QUESTIONS if values else BARE_QUESTIONS
    question = questions[number % len(questions)].format(
        description=tool.description.splitlines()[0].rstrip(".: ") if tool.description else f"Use {tool.name}",
        name=tool.name.replace("_", " "),
        values=values,
    )
    result = RESULTS[number % len(RESULTS)]
    return WorkedExample(question, tool.name, json.dumps(arguments), str(result), f"The result is {result}.")


def _spoken(value: Any) -> Iterator[str]:
    """The values inside a value, as one would say them."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _spoken(item)
    else:
        yield value if isinstance(value, str) else json.dumps(value)


def example_value(schema: Any, name: str, number: int = 0, depth: int = 0) -> Any:
    """A value such as the schema means: one that it names, or the simplest one of its type."""
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return name or "value"
    named = list(_named_values(schema))
    if named:
        return named[number % len(named)]
    for combined in ("anyOf", "oneOf", "allOf"):
        if schema.get(combined):
            return example_value(schema[combined][0], name, number, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if isinstance(kind, list):
        kind = next((one for one in kind if one != "null"), "null")
    if kind == "object":
        return _example_object(schema, number, depth)
    if kind == "array":
        return [example_value(schema["items"], name, number, depth + 1)] if schema.get("items") else []
    simple = {"boolean": True, "null": None, "string": name or "value"}
    return simple[kind] if kind in simple else max(number + 1, int(schema.get("minimum", 0)))


def _example_object(schema: Mapping[str, Any], number: int, depth: int) -> dict[str, Any]:
    properties = schema.get("properties", {})
    shown = [name for name in schema.get("required", properties) if name in properties]
    return {name: example_value(properties[name], name, number, depth + 1) for name in shown}


def _named_values(schema: Mapping[str, Any]) -> Iterator[Any]:
    if "const" in schema:
        yield schema["const"]
    yield from schema.get("enum", ())
    yield from schema.get("examples", ())
    if schema.get("default") is not None:
        yield schema["default"]
    if schema.get("type") == "string":
        quoted = QUOTED_EXAMPLE.search(schema.get("description") or "")
        if quoted:
            yield quoted[1].strip("'\"`")
