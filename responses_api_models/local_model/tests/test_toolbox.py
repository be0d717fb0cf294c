"""Tools are described, called and read back."""

import json
from random import Random
from typing import Any

import jsonschema
import pytest

from responses_api_models.local_model.grammar import SchemaError
from responses_api_models.local_model.tests.gbnf_sampler import GbnfSampler
from responses_api_models.local_model.toolbox import (
    OPEN,
    Answer,
    Call,
    answer_grammar,
    describe_tools,
    read_answer,
    write_call,
)
from responses_api_models.local_model.worked_examples import Tool, worked_examples

WEATHER = Tool(
    "get_weather",
    "Tells the weather.",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "The city, e.g. Paris"},
            "unit": {"enum": ["C", "F"]},
            "days": {"type": "array", "items": {"type": "integer"}},
        },
        "required": ["city"],
    },
)
CLOCK = Tool("clock", "", {})


def generated(tools: list[Tool], mode: Any, *, max_calls: int = 1, count: int = 150) -> list[str]:
    sampler = GbnfSampler.read(answer_grammar(tools, mode=mode, max_calls=max_calls))
    random = Random(1)
    return [sampler.sample(random) for _ in range(count)]


def test_tools_are_described_as_signatures() -> None:
    lines = describe_tools([WEATHER, CLOCK]).splitlines()
    assert lines[2:] == ['get_weather(city: string, unit?: "C" | "F", days?: integer[]): Tells the weather.', "clock()"]


def test_every_required_answer_is_a_call_that_fits() -> None:
    schemas = {tool.name: tool.parameters for tool in (WEATHER, CLOCK)}
    seen = set()
    for text in generated([WEATHER, CLOCK], "required"):
        answer = read_answer(text)
        [call] = answer.calls
        assert answer.text == ""
        assert write_call(call.name, call.arguments) == text
        jsonschema.validate(json.loads(call.arguments), schemas[call.name])
        seen.add(call.name)
    assert seen == {"get_weather", "clock"}


def test_a_free_answer_is_text_or_a_call_or_both() -> None:
    answers = [read_answer(text) for text in generated([CLOCK], "auto")]
    kinds = {(bool(answer.text), bool(answer.calls)) for answer in answers}
    assert kinds == {(True, False), (False, True), (True, True)}
    assert not any("<tool" in answer.text for answer in answers)


def test_several_calls_are_read_one_by_one() -> None:
    counts = {len(read_answer(text).calls) for text in generated([CLOCK], "required", max_calls=3)}
    assert counts == {1, 2, 3}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Hello", Answer("Hello", [])),
        (
            'Hm. <tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>',
            Answer("Hm. ", [Call("f", '{"a": "</tool_call>"}')]),
        ),
        ('<tool_call>{"name": "f", "arguments": {"a": "cut', Answer("", [])),
        ('<tool_call>{"name": "f", "arguments": {}}', Answer("", [])),
        ("<tool_call>", Answer("", [])),
        ('<tool_call>{"name": "f", "arguments": ' + "[" * 100_000, Answer("", [])),
    ],
    ids=["text", "both", "cut in the arguments", "cut before the end", "cut at once", "absurdly deep"],
)
def test_what_was_generated_is_read(text: str, answer: Answer) -> None:
    assert read_answer(text) == answer


def test_parameters_that_can_not_be_kept_are_refused_with_their_place() -> None:
    tool = Tool("pick", "", {"type": "object", "properties": {"x": {"not": {}}}})
    with pytest.raises(SchemaError, match=r"pick\.x: 'not'"):
        answer_grammar([tool], mode="auto")


def test_parameters_that_nothing_fits_are_refused() -> None:
    tool = Tool("pick", "", {"type": "object", "properties": {"x": {"enum": []}}, "required": ["x"]})
    with pytest.raises(SchemaError, match="tools: nothing fits"):
        answer_grammar([tool], mode="required")


@pytest.mark.parametrize("parameters", [{}, {"type": "object", "properties": {}, "required": []}], ids=str)
def test_a_tool_without_parameters_gets_none(parameters: dict[str, Any]) -> None:
    assert set(generated([Tool("clock", "", parameters)], "required", count=20)) == {write_call("clock", "{}")}


def test_an_answer_may_be_a_call_or_json_that_fits_a_schema() -> None:
    sampler = GbnfSampler.read(answer_grammar([CLOCK], schema={"enum": ["yes", "no"]}))
    random = Random(1)
    texts = {sampler.sample(random) for _ in range(50)}
    assert texts == {'"yes"', '"no"', write_call("clock", "{}")}
    with pytest.raises(SchemaError, match="response format: 'not'"):
        answer_grammar([], schema={"not": {}})


def test_without_tools_an_answer_is_text_and_holds_no_call() -> None:
    sampler = GbnfSampler.read(answer_grammar([]))
    random = Random(1)
    assert not any("<tool" in sampler.sample(random) for _ in range(200))


ORDER = Tool(
    "order",
    "Orders a dish.",
    {
        "$defs": {
            "Dish": {"type": "object", "properties": {"name": {"enum": ["soup"]}, "side": {"$ref": "#/$defs/Dish"}}},
            "Size": {"enum": ["S", "L"]},
        },
        "type": "object",
        "properties": {"dish": {"$ref": "#/$defs/Dish"}, "size": {"allOf": [{"$ref": "#/$defs/Size"}]}},
        "required": ["dish"],
    },
)


def test_references_are_followed_in_descriptions_and_examples() -> None:
    [*_, described] = describe_tools([ORDER]).splitlines()
    assert described.startswith('order(dish: {name?: "soup", side?: {')
    assert described.endswith('size?: "S" | "L"): Orders a dish.')
    for example in worked_examples([ORDER]):
        assert json.loads(example.arguments)["dish"]["name"] == "soup"


def test_examples_take_their_values_from_the_schema() -> None:
    first, second, *_ = worked_examples([WEATHER])
    assert first.question == "Tells the weather: Paris"
    assert json.loads(first.arguments) == {"city": "Paris"}
    assert OPEN in write_call(first.tool, first.arguments)
    assert second.question == "What is Paris?"


def test_examples_of_free_texts_differ_and_are_found_in_the_question() -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}, "unit": {"type": "string"}}}
    examples = worked_examples([Tool("get_weather", "Tells the weather.", parameters)])
    assert len({example.arguments for example in examples}) == len(examples)
    for example in examples:
        assert all(value in example.question for value in json.loads(example.arguments).values())


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "properties": {"n": {"type": "integer", "minimum": 7}}, "required": ["n"]},
        {"type": "object", "properties": {"o": {"type": "object", "properties": {"b": {"type": "boolean"}}}}},
        {"type": "object", "properties": {"l": {"type": "array", "items": {"type": ["null", "string"]}}}},
        {"type": "object", "properties": {"x": {"anyOf": [{"const": 3}, {"type": "string"}]}}},
        {"type": "object", "properties": {"e": {"examples": ["one", "two"]}, "d": {"default": 5}}},
        {"type": "object", "properties": {"null": {"type": "null"}}},
        {"type": "object", "properties": {"n": {"type": "integer", "maximum": 0}, "m": {"multipleOf": 5}}},
        {"type": "object", "properties": {"p": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}}},
        {"type": "object", "properties": {"when": {"type": "string", "format": "date"}}},
        {},
    ],
    ids=json.dumps,
)
def test_examples_of_common_schemas_fit_them(parameters: dict[str, Any]) -> None:
    for example in worked_examples([Tool("f", "Does it.", parameters)]):
        jsonschema.validate(json.loads(example.arguments), parameters)
