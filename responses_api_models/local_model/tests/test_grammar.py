"""Whatever a grammar accepts fits the schema that it was made from."""

import json
import re
from random import Random
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from responses_api_models.local_model.grammar import SchemaError, completion_grammar
from responses_api_models.local_model.tests.grammar_sampler import sample

SAMPLES = 12


def samples(schema: Any, *, count: int = SAMPLES, seed: int = 0) -> list[Any]:
    """Values that the grammar accepts, each checked against the schema."""
    grammar = completion_grammar([], schema=schema)
    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    random = Random(seed)
    texts = [text for _ in range(count) if (text := sample(grammar, random)) is not None]
    values = [json.loads(text) for text in texts]
    for text, value in zip(texts, values, strict=True):
        try:
            validator(schema).validate(value)
        except jsonschema.ValidationError as error:
            pytest.fail(f"{text} does not fit {json.dumps(schema)}: {error.message}")
    return values


names = st.sampled_from(["a", "b", "ab", "name", "größe", 'quo"te', "back\\slash", "a b"])
small = st.integers(min_value=-120, max_value=1200)


@st.composite
def strings_schemas(draw: st.DrawFn) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    least = draw(st.none() | st.integers(0, 12))
    if least is not None:
        schema["minLength"] = least
    if draw(st.booleans()):
        schema["maxLength"] = (least or 0) + draw(st.integers(0, 20))
    return schema


PATTERNS = [
    r"^[a-z]+$",
    r"^[A-Z]{2,3}-\d{4}$",
    r"\d+",
    r"^(foo|ba[rz])(-\w+)*$",
    r"^[^\"\\\s]{1,8}$",
    r"^\S+@\S+\.[a-z]{2,}$",
    r"^a.c$|^x+y?$",
    r"^[\w.+-]+$",
    r'^["\\/]{2}$',
    r"^\$\d{1,3}(\.\d\d)?$",
    r"^(?:[01]\d|2[0-3]):[0-5]\d$",
]


@st.composite
def pattern_schemas(draw: st.DrawFn) -> dict[str, Any]:
    return {"type": "string", "pattern": draw(st.sampled_from(PATTERNS))}


@st.composite
def number_schemas(draw: st.DrawFn) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": draw(st.sampled_from(["integer", "number"]))}
    bound = small | st.floats(-100, 100).map(lambda x: round(x, 3))
    if draw(st.booleans()):
        schema[draw(st.sampled_from(["minimum", "exclusiveMinimum"]))] = low = draw(bound)
        if draw(st.booleans()):
            schema[draw(st.sampled_from(["maximum", "exclusiveMaximum"]))] = low + draw(st.integers(2, 5000))
    elif draw(st.booleans()):
        schema["maximum"] = draw(bound)
    if draw(st.integers(0, 3)) == 0:
        schema["multipleOf"] = draw(st.sampled_from([1, 2, 3, 7, 10, 25]))
    return schema


scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["x", 'a"b', "\n", "😀", ""]) | st.just(1.5)
enum_schemas = st.lists(scalars, min_size=1, max_size=5).map(lambda values: {"enum": values})
const_schemas = scalars.map(lambda value: {"const": value})
simple_schemas = (
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["string", "null"]}, {}, True, {"type": "object"}])
    | strings_schemas()
    | pattern_schemas()
    | number_schemas()
    | enum_schemas
    | const_schemas
    | st.sampled_from(["date", "time", "date-time", "email", "uuid", "ipv4", "uri"]).map(
        lambda name: {"type": "string", "format": name}
    )
)


def object_schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    @st.composite
    def build(draw: st.DrawFn) -> dict[str, Any]:
        properties = draw(st.dictionaries(names, inner, max_size=4))
        schema: dict[str, Any] = {"type": "object", "properties": properties}
        if draw(st.booleans()):
            schema["required"] = draw(st.lists(st.sampled_from([*properties, "extra"]), unique=True, max_size=4))
        if draw(st.booleans()):
            schema["additionalProperties"] = draw(st.booleans() | inner)
        if draw(st.integers(0, 4)) == 0:
            schema["maxProperties"] = draw(st.integers(0, 5))
        if draw(st.integers(0, 4)) == 0:
            schema["minProperties"] = draw(st.integers(0, 2))
        return schema

    return build()


def array_schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    @st.composite
    def build(draw: st.DrawFn) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "array", "items": draw(inner)}
        if draw(st.integers(0, 3)) == 0:
            schema["prefixItems"] = draw(st.lists(inner, max_size=3))
        least = draw(st.integers(0, 3))
        if draw(st.booleans()):
            schema["minItems"] = least
        if draw(st.booleans()):
            schema["maxItems"] = least + draw(st.integers(0, 3))
        if draw(st.integers(0, 3)) == 0:
            schema["uniqueItems"] = True
        return schema

    return build()


def combined_schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    parts = st.lists(inner, min_size=1, max_size=3)
    return st.builds(lambda keyword, found: {keyword: found}, st.sampled_from(["anyOf", "oneOf", "allOf"]), parts)


schemas = st.recursive(
    simple_schemas,
    lambda inner: object_schemas(inner) | array_schemas(inner) | combined_schemas(inner),
    max_leaves=8,
)


