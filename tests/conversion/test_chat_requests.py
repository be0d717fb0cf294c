"""Chat requests as requests of the Responses API, and back: nothing that both can say is lost."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.conversion.chat_completions import response_to_completion
from nemo_gym.conversion.chat_requests import chat_to_request
from nemo_gym.openai_utils import NeMoGymChatCompletion, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.responses_converter import ResponsesConverter

CONVERTER = ResponsesConverter(return_token_id_information=True, keep_strict=True)
HISTORY = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}

options = st.fixed_dictionaries(
    {},
    optional={
        "max_tokens": st.integers(1, 9),
        "metadata": st.just({"k": "v"}),
        "reasoning_effort": st.sampled_from(["low", "high"]),
        "response_format": st.sampled_from(
            [
                {"type": "json_object"},
                {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True}},
            ]
        ),
        "temperature": st.floats(0, 2),
        "top_p": st.floats(0, 1),
        "user": st.just("me"),
        "verbosity": st.just("low"),
    },
)
tools = st.just({}) | st.fixed_dictionaries(
    {"tools": st.just([TOOL])},
    optional={
        "parallel_tool_calls": st.booleans(),
        "tool_choice": st.sampled_from(
            ["auto", "none", "required", {"type": "function", "function": {"name": "f"}}, ALLOWED]
        ),
    },
)
scores = st.just({}) | st.just({"logprobs": True}) | st.just({"logprobs": True, "top_logprobs": 2})


@given(options, tools, scores)
def test_options_survive_the_way_there_and_back(some: Any, others: Any, more: Any) -> None:
    chat = {"messages": HISTORY, **some, **others, **more}

    asked, lost = chat_to_request(chat, CONVERTER.history_to_items)

    assert lost == []
    NeMoGymResponseCreateParamsNonStreaming.model_validate(asked)
    assert CONVERTER.request_to_chat(asked) == chat


def test_what_the_responses_api_cannot_express_is_listed() -> None:
    chat = {"messages": HISTORY, "stop": ["x"], "seed": 7, "n": 1, "presence_penalty": 0.0, "stream": False}

    asked, lost = chat_to_request(chat, CONVERTER.history_to_items)

    assert lost == ["seed"]
    assert asked["stop"] == ["x"]  # for the protocol behind


def test_the_newer_name_of_the_limit_means_the_same() -> None:
    asked = chat_to_request({"messages": HISTORY, "max_completion_tokens": 5}, CONVERTER.history_to_items).request

    assert asked["max_output_tokens"] == 5


@pytest.mark.parametrize(
    ("message", "finish_reason"),
    [
        ({"content": "hi"}, "stop"),
        ({"content": None, "refusal": "no"}, "stop"),
        ({"content": "hi", "reasoning_content": "hm"}, "length"),
        (
            {
                "content": None,
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}],
                "prompt_token_ids": [1],
                "generation_token_ids": [2],
                "generation_log_probs": [-0.5],
            },
            "tool_calls",
        ),
    ],
)
def test_a_completion_survives_as_a_response(message: dict[str, Any], finish_reason: str) -> None:
    choice = {"index": 0, "finish_reason": finish_reason, "message": {"role": "assistant", **message}}
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    body = {"id": "x", "object": "chat.completion", "created": 7, "model": "m", "choices": [choice], "usage": usage}
    completion = NeMoGymChatCompletion.model_validate(body)

    back = response_to_completion(CONVERTER.completion_to_response(completion, {"input": "hi"}, model="m"))

    assert back["choices"][0]["message"] == {"role": "assistant", **message}
    assert (back["choices"][0]["finish_reason"], back["created"]) == (finish_reason, 7)
    assert {name: back["usage"][name] for name in usage} == usage


def test_log_probabilities_are_carried_where_they_were_asked_for() -> None:
    scores = [{"token": "hi", "bytes": None, "logprob": -1.0, "top_logprobs": []}]
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}
    body = {"id": "x", "object": "chat.completion", "created": 7, "model": "m"}
    completion = NeMoGymChatCompletion.model_validate(body | {"choices": [choice | {"logprobs": {"content": scores}}]})

    for asked, expected in (({"top_logprobs": 0}, scores), ({"include": ["message.output_text.logprobs"]}, scores)):
        response = CONVERTER.completion_to_response(completion, {"input": "hi", **asked}, model="m")
        assert response["output"][0]["content"][0]["logprobs"] == expected
        assert response_to_completion(response)["choices"][0]["logprobs"] == {"content": scores, "refusal": None}
    silent = CONVERTER.completion_to_response(completion, {"input": "hi"}, model="m")
    assert "logprobs" not in silent["output"][0]["content"][0]
