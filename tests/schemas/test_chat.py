"""Chat Completions: messages stay dictionaries, answers keep what they do not know."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymChatCompletionMessage,
    NeMoGymChatCompletionMessageForTraining,
    NeMoGymChoice,
)

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "developer", "content": [{"type": "text", "text": "and kind"}]},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,", "detail": "low"}}]},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hm",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c", "content": "42"},
    {"role": "assistant", "content": "42", "generation_token_ids": [1]},
]


def completion(message: dict[str, Any]) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **message}}
    return {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}


def test_messages_stay_as_they_were_given() -> None:
    params = NeMoGymChatCompletionCreateParamsNonStreaming.model_validate({"messages": MESSAGES})

    assert params.messages == MESSAGES
    assert params.model_dump(exclude_unset=True) == {"messages": MESSAGES}
    assert json.loads(params.model_dump_json(exclude_unset=True)) == {"messages": MESSAGES}


def test_unknown_options_are_ignored() -> None:
    params = NeMoGymChatCompletionCreateParamsNonStreaming.model_validate({"messages": [], "chat_template": "x"})

    assert params.model_dump(exclude_unset=True) == {"messages": []}
    assert params.parallel_tool_calls is True


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user"},
        {"role": "robot", "content": ""},
        {"content": ""},
        {"role": "tool", "content": ""},
        {"role": "user", "content": 1},
    ],
)
def test_a_message_without_its_fields_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        NeMoGymChatCompletionCreateParamsNonStreaming.model_validate({"messages": [message]})


def test_an_answer_keeps_reasoning_and_other_extras() -> None:
    answer = completion({"content": "hi", "reasoning_content": "hm"})

    parsed = NeMoGymChatCompletion.model_validate_json(json.dumps(answer))

    assert parsed.model_dump(exclude_unset=True) == answer
    assert parsed.choices[0].message.model_extra == {"reasoning_content": "hm"}


def test_an_answer_with_token_ids_is_for_training() -> None:
    tokens = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.1]}
    plain = NeMoGymChatCompletion.model_validate(completion({"content": "hi"}))
    trained = NeMoGymChatCompletion.model_validate(completion({"content": "hi", **tokens}))

    assert type(plain.choices[0].message) is NeMoGymChatCompletionMessage
    assert type(trained.choices[0].message) is NeMoGymChatCompletionMessageForTraining
    assert NeMoGymChoice.model_validate(trained.choices[0].model_dump()) == trained.choices[0]
