"""Two plain schemas that apply at once, as one. Pure."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from responses_api_models.local_model.grammar.keywords import Plain, Schema
from responses_api_models.local_model.grammar.values import admits, is_listed, same


def conjoin(first: Plain, second: Plain) -> Plain | None:
    """The plain schema that fits where both fit, or None where that can't be."""
    merged = {**first, **second}
    for name in first.keys() & second.keys():
        one, other = first[name], second[name]
        if name in _BOTH:
            merged[name] = _BOTH[name](one, other)
        elif not same(one, other):
            raise NotImplementedError(f"two different {name!r} apply at once")
    if "properties" in merged:
        merged["properties"] = _properties(first, second)
    if "prefixItems" in merged:
        merged["prefixItems"] = _prefix(first, second)
    if _pattern_meets_names(first, second) or _pattern_meets_names(second, first):
        raise NotImplementedError("'patternProperties' in one part meets other properties in another")
    if "enum" in merged:
        merged["enum"] = [value for value in merged["enum"] if admits(first, value) and admits(second, value)]
    if merged.get("type") == [] or (is_listed(merged) and not merged["enum"]):
        return None
    return merged


def all_of(schemas: Iterable[Schema]) -> Schema:
    """A schema that fits where all fit; the same one twice is the same one once."""
    parts: dict[str, Schema] = {}
    for schema in schemas:
        bare = isinstance(schema, Mapping) and schema.keys() == {"allOf"}
        for part in schema["allOf"] if bare else [schema]:  # type: ignore[index]  # bare means that it is a mapping
            parts[json.dumps(part)] = part
    parts.pop("true", None)
    parts.pop("{}", None)
    return {"allOf": list(parts.values())} if len(parts) != 1 else next(iter(parts.values()))


def _properties(first: Plain, second: Plain) -> dict[str, Schema]:
    """Every property with all that either side says about it."""
    names = [*first.get("properties", {}), *second.get("properties", {})]
    return {name: all_of([_about(first, name), _about(second, name)]) for name in dict.fromkeys(names)}


def _about(plain: Plain, name: str) -> Schema:
    properties: dict[str, Schema] = plain.get("properties", {})
    additional: Schema = plain.get("additionalProperties", True)
    return properties.get(name, additional)


def _pattern_meets_names(first: Plain, second: Plain) -> bool:
    return "patternProperties" in first and ("properties" in second or "additionalProperties" in second)


def _prefix(first: Plain, second: Plain) -> list[Schema]:
    """Every position with all that either side says about it."""
    length = max(len(first.get("prefixItems", ())), len(second.get("prefixItems", ())))
    return [all_of([_at(first, position), _at(second, position)]) for position in range(length)]


def _at(plain: Plain, position: int) -> Schema:
    prefix: list[Schema] = plain.get("prefixItems", [])
    rest: Schema = plain.get("items", True)
    return prefix[position] if position < len(prefix) else rest


def _types(first: list[str], second: list[str]) -> list[str]:
    common = [name for name in first if name in second]
    # Whole numbers are numbers.
    for one, other in ((first, second), (second, first)):
        if "integer" in one and "number" in other and "integer" not in common and "number" not in common:
            common.append("integer")
    return common


def _common_multiple(first: float, second: float) -> float:
    if first != second and not (isinstance(first, int) and isinstance(second, int)):
        raise NotImplementedError("two different 'multipleOf' apply at once")
    return math.lcm(first, second) if isinstance(first, int) and isinstance(second, int) else first


def _both_schemas(first: Schema, second: Schema) -> Schema:
    return all_of([first, second])


_BOTH: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "type": _types,
    "enum": lambda one, _: one,
    "minimum": max,
    "exclusiveMinimum": max,
    "maximum": min,
    "exclusiveMaximum": min,
    "multipleOf": _common_multiple,
    "minLength": max,
    "maxLength": min,
    "minItems": max,
    "maxItems": min,
    "minProperties": max,
    "maxProperties": min,
    "uniqueItems": lambda one, other: one or other,
    "required": lambda one, other: list(dict.fromkeys([*one, *other])),
    "properties": lambda one, _: one,
    "additionalProperties": _both_schemas,
    "propertyNames": _both_schemas,
    "items": _both_schemas,
    "prefixItems": lambda one, _: one,
    "format": lambda one, _: one,
}
