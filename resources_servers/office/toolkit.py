"""What a tool is: a function over the state of an office, whose signature says which arguments it takes.

    @tool("Deletes a message.")
    def email_delete(state: State, id: str) -> dict[str, Any]: …

The arguments of a call are checked against the signature before the function runs. What can't be done is a
``ToolError``: the model reads it, and nothing has changed.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

State: TypeAlias = dict[str, Any]
Function: TypeAlias = Callable[..., dict[str, Any]]

MAX_LISTED: Final = 20
MAX_TEXT: Final = 20_000
MAX_ITEMS: Final = 500
JSON_TYPES: Final = {str: {"type": "string"}, int: {"type": "integer"}, bool: {"type": "boolean"}}


class ToolError(Exception):
    """Why a call can't be carried out, in words for the model."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function, its arguments and its description."""

    name: str
    description: str
    function: Function
    arguments: type[BaseModel]
    parameters: dict[str, Any]

    def call(self, state: State, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out a call; raises ``ToolError``."""
        try:
            checked = self.arguments.model_validate(arguments)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"]))[:60]
            raise ToolError(f"{place}: {first['msg']}") from None
        if any(len(text) > MAX_TEXT for text in _texts(dict(checked))):
            raise ToolError(f"text is limited to {MAX_TEXT} characters")
        return self.function(state, **dict(checked))

    def declaration(self) -> dict[str, Any]:
        """The tool as it is described to the model."""
        strict = len(self.parameters["required"]) == len(self.parameters["properties"])
        return {
            "type": "function",
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "strict": strict,
        }


TOOLS: Final[dict[str, Tool]] = {}


def tool(description: str) -> Callable[[Function], Function]:
    """Register a function as a tool."""

    def register(function: Function) -> Function:
        parameters = dict(list(inspect.signature(function).parameters.items())[1:])  # without the state
        fields: dict[str, Any] = {
            name: (each.annotation, ... if each.default is inspect.Parameter.empty else each.default)
            for name, each in parameters.items()
        }
        # Strict: a model that writes "3" for 3 should read that it made a mistake.
        model = create_model(function.__name__, __config__=ConfigDict(extra="forbid", strict=True), **fields)
        schema = {
            "type": "object",
            "properties": {name: _schema(each.annotation) for name, each in parameters.items()},
            "required": [name for name, each in parameters.items() if each.default is inspect.Parameter.empty],
            "additionalProperties": False,
        }
        TOOLS[function.__name__] = Tool(function.__name__, description, function, model, schema)
        return function

    return register


def call_tool(state: State, name: str, arguments: Any) -> dict[str, Any]:
    """Carry out a call that a model made; every mistake becomes an answer."""
    found = TOOLS.get(name)
    if found is None:
        return {"error": f"there is no tool {name[:60]!r}"}
    if not isinstance(arguments, Mapping):
        return {"error": "the arguments are not a JSON object"}
    try:
        return found.call(state, arguments)
    except ToolError as error:
        return {"error": str(error)}


def find(records: list[State], key: str, value: str) -> State:
    """The record with that value; raises ``ToolError`` if there is none."""
    for record in records:
        if same_text(record[key], value):
            return record
    raise ToolError(f"there is no {key} {value[:60]!r}")


def listed(records: list[State]) -> dict[str, Any]:
    """Records for the model to read, not too many of them."""
    answer: dict[str, Any] = {"count": len(records), "items": records[:MAX_LISTED]}
    if len(records) > MAX_LISTED:
        answer["note"] = f"the first {MAX_LISTED} are shown; ask more precisely to see others"
    return answer


def new_id(records: list[State], prefix: str) -> str:
    """An id that no record has."""
    if len(records) >= MAX_ITEMS:
        raise ToolError(f"there are {MAX_ITEMS} already")
    numbers = [int(record["id"][len(prefix) :]) for record in records if record["id"][len(prefix) :].isdigit()]
    return f"{prefix}{max(numbers, default=0) + 1}"


def same_text(first: str, second: str) -> bool:
    """Whether two texts differ in nothing but case and outer spaces."""
    return first.strip().casefold() == second.strip().casefold()


def contains(record: Mapping[str, Any], text: str) -> bool:
    """Whether the text occurs anywhere in the record."""
    return text.strip().casefold() in json.dumps(record, ensure_ascii=False).casefold()


def _schema(annotation: Any) -> dict[str, Any]:
    if annotation == list[str]:
        return {"type": "array", "items": {"type": "string"}}
    plain = annotation if annotation in JSON_TYPES else next(kind for kind in JSON_TYPES if annotation == kind | None)
    return dict(JSON_TYPES[plain])


def _texts(values: Mapping[str, Any]) -> list[str]:
    texts = [value for value in values.values() if isinstance(value, str)]
    return texts + [text for value in values.values() if isinstance(value, list) for text in value]