@settings(deadline=None, max_examples=100)
@given(schema=schemas, seed=st.integers(0, 1000))
def test_every_accepted_text_fits_the_schema(schema: Any, seed: int) -> None:
    try:
        samples(schema, count=3, seed=seed)
    except SchemaError:
        return  # refused by name, which is the other allowed outcome


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"pet": {"enum": ["cat", "dog"]}}, "type": "array", "items": {"$ref": "#/$defs/pet"}, "minItems": 1},
        {
            "$defs": {
                "node": {
                    "type": "object",
                    "properties": {"value": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}},
                    "required": ["value"],
                }
            },
            "$ref": "#/$defs/node",
        },
        {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}},
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#"}}]},
        {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 3},
        {
            "type": "object",
            "properties": {"id": {"type": "integer"}},
            "required": ["id"],
            "additionalProperties": {"type": "boolean"},
        },
        {"type": "object", "patternProperties": {"^x-[a-z]+$": {"type": "null"}}, "additionalProperties": False},
        {"type": "object", "propertyNames": {"pattern": "^[a-z]{2}$"}, "additionalProperties": {"type": "number"}},
        {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False, "minItems": 2},
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "items": [{"type": "string"}],
            "additionalItems": {"type": "boolean"},
        },
        {"type": "array", "items": {"enum": ["a", "b", "c", "d"]}, "uniqueItems": True, "minItems": 2, "maxItems": 3},
        {"type": ["integer", "null"], "minimum": 0, "maximum": 9},
        {"enum": [{"a": [1, 2]}, [], "x", None, True, 1.5]},
        {"allOf": [{"type": "number", "minimum": 3}, {"type": "integer", "maximum": 5}]},
        {
            "allOf": [
                {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"properties": {"b": {"type": "string"}, "a": {"maximum": 3}}, "additionalProperties": False},
            ]
        },
        {"type": "string", "pattern": "^[a-z]+$", "minLength": 3, "maxLength": 5},
        {"type": "string", "pattern": "^[a-z]+(-[a-z]+)*$", "maxLength": 20},
        {"type": "string", "pattern": "foo", "minLength": 6, "maxLength": 8},
        {"type": "string", "enum": ["a", "bb", "ccc"], "minLength": 2},
        {"type": "string", "minLength": 600, "maxLength": 5000},
    ],
    ids=json.dumps,
)
def test_accepted_texts_fit(schema: Any) -> None:
    assert samples(schema)


def test_one_of_takes_alternatives_apart_by_their_tag() -> None:
    cat = {"properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}}, "required": ["kind", "lives"]}
    dog = {"properties": {"kind": {"const": "dog"}, "tricks": {"type": "integer"}}, "required": ["kind"]}
    kinds = {value["kind"] for value in samples({"type": "object", "oneOf": [cat, dog]})}
    assert kinds == {"cat", "dog"}


def test_optional_properties_come_and_go() -> None:
    properties = {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}
    schema = {"type": "object", "properties": properties, "required": ["b"]}
    shapes = {tuple(value) for value in samples(schema, count=60)}
    assert shapes == {("b",), ("a", "b"), ("b", "c"), ("a", "b", "c")}


def test_a_property_that_nothing_fits_is_left_out() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": []}, "b": {"const": 1}}, "required": ["b"]}
    assert {json.dumps(value) for value in samples(schema)} == {'{"b": 1}'}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "object", "properties": {"a": {"not": {"type": "string"}}}}, '"not"'),
        ({"if": {}, "then": {}}, '"if"'),
        ({"type": "array", "contains": {"type": "integer"}}, '"contains"'),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, '"dependentRequired"'),
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, '"uniqueItems"'),
        ({"properties": {"a": {}}, "additionalProperties": True, "maxProperties": 1}, "maxProperties"),
        ({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}, "oneOf"),
        ({"$ref": "https://example.com/schema"}, "https://example.com/schema"),
        ({"$ref": "#/$defs/nothing"}, "does not exist"),
        ({"$ref": "#"}, "no value fits"),
        ({"type": "string", "pattern": "(?=a)b"}, "regex parse error"),
        ({"type": "string", "pattern": "^ab$", "minLength": 5}, "Unsatisfiable"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "Unsatisfiable"),
        ({"enum": []}, "Unsatisfiable"),
        (False, "Unsatisfiable"),
        ({"type": "wish"}, "Invalid type: wish"),
        ({"type": "object", "required": "a"}, "'required'"),
        ({"type": "object", "properties": {"a": "string"}}, "must be an object or boolean"),
        ({"type": "string", "maxLength": True}, "'maxLength'"),
    ],
    ids=str,
)
def test_a_schema_that_cannot_be_kept_is_refused_with_the_reason(schema: Any, reason: str) -> None:
    with pytest.raises(SchemaError, match=f"response format: .*{re.escape(reason)}"):
        completion_grammar([], schema=schema)


@pytest.mark.parametrize("annotation", [{"format": "password"}, {"uniqueItems": False}, {"nullable": True}], ids=str)
def test_annotations_that_restrict_nothing_are_ignored(annotation: dict[str, Any]) -> None:
    assert completion_grammar([], schema={"const": "x", **annotation}).accepts('"x"', cut_off=False)


def test_values_in_a_schema_are_not_read_as_schemas() -> None:
    value = {"properties": {"format": "odd"}, "uniqueItems": True}
    assert completion_grammar([], schema={"const": value}).accepts(json.dumps(value), cut_off=False)


def test_undeclared_properties_are_left_out_unless_the_schema_allows_them() -> None:
    closed = {"type": "object", "properties": {"a": {"type": "integer"}}}
    extra = '{"a": 1, "b": 2}'
    assert not completion_grammar([], schema=closed).accepts(extra, cut_off=False)
    assert completion_grammar([], schema={**closed, "additionalProperties": True}).accepts(extra, cut_off=False)
    both = {"allOf": [closed, {"properties": {"b": {"type": "integer"}}, "required": ["b"]}]}
    assert completion_grammar([], schema=both).accepts(extra, cut_off=False)
