"""The keywords of JSON Schema: which ones matter, which ones can be kept, what their values must look like. Pure."""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

Schema: TypeAlias = Mapping[str, Any] | bool
Plain: TypeAlias = dict[str, Any]

COMBINED: Final = ("$ref", "allOf", "anyOf", "oneOf", "const")
UNSUPPORTED: Final = ("not", "if", "contains", "dependentSchemas", "dependencies", "$dynamicRef", "$recursiveRef")
# Keywords without a say in what is valid; ``format`` stays, because it says what is sensible.
IGNORED: Final = frozenset(
    [
        "title",
        "description",
        "default",
        "examples",
        "example",
        "deprecated",
        "readOnly",
        "writeOnly",
        "nullable",
        "discriminator",
        "strict",
        "$schema",
        "$id",
        "$comment",
        "$anchor",
        "$defs",
        "definitions",
        "then",
        "else",
        "minContains",
        "maxContains",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
    ]
)


# What the values of keywords must be; anything else is refused before it can confuse.
_COUNT: Final = (int,)
_NUMBER: Final = (int, float)
_SCHEMA: Final = (Mapping, bool)
SHAPES: Final[Mapping[str, tuple[type, ...]]] = {
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _COUNT),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), _NUMBER),
    **dict.fromkeys(("additionalProperties", "propertyNames", "unevaluatedProperties", "unevaluatedItems"), _SCHEMA),
    **dict.fromkeys(("properties", "patternProperties", "dependentRequired"), (Mapping,)),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems", "required", "enum"), (list, tuple)),
    **dict.fromkeys(("pattern", "format", "$ref"), (str,)),
    "items": (*_SCHEMA, list),
    "type": (str, list),
    "uniqueItems": (bool,),
}


class SchemaError(ValueError):
    """A schema that can't become a grammar."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")


def check_shape(schema: Any, where: str) -> None:
    """Refuse what is no schema, and what no grammar can keep."""
    if not isinstance(schema, Mapping | bool):
        raise SchemaError(where, f"a schema is an object, not {schema!r}")
    for keyword, value in schema.items() if isinstance(schema, Mapping) else ():
        if keyword in UNSUPPORTED:
            raise SchemaError(where, f"{keyword!r} can't be expressed in a grammar")
        shape = SHAPES.get(keyword)
        if shape and (not isinstance(value, shape) or (isinstance(value, bool) and bool not in shape)):
            raise SchemaError(where, f"{keyword!r} can't be {value!r}")


def own_keywords(schema: Mapping[str, Any]) -> Plain:
    """What a schema says itself that matters here."""
    plain = {name: value for name, value in schema.items() if name not in IGNORED and name not in COMBINED}
    if isinstance(plain.get("type"), str):
        plain["type"] = [plain["type"]]
    if isinstance(plain.get("items"), list):
        # The older way to write a tuple.
        plain["prefixItems"] = plain["items"]
        plain["items"] = plain.pop("additionalItems", True)
    plain.pop("additionalItems", None)
    for newer, older in (("unevaluatedItems", "items"), ("unevaluatedProperties", "additionalProperties")):
        # By the time that a schema is plain, it has evaluated all it ever will.
        if newer in plain:
            plain.setdefault(older, plain.pop(newer))
            plain.pop(newer, None)
    return plain
