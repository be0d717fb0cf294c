"""Requests are read once, and mistakes in them are reported."""

from typing import Any

import pytest

from nemo_gym.servers.models.model_requests import ForwardedChatParams
from responses_api_models.local_model.request import ChatRequest, RequestError, read_request


def function(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}


def read(*, defaults: dict[str, Any] | None = None, **options: Any) -> ChatRequest:
    asked = {"messages": [{"role": "user", "content": "?"}], **options}
    return read_request(ForwardedChatParams.model_validate(asked), defaults or {})


def test_the_request_goes_before_its_metadata_and_that_before_the_configuration() -> None:
    metadata = {"extra_body": '{"temperature": 0.5, "top_k": 7, "seed": 3, "repetition_penalty": 1.1}'}
    request = read(defaults={"top_k": 1, "min_p": 0.2, "temperature": 0.1}, temperature=0.0, metadata=metadata)
    assert request.sampling == {"temperature": 0.0, "top_k": 7, "min_p": 0.2, "seed": 3, "repeat_penalty": 1.1}


def test_options_that_the_protocol_does_not_know_are_read() -> None:
    request = read(top_k=5, chat_template_kwargs={"a": 1}, extra_body={"min_p": 0.2, "top_k": 9})
    assert request.sampling == {"top_k": 5, "min_p": 0.2}
    assert request.template_options == {"a": 1}


def test_what_the_server_decides_can_not_be_smuggled_in() -> None:
    metadata = {"extra_body": '{"prompt": "x", "grammar": "root ::= \\"x\\"", "stream": true, "n_predict": 5}'}
    assert read(metadata=metadata).sampling == {}
    assert read(metadata=metadata).lost == ("prompt", "grammar", "n_predict")


def test_an_effort_reaches_the_template() -> None:
    assert read(reasoning_effort="high").template_options == {"reasoning_effort": "high"}


def test_seeds_of_any_size_are_taken() -> None:
    assert read(seed=2**40 + 5).sampling["seed"] < 2**32
    assert read(seed=-1).sampling["seed"] >= 0


def test_stop_words_and_biases_take_the_engines_form() -> None:
    assert read(stop="end", logit_bias={"17": -100}).sampling == {"stop": ["end"], "logit_bias": [[17, -100.0]]}


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 7}, 7),
        ({"metadata": {"extra_body": '{"max_tokens": 9}'}}, 9),
    ],
)
def test_the_limit_of_tokens(options: dict[str, Any], limit: int | None) -> None:
    assert read(**options).max_tokens == limit


@pytest.mark.parametrize(
    ("choice", "offered", "mode"),
    [
        (None, ["a", "b"], "auto"),
        ("auto", ["a", "b"], "auto"),
        ("none", [], "auto"),
        ("required", ["a", "b"], "required"),
        ({"type": "function", "function": {"name": "b"}}, ["b"], "required"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [function("a")]}}, ["a"], "auto"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [function("a")]}}, ["a"], "required"),
    ],
)
def test_tool_choice_says_what_is_offered(choice: Any, offered: list[str], mode: str) -> None:
    request = read(tools=[function("a"), function("b")], tool_choice=choice)
    assert ([tool.name for tool in request.tools], request.choice) == (offered, mode)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tool_choice": "required"}, "there are no tools"),
        ({"tools": [function("a")], "tool_choice": {"type": "function", "function": {"name": "z"}}}, "names 'z'"),
        ({"tools": [function("a")], "tool_choice": {"type": "web_search"}}, "not supported"),
        ({"metadata": {"extra_body": "{"}}, "metadata.extra_body"),
        ({"tools": [{"type": "custom", "custom": {"name": "python"}}]}, "only functions"),
        ({"metadata": {"chat_template_kwargs": "[1]"}}, "metadata.chat_template_kwargs"),
        ({"messages": []}, "no messages"),
        ({"max_tokens": 0}, "at least 1"),
        ({"metadata": {"extra_body": '{"max_tokens": "many"}'}}, "not 'many'"),
        ({"n": 0}, "n must be"),
        ({"top_logprobs": -1}, "top_logprobs must be"),
        ({"response_format": {"type": "poem"}}, "'poem'"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        read(**options)


def test_a_text_may_have_to_be_json() -> None:
    assert read().schema is None
    assert read(response_format={"type": "json_object"}).schema == {"type": "object"}
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}
    assert read(response_format=schema).schema == {"type": "integer"}


def test_a_request_may_want_one_call_at_a_time() -> None:
    assert read(tools=[function("a")], parallel_tool_calls=False).one_call
    assert not read(tools=[function("a")]).one_call


def test_log_probabilities_are_given_when_asked_for() -> None:
    assert read().top_logprobs is None
    assert read(logprobs=True).top_logprobs == 0
    assert read(logprobs=True, top_logprobs=3).top_logprobs == 3
