"""Tools are described, called and read back."""

import json
from random import Random
from typing import Any

import jsonschema
import pytest

from responses_api_models.local_model.grammar import SchemaError, completion_grammar
from responses_api_models.local_model.tests.grammar_sampler import sample
from responses_api_models.local_model.tool_calls import (
    OPEN,
    Answer,
    Call,
    Tool,
    describe_tools,
    read_answer,
    write_call,
)
from responses_api_models.local_model.tool_examples import tool_examples

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


def generated(tools: list[Tool], mode: Any = "auto", *, count: int = 30, **options: Any) -> list[str]:
    grammar = completion_grammar(tools, mode=mode, **options)
    random = Random(1)
    answers = [answer for _ in range(count) if (answer := sample(grammar, random)) is not None]
    assert all(grammar.accepts(answer, cut_off=False) for answer in answers)
    return answers


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
    grammar = completion_grammar([CLOCK])
    call = write_call("clock", "{}")
    for answer in ("Hello <b>you</b>", call, f"Well. {call}", "a <too", f"1 < 2\n{call}"):
        assert grammar.accepts(answer, cut_off=False)
    for answer in ("", "a <tool", f"{call} and more", f"{call}\n{call}", "<tool_response>5</tool_response>"):
        assert not grammar.accepts(answer, cut_off=False)


def test_the_beginning_of_an_answer_is_accepted_if_it_was_cut_off() -> None:
    grammar = completion_grammar([CLOCK], mode="required")
    call = write_call("clock", "{}")
    assert all(grammar.accepts(call[:length], cut_off=True) for length in range(len(call)))
    assert not any(grammar.accepts(call[:length], cut_off=False) for length in range(len(call)))
    assert not grammar.accepts("Hello", cut_off=True)


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
    with pytest.raises(SchemaError, match=r"pick: .*\"not\""):
        completion_grammar([tool], mode="auto")


def test_parameters_that_nothing_fits_are_refused() -> None:
    tool = Tool("pick", "", {"type": "object", "properties": {"x": {"enum": []}}, "required": ["x"]})
    with pytest.raises(SchemaError, match="pick: Unsatisfiable"):
        completion_grammar([tool], mode="required")


@pytest.mark.parametrize("parameters", [{}, {"type": "object", "properties": {}, "required": []}], ids=str)
def test_a_tool_without_parameters_gets_none(parameters: dict[str, Any]) -> None:
    assert set(generated([Tool("clock", "", parameters)], "required", count=20)) == {write_call("clock", "{}")}


def test_an_answer_may_be_a_call_or_json_that_fits_a_schema() -> None:
    texts = set(generated([CLOCK], schema={"enum": ["yes", "no"]}))
    assert texts == {'"yes"', '"no"', write_call("clock", "{}")}
    with pytest.raises(SchemaError, match=r"response format: .*not"):
        completion_grammar([], schema={"not": {}})


def test_without_tools_an_answer_is_text_and_holds_no_call() -> None:
    assert not any("<tool" in text for text in generated([]))
    assert not completion_grammar([]).accepts(write_call("clock", "{}"), cut_off=True)


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
    for example in tool_examples([ORDER]):
        assert json.loads(example.arguments)["dish"]["name"] == "soup"


def test_examples_take_their_values_from_the_schema() -> None:
    first, second, *_ = tool_examples([WEATHER])
    assert first.question == "Tells the weather: Paris"
    assert json.loads(first.arguments) == {"city": "Paris"}
    assert OPEN in write_call(first.tool, first.arguments)
    assert second.question == "What is Paris?"


def test_examples_of_free_texts_differ_and_are_found_in_the_question() -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}, "unit": {"type": "string"}}}
    examples = tool_examples([Tool("get_weather", "Tells the weather.", parameters)])
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
    for example in tool_examples([Tool("f", "Does it.", parameters)]):
        jsonschema.validate(json.loads(example.arguments), parameters)
