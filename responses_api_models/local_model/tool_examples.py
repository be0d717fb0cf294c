"""Example conversations with tool calls, made from the tools' schemas.

A small model does not follow instructions about tools; it continues what it sees. So it is shown short conversations in
which a question is answered by a call, and a result by a sentence.
"""

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from responses_api_models.local_model.tool_calls import MAX_DEPTH, Tool

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
# Different in every example, or the model would learn one answer by heart instead of copying from the question.
WORDS: Final = ("Paris", "garden", "Anna", "blue", "winter", "music", "river", "bread")
LIMITS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
FORMATS: Final = {
    "date": "2024-05-17",
    "time": "09:30:00Z",
    "date-time": "2024-05-17T09:30:00Z",
    "email": "ann@example.org",
    "uri": "https://example.org",
    "ipv4": "192.0.2.1",
    "uuid": "3f2b8c1e-5d47-4a90-8b6f-0c9d2e71a5b4",
}


@dataclass(frozen=True, slots=True)
class ToolExample:
    """A question, the call that answers it, the tool's result, and the answer given then."""

    question: str
    tool: str
    arguments: str
    result: str
    answer: str


def tool_examples(tools: Sequence[Tool], count: int = EXAMPLES) -> list[ToolExample]:
    """Make a few examples that cover as many tools as possible."""
    return [_example(tool, number) for number, tool in enumerate(itertools.islice(itertools.cycle(tools), count))]


def _example(tool: Tool, number: int) -> ToolExample:
    arguments = example_value(tool.readable, "", number)
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
    return ToolExample(question, tool.name, json.dumps(arguments), str(result), f"The result is {result}.")


def _spoken(value: Any) -> Iterator[str]:
    """List the values inside a value as one would say them."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _spoken(item)
    else:
        yield value if isinstance(value, str) else json.dumps(value)


def example_value(schema: Any, name: str, number: int = 0, depth: int = 0) -> Any:
    """Pick a value that the schema names, or else the simplest one of its type."""
    word = WORDS[(number + len(name)) % len(WORDS)]
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return word
    named = list(_named_values(schema))
    if named:
        return named[number % len(named)]
    for combined in ("anyOf", "oneOf", "allOf"):
        if schema.get(combined):
            return example_value(schema[combined][0], name, number, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    match next((one for one in kind if one != "null"), "null") if isinstance(kind, list) else kind:
        case "object":
            value: Any = _example_object(schema, number, depth)
        case "array":
            value = [example_value(schema["items"], name, number, depth + 1)] if schema.get("items") else []
        case "integer" | "number":
            value = _example_number(schema, number)
        case "boolean":
            value = True
        case "null":
            value = None
        case _:
            value = FORMATS.get(schema.get("format", ""), word)
    return value


def _example_number(schema: Mapping[str, Any], number: int) -> float:
    step: float = schema.get("multipleOf", 1)
    limits: list[float] = [schema[name] for name in LIMITS if isinstance(schema.get(name), int | float)]
    guesses = [step * (number + 1), *limits, *(limit + 1 for limit in limits), *(limit - 1 for limit in limits)]
    guesses.append(sum(limits) / 2)
    return next((guess for guess in guesses if _fits(schema, guess)), guesses[0])


def _fits(schema: Mapping[str, Any], value: float) -> bool:
    """Check a number against the limits of a schema."""
    step: float | None = schema.get("multipleOf", 1 if schema.get("type") == "integer" else None)
    inside: bool = schema.get("minimum", value) <= value <= schema.get("maximum", value)
    between: bool = schema.get("exclusiveMinimum", value - 1) < value < schema.get("exclusiveMaximum", value + 1)
    return inside and between and (not step or value % step == 0)


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
