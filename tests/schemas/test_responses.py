"""Requests and responses: what is required, refused and kept, and in which order it is written."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from nemo_gym.openai_utils import (
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseOutputMessage,
)

RESPONSE: dict[str, Any] = {
    "id": "resp",
    "created_at": 1.0,
    "model": "m",
    "object": "response",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}
KEYS = (
    "id created_at error incomplete_details instructions metadata model object output parallel_tool_calls temperature "
    "tool_choice tools top_p background conversation max_output_tokens max_tool_calls previous_response_id prompt "
    "prompt_cache_key reasoning safety_identifier service_tier status text top_logprobs truncation usage user"
)
OPTIONAL = (
    "background include instructions max_output_tokens max_tool_calls metadata model previous_response_id prompt "
    "reasoning service_tier store temperature text top_logprobs top_p truncation user stream"
)


def answer(*texts: str) -> dict[str, Any]:
    parts = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {"type": "message", "id": "m", "role": "assistant", "content": parts}


def test_a_response_writes_all_its_fields_in_the_order_of_the_interface() -> None:
    response = NeMoGymResponse.model_validate(RESPONSE)

    assert list(response.model_dump()) == KEYS.split()
    assert list(json.loads(response.model_dump_json())) == KEYS.split()


@pytest.mark.parametrize("name", sorted(RESPONSE))
def test_a_response_needs_its_required_fields(name: str) -> None:
    with pytest.raises(ValidationError, match=name):
        NeMoGymResponse.model_validate({key: value for key, value in RESPONSE.items() if key != name})


def test_a_response_keeps_fields_it_does_not_know() -> None:
    response = NeMoGymResponse.model_validate(RESPONSE | {"billing": {"payer": "me"}, "env_id": "e1"})

    assert response.model_dump(exclude_unset=True) == RESPONSE | {"billing": {"payer": "me"}, "env_id": "e1"}


def test_the_output_text_is_everything_the_model_said() -> None:
    refusal = {"type": "message", "id": "r", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    easy = {"role": "assistant", "content": "quoted"}
    thought = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]}
    output = [thought, answer("a", "b"), refusal, call, easy, answer("c")]

    assert NeMoGymResponse.model_validate(RESPONSE | {"output": output}).output_text == "abc"


def test_parts_that_people_read_are_objects() -> None:
    details = {"incomplete_details": {"reason": "max_output_tokens"}, "error": {"code": "x", "message": "broken"}}
    usage = {
        "input_tokens": 1,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 5},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 3,
    }

    response = NeMoGymResponse.model_validate(RESPONSE | details | {"usage": usage})

    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.error is not None
    assert response.error.message == "broken"
    assert response.usage is not None
    assert response.usage.model_dump() == usage


def test_an_unknown_output_item_is_named() -> None:
    with pytest.raises(ValidationError, match="'clairvoyance'"):
        NeMoGymResponse.model_validate(RESPONSE | {"output": [{"type": "clairvoyance", "id": "f"}]})


def test_a_request_has_the_defaults_of_the_interface() -> None:
    params = NeMoGymResponseCreateParamsNonStreaming(input="hi")

    given = {"input": "hi", "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    assert params.model_dump() == dict.fromkeys(OPTIONAL.split()) | given
    assert params.model_dump(exclude_unset=True) == {"input": "hi"}


def test_a_request_refuses_options_it_does_not_know() -> None:
    with pytest.raises(ValidationError, match="temprature"):
        NeMoGymResponseCreateParamsNonStreaming.model_validate({"input": "hi", "temprature": 1})


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"input": None},
        {"input": [{"role": "robot", "content": "hi"}]},
        {"input": "hi", "stream": True},
        {"input": "hi", "metadata": {"n": 1}},
        {"input": "hi", "tools": [{"type": "function"}]},
        {"input": "hi", "tools": [{"type": "function", "name": "f", "parameters": "x"}]},
        {"input": "hi", "tools": [{"name": "f"}]},
        {"input": "hi", "tool_choice": "sometimes"},
    ],
)
def test_a_request_refuses_wrong_values(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        NeMoGymResponseCreateParamsNonStreaming.model_validate(wrong)


def test_tools_stay_as_they_were_given() -> None:
    tools = [
        {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True, "defer_loading": False},
        {"type": "function", "name": "g"},
        {"type": "web_search", "filters": {"allowed_domains": ["example.org"]}},
    ]

    params = NeMoGymResponseCreateParamsNonStreaming.model_validate({"input": "hi", "tools": tools})

    assert params.model_dump(exclude_unset=True)["tools"] == tools
    assert json.loads(params.model_dump_json(exclude_unset=True))["tools"] == tools


def test_requests_share_no_defaults() -> None:
    one, two = (NeMoGymResponseCreateParamsNonStreaming(input="hi") for _ in range(2))

    one.tools.append({"type": "function", "name": "f"})

    assert two.tools == []


def test_an_error_says_where_in_the_input_it_is() -> None:
    with pytest.raises(ValidationError) as error:
        NeMoGymResponseCreateParamsNonStreaming.model_validate({"input": [{"role": "user"}]})

    assert ("input", "items", 0, "easy_message", "content") in [entry["loc"] for entry in error.value.errors()]


def test_an_answer_can_be_sent_back_as_input() -> None:
    response = NeMoGymResponse.model_validate(RESPONSE | {"output": [answer("hi")]})

    params = NeMoGymResponseCreateParamsNonStreaming(input=response.output)

    assert isinstance(params.input[0], NeMoGymResponseOutputMessage)
    assert params.model_dump(exclude_unset=True) == {"input": [answer("hi")]}
