"""The real model calls tools and follows schemas."""

import asyncio
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from responses_api_models.local_model.app import LocalModel
from responses_api_models.local_model.tests.conftest import CALCULATOR, QUESTION, ask, seeded

CALCULATOR_TASKS = Path(__file__).parents[3] / "resources_servers/calculator/data/example.jsonl"


async def test_a_text_can_be_held_to_a_schema(model: LocalModel) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 10}, "age": {"type": "integer", "maximum": 120}},
        "required": ["name", "age"],
    }
    wanted = {"format": {"type": "json_schema", "name": "person", "schema": schema}}
    response = await ask(model, "Bob is 5 years old.", text=wanted, max_output_tokens=60)
    jsonschema.validate(json.loads(response.output_text), schema)


async def test_a_tool_is_called_and_its_result_told(model: LocalModel) -> None:
    first = await ask(model, [QUESTION], tools=[CALCULATOR], max_output_tokens=60)
    [call] = first.output
    assert call.type == "function_call"
    assert json.loads(call.arguments) == {"expression": "55 + 31"}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": '{"result": "86"}'}
    second = await ask(model, [QUESTION, call, result], tools=[CALCULATOR], max_output_tokens=60)
    assert "86" in second.output_text
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens > 100


async def test_a_call_ends_with_the_token_that_the_template_ends_answers_with(training_model: LocalModel) -> None:
    response = await ask(training_model, [QUESTION], tools=[CALCULATOR], max_output_tokens=60)
    [call] = response.output
    assert call.type == "function_call"
    assert call.model_dump()["generation_token_ids"][-1] == await training_model._model.pool.eos_token()


async def test_a_model_that_has_seen_calls_makes_none_where_it_may_not(model: LocalModel) -> None:
    with CALCULATOR_TASKS.open() as file:
        task = json.loads(file.readline())["responses_create_params"]
    for choice, kind in (("auto", "function_call"), ("none", "message")):
        response = await ask(model, task["input"], tools=task["tools"], tool_choice=choice, max_output_tokens=40)
        assert [item.type for item in response.output] == [kind]
        assert "<tool" not in response.output_text


async def test_tool_choice_is_obeyed(model: LocalModel) -> None:
    story = "Tell me a story."
    for choice in ("required", {"type": "function", "name": "calculator"}):
        response = await ask(model, story, tools=[CALCULATOR], tool_choice=choice, max_output_tokens=80)
        assert [item.type for item in response.output] == ["function_call"]
    response = await ask(model, QUESTION["content"], tools=[CALCULATOR], tool_choice="none")
    assert [item.type for item in response.output] == ["message"]


async def test_a_call_that_is_cut_off_does_not_count(model: LocalModel) -> None:
    response = await ask(model, [QUESTION], tools=[CALCULATOR], tool_choice="required", max_output_tokens=8)
    assert [item.type for item in response.output] == ["message"]
    assert response.output_text == ""
    assert response.incomplete_details is not None


WILD = [
    {"type": "object", "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 17}}, "required": ["n"]},
    {
        "type": "object",
        "properties": {"x": {"type": "number", "exclusiveMinimum": -1, "maximum": 1}},
        "required": ["x"],
    },
    {
        "type": "object",
        "properties": {"code": {"type": "string", "pattern": r"^[A-Z]{2}-\d{3}$"}},
        "required": ["code"],
    },
    {"type": "object", "properties": {"when": {"type": "string", "format": "date"}, "ok": {"type": "boolean"}}},
    {
        "type": "object",
        "properties": {
            "tags": {"type": "array", "items": {"enum": ["red", "grün", '"blue"']}, "minItems": 1, "maxItems": 3},
            "where": {"type": "object", "properties": {"x": {"type": "null"}}, "required": ["x"]},
        },
        "required": ["tags", "where"],
    },
    {
        "type": "object",
        "propertyNames": {"pattern": "^[a-z]{1,4}$"},
        "additionalProperties": {"type": "integer", "multipleOf": 5, "maximum": 100},
        "maxProperties": 2,
    },
]


@pytest.mark.parametrize("schema", WILD, ids=json.dumps)
async def test_the_wildest_guesses_fit_the_schema(model: LocalModel, schema: dict[str, Any]) -> None:
    wanted = {"format": {"type": "json_schema", "name": "wild", "schema": schema}}
    wild: dict[str, Any] = {"text": wanted, "temperature": 3.0, "max_output_tokens": 50}
    answers = [ask(model, "Act.", metadata=seeded(seed, top_k=0, top_p=1, min_p=0), **wild) for seed in range(4)]
    finished = [answer for answer in await asyncio.gather(*answers) if answer.status == "completed"]
    assert finished
    for answer in finished:
        jsonschema.validate(json.loads(answer.output_text), schema)
