"""Describes the parameters of a command for people: names, types, defaults, meanings.

Reads a pydantic class and nothing else; imports no pydantic, so that help pages that list only commands stay quick.
"""

import json
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter the way help shows it."""

    name: str
    type: str
    required: bool
    default: str
    description: str


def parameters_of(described: "type[BaseModel]") -> list[Parameter]:
    """List the parameters, required ones first, each group in order of definition."""
    parameters = [_parameter(field.alias or name, field) for name, field in described.model_fields.items()]
    return sorted(parameters, key=lambda parameter: not parameter.required)


def type_text(annotation: Any) -> str:
    """Name a type in the words of the command line: ``int or null``, ``a | b``, ``list of str``."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(str(value) for value in arguments)
    if origin in {Union, types.UnionType}:
        return " or ".join(type_text(argument) for argument in arguments)
    if hasattr(annotation, "__metadata__"):
        return type_text(arguments[0])
    if origin in {list, Sequence, tuple, set, frozenset}:
        return f"list of {type_text(arguments[0])}" if arguments else "list"
    if origin in {dict, Mapping}:
        return "dict"
    return _plain_type(annotation)


def _plain_type(annotation: Any) -> str:
    if annotation in {Any, None, types.NoneType}:
        return "any" if annotation is Any else "null"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " | ".join(str(member.value) for member in annotation)
    fields: Mapping[str, Any] | None = getattr(annotation, "model_fields", None)
    if fields is not None:
        return "{" + ", ".join(f"{name}: {type_text(field.annotation)}" for name, field in fields.items()) + "}"
    return str(getattr(annotation, "__name__", annotation))


def _parameter(name: str, field: "FieldInfo") -> Parameter:
    required = field.is_required()
    default = "" if required else value_text(field.get_default(call_default_factory=True))
    return Parameter(name, type_text(field.annotation), required, default, " ".join((field.description or "").split()))


def value_text(value: Any) -> str:
    """Write a value the way it is typed on the command line."""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, str):
        return value or '""'
    return json.dumps(value.model_dump() if hasattr(value, "model_dump") else value, default=str)
