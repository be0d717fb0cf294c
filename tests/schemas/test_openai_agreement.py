"""Our types and those of the real ``openai`` client read each other's dumps."""

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)

OUTPUT: list[dict[str, Any]] = [
    {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "hm"}],
        "encrypted_content": "gAAA",
        "content": [{"type": "reasoning_text", "text": "long"}],
    },
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "phase": "final_answer",
        "content": [
            {
                "type": "output_text",
                "text": "hi",
                "annotations": [
                    {"type": "url_citation", "start_index": 0, "end_index": 2, "title": "t", "url": "https://e.org"}
                ],
                "logprobs": [{"token": "hi", "bytes": [104, 105], "logprob": -0.1, "top_logprobs": []}],
            },
            {"type": "refusal", "refusal": "no"},
        ],
    },
    {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "f",
        "arguments": "{}",
        "status": "completed",
    },
]
RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1741476542.0,
    "status": "incomplete",
    "error": None,
    "incomplete_details": {"reason": "max_output_tokens"},
    "instructions": "be brief",
    "max_output_tokens": 10,
    "model": "gpt-6-astra",
    "output": OUTPUT,
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": "low", "summary": None},
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "tool_choice": {"type": "function", "name": "f"},
    "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True, "description": "d"}],
    "top_p": 1.0,
    "truncation": "disabled",
    "usage": {
        "input_tokens": 328,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 52,
        "output_tokens_details": {"reasoning_tokens": 7},
        "total_tokens": 380,
    },
    "user": None,
    "metadata": {"k": "v"},
}
COMPLETION: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1741569952,
    "model": "gpt-6-astra",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "logprobs": {
                "content": [{"token": "hi", "bytes": [104, 105], "logprob": -0.1, "top_logprobs": []}],
                "refusal": None,
            },
            "message": {
                "role": "assistant",
                "content": "hi",
                "refusal": None,
                "annotations": [],
                "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                ],
            },
        }
    ],
    "usage": {
        "prompt_tokens": 19,
        "completion_tokens": 10,
        "total_tokens": 29,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 4},
    },
    "service_tier": "default",
    "system_fingerprint": None,
}


def test_openai_reads_our_response() -> None:
    ours = NeMoGymResponse.model_validate(RESPONSE)

    theirs = Response.model_validate(ours.model_dump())

    assert theirs == Response.model_validate(RESPONSE)
    assert theirs.output_text == ours.output_text == "hi"


def test_we_read_openais_response() -> None:
    theirs = Response.model_validate(RESPONSE)

    for dump in (theirs.model_dump(), theirs.model_dump(exclude_unset=True), json.loads(theirs.model_dump_json())):
        ours = NeMoGymResponse.model_validate(dump)
        assert ours.model_dump(exclude_unset=True).items() >= {"id": "resp_1", "status": "incomplete"}.items()
        assert [item.type for item in ours.output] == ["reasoning", "message", "function_call"]
    assert (
        NeMoGymResponse.model_validate(theirs.model_dump(exclude_unset=True)).model_dump(exclude_unset=True) == RESPONSE
    )


def test_openai_reads_our_completion_and_we_read_openais() -> None:
    ours = NeMoGymChatCompletion.model_validate(COMPLETION)
    theirs = ChatCompletion.model_validate(COMPLETION)

    assert ChatCompletion.model_validate(ours.model_dump(exclude_unset=True)) == theirs
    ChatCompletion.model_validate(ours.model_dump())
    assert NeMoGymChatCompletion.model_validate(theirs.model_dump(exclude_unset=True)) == ours
    NeMoGymChatCompletion.model_validate(theirs.model_dump())


@pytest.mark.parametrize("exclude_unset", [True, False])
def test_what_openai_returned_can_be_asked_again(*, exclude_unset: bool) -> None:
    theirs = Response.model_validate(RESPONSE)

    params = NeMoGymResponseCreateParamsNonStreaming.model_validate(
        {"input": [item.model_dump(exclude_unset=exclude_unset) for item in theirs.output]}
    )

    sent = params.model_dump(exclude_unset=True)["input"]
    assert [item["type"] for item in sent] == ["reasoning", "message", "function_call"]
    assert "status" not in sent[0]
