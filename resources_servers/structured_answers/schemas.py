"""JSON Schemas of rows: made strict, compiled, and read for the types that XML and CSV lack."""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, TypeAlias

import orjson

from nemo_gym.errors import ConfigError

Schema: TypeAlias = Mapping[str, Any]

MAX_REFERENCES: Final = 8
MAX_MESSAGE: Final = 300
_WHOLE: Final = re.compile(r"[+-]?\d{1,18}\Z")
_NUMBER: Final = re.compile(r"[+-]?(\d{1,30}(\.\d{0,30})?|\.\d{1,30})([eE][+-]?\d{1,3})?\Z")
_TRUTH: Final = {"true": True, "false": False}


class CompiledSchema:
    """A schema that is ready to validate."""

    def __init__(self, schema: Any) -> None:
        try:
            import jsonschema_rs  # noqa: PLC0415 - only this environment needs it
        except ImportError as error:
            raise ConfigError(
                "structured_answers needs the package jsonschema-rs, which is not installed",
                hint="pip install -r resources_servers/structured_answers/requirements.txt",
            ) from error
        self.schema = schema
        # Nothing is fetched: a schema that refers to another one elsewhere is refused.
        self._validator = jsonschema_rs.validator_for(schema, offline=True)

    def error(self, value: Any) -> str | None:
        """Why the value does not fit; None if it does."""
        for error in self._validator.iter_errors(value):
            place = "/".join(map(str, error.instance_path))
            return f"{place[:100]}: {error.message}"[:MAX_MESSAGE] if place else str(error.message)[:MAX_MESSAGE]
        return None


@lru_cache(maxsize=256)
def compile_schema(text: str, *, strict: bool) -> CompiledSchema:
    """The schema of a row; rows of one dataset share few. Raises ValueError if it is not a schema."""
    schema = orjson.loads(text)
    return CompiledSchema(strict_schema(schema) if strict else schema)


def strict_schema(schema: Any) -> Any:
    """The schema with every property required and no others allowed, wherever it does not say otherwise itself."""
    if isinstance(schema, list):
        return [strict_schema(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    # Values that only look like schemas stay as they are.
    made = {
        key: value if key in {"enum", "const", "default"} else strict_schema(value) for key, value in schema.items()
    }
    if isinstance(schema.get("properties"), dict) and schema.get("type", "object") == "object":
        made["required"] = list(schema["properties"])
        made.setdefault("additionalProperties", False)
    return made


def typed(value: Any, schema: Any, root: Any) -> Any:
    """Text of an XML or CSV document, with the types that the schema asks for where the text can be read so."""
    schema = _resolved(schema, root)
    if not isinstance(schema, Mapping):
        return value
    types = _types(schema)
    if "array" in types:
        return _typed_list(value, schema, root)
    if isinstance(value, dict):
        properties = schema.get("properties") or {}
        return {name: typed(each, properties.get(name), root) for name, each in value.items()}
    if value is None and "object" in types:
        return {}
    if value is None and "string" in types and "null" not in types:
        return ""
    return _typed_text(value, types) if isinstance(value, str) else value


def _typed_list(value: Any, schema: Schema, root: Any) -> Any:
    if isinstance(value, dict) and len(value) == 1:
        (value,) = value.values()  # in XML, lists are usually wrapped: <tags><tag>a</tag><tag>b</tag></tags>
    if value is None or value == "":
        return []
    items = value if isinstance(value, list) else [value]
    return [typed(each, schema.get("items"), root) for each in items]


def _typed_text(text: str, types: frozenset[str]) -> Any:
    plain = text.strip()
    if "null" in types and plain in {"", "null"}:
        return None
    if "boolean" in types and plain.lower() in _TRUTH:
        return _TRUTH[plain.lower()]
    if types & {"integer", "number"} and _WHOLE.match(plain):
        return int(plain)
    if "number" in types and _NUMBER.match(plain):
        return float(plain)
    return text


def document_value(document: Any, schema: Any, kind: str) -> Any:
    """The part of a document that the schema is about: without the root element, or the one row of a table."""
    types = _types(_resolved(schema, schema))
    if kind == "csv" and "array" not in types and isinstance(document, list) and len(document) == 1:
        return document[0]
    if kind == "xml" and isinstance(document, dict) and len(document) == 1:
        (root,) = document
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        return document if properties and set(properties) == {root} else document[root]
    return document


def _types(schema: Any) -> frozenset[str]:
    if not isinstance(schema, Mapping):
        return frozenset()
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset({named})
    if isinstance(named, list):
        return frozenset(named)
    return frozenset(_types_of_alternatives(schema))


def _types_of_alternatives(schema: Schema) -> Iterator[str]:
    for keyword in ("anyOf", "oneOf"):
        for each in schema.get(keyword) or ():
            if isinstance(each, Mapping) and isinstance(each.get("type"), str):
                yield each["type"]
    if "properties" in schema:
        yield "object"


def _resolved(schema: Any, root: Any) -> Any:
    for _ in range(MAX_REFERENCES):  # a schema may refer to itself
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            return schema
        found = root
        for part in schema["$ref"].removeprefix("#").strip("/").split("/"):
            found = found.get(part.replace("~1", "/").replace("~0", "~"), {}) if isinstance(found, Mapping) else {}
        schema = found
    return schema
