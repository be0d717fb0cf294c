"""Single values against plain schemas: what type they have, whether they fit, whether two are the same. Pure."""

import json
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Final

from responses_api_models.local_model.grammar.json_numbers import Bounds

# Which types the keywords speak about; a schema without a type is read as one for what it speaks about.
KEYWORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "object": (
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "dependentRequired",
    ),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
STRUCTURAL: Final = frozenset(KEYWORDS["object"] + KEYWORDS["array"])
ALL_TYPES: Final = ("object", "array", "string", "number", "boolean", "null")


def same(first: Any, second: Any) -> bool:
    """JSON's idea of equality: ``1`` is ``1.0`` but not ``true``."""
    return canonical(first) == canonical(second)


def canonical(value: Any) -> str:
    """A text that is equal for equal values."""
    return json.dumps(_canonical(value), sort_keys=True)


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _canonical(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def type_of(value: Any) -> str:
    """The narrowest JSON type of a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "integer"
    for kind, name in ((float, "number"), (str, "string"), (list, "array"), (Mapping, "object")):
        if isinstance(value, kind):
            return name
    raise TypeError(f"not a JSON value: {value!r}")


def is_listed(plain: Mapping[str, Any]) -> bool:
    """True when the schema lists its values."""
    return "enum" in plain


def types_of(plain: Mapping[str, Any]) -> list[str]:
    """The types of what a schema is used for; without ``type``, those that its keywords speak about."""
    if "type" in plain:
        return [name for name in plain["type"] if name != "integer" or "number" not in plain["type"]]
    if is_listed(plain):
        return list(dict.fromkeys(type_of(value) for value in plain["enum"]))
    spoken = [name for name, keywords in KEYWORDS.items() if any(keyword in plain for keyword in keywords)]
    return spoken or list(ALL_TYPES)


def allowed_types(plain: Mapping[str, Any]) -> set[str]:
    """The types that a value may have; numbers may be whole."""
    named = set(plain.get("type", ALL_TYPES))
    return named | {"integer"} if "number" in named else named


def bounds_of(plain: Mapping[str, Any]) -> Bounds:
    """The bounds of a number."""
    low, above_low = _stricter(plain, "minimum", "exclusiveMinimum", max)
    high, below_high = _stricter(plain, "maximum", "exclusiveMaximum", min)
    return Bounds(low, high, above_low, below_high)


def _stricter(plain: Mapping[str, Any], with_itself: str, without: str, pick: Any) -> tuple[Decimal | None, bool]:
    inclusive = [Decimal(str(plain[name])) for name in (with_itself,) if plain.get(name) is not None]
    exclusive = [Decimal(str(plain[name])) for name in (without,) if plain.get(name) is not None]
    if not inclusive and not exclusive:
        return None, False
    limit = pick([*inclusive, *exclusive])
    return limit, limit in exclusive


def admits(plain: Mapping[str, Any], value: Any) -> bool:
    """True when the value fits, which is decided for everything but the inside of objects and arrays."""
    kind = type_of(value)
    if kind not in allowed_types(plain):
        return False
    if is_listed(plain) and not any(same(value, listed) for listed in plain["enum"]):
        return False
    if kind in ("object", "array") and any(keyword in plain for keyword in STRUCTURAL):
        raise NotImplementedError("'enum' or 'const' of objects or arrays does not go together with other keywords")
    if kind in ("integer", "number"):
        return _admits_number(plain, value)
    return kind != "string" or _admits_string(plain, value)


def _admits_number(plain: Mapping[str, Any], value: float) -> bool:
    bounds, number = bounds_of(plain), Decimal(str(value))
    if bounds.low is not None and (number <= bounds.low if bounds.above_low else number < bounds.low):
        return False
    if bounds.high is not None and (number >= bounds.high if bounds.below_high else number > bounds.high):
        return False
    return "multipleOf" not in plain or number % Decimal(str(plain["multipleOf"])) == 0


def _admits_string(plain: Mapping[str, Any], value: str) -> bool:
    if not plain.get("minLength", 0) <= len(value) <= plain.get("maxLength", len(value)):
        return False
    return "pattern" not in plain or re.search(plain["pattern"], value) is not None


def distinct(values: Iterable[Any]) -> list[Any]:
    """The values without repetitions."""
    return list({canonical(value): value for value in values}.values())
