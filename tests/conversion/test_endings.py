"""What ended at its limit is incomplete, and what is no answer is not taken for one."""

from typing import Any

import pytest

from nemo_gym.conversion.endings import mark_cut_off, unanswered, unknown_finish
from nemo_gym.schemas.chat import NeMoGymChatCompletion
from nemo_gym.schemas.responses import NeMoGymResponse

PART = {"type": "output_text", "text": "hi", "annotations": []}
SAID = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [PART]}


def response(written: int = 5, **fields: Any) -> NeMoGymResponse:
    usage = {
        "input_tokens": 1,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": written + 1,
    }
    known = {"id": "r", "created_at": 0.0, "model": "m", "object": "response", "output": [SAID], "usage": usage}
    return NeMoGymResponse.model_validate(
        known | {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "status": "completed"} | fields
    )


def call(arguments: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}


@pytest.mark.parametrize(
    ("found", "asked", "cut"),
    [
        (response(), {"max_output_tokens": 5}, True),
        (response(max_output_tokens=5), {}, True),
        (response(), {"max_output_tokens": 6}, False),
        (response(9), {"max_output_tokens": 5}, False),
        (response(), {}, False),
        (response(usage=None), {"max_output_tokens": 5}, False),
        (response(output=[SAID, call('{"x": 1}')]), {"max_output_tokens": 5}, False),
        (response(output=[call('{"x": ')]), {"max_output_tokens": 5}, True),
        (response(output=[]), {"max_output_tokens": 5}, True),
    ],
)
def test_an_answer_with_as_many_tokens_as_allowed_was_cut_off(
    found: NeMoGymResponse, asked: dict[str, Any], *, cut: bool
) -> None:
    assert mark_cut_off(found, asked) is cut
    assert (found.status == "incomplete") is cut
    assert not mark_cut_off(found, asked)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("completed", None),
        ("incomplete", None),
        ("queued", "a response that is queued"),
        ("in_progress", "in progress"),
    ],
)
def test_only_what_is_done_is_an_answer(status: str, words: str | None) -> None:
    said = unanswered(response(status=status))
    assert said is None if words is None else words in str(said)


@pytest.mark.parametrize(
    ("reason", "becomes", "unknown"),
    [("stop", "stop", None), ("max_tokens", "length", None), ("eos", "stop", None), ("abort", "abort", "abort")],
)
def test_other_names_of_a_reason_are_known(reason: str, becomes: str, unknown: str | None) -> None:
    choice = {"index": 0, "finish_reason": reason, "message": {"role": "assistant", "content": "hi"}}
    completion = NeMoGymChatCompletion.model_validate(
        {"id": "x", "created": 0, "model": "m", "object": "chat.completion", "choices": [choice]}
    )
    assert unknown_finish(completion) == unknown
    assert completion.choices[0].finish_reason == becomes
