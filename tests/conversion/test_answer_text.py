"""What a verifier reads as the answer: all messages or the last one, and never reasoning."""

from typing import Any

import pytest

from nemo_gym.openai_utils import NeMoGymResponse, answer_text, without_reasoning

CASES = {
    "B": "B",
    "  B\n": "  B\n",
    "<think>A</think>B": "B",
    "<think>A</think>\n\n    return 1\n": "    return 1",
    "A</think> B": "B",
    "<think>A": "",
    "B <think>A": "B",
    "<think>A</think>B<think>C": "B",
    "<think>A</think>B<think>C</think>D": "BD",
    "<think>A<think>A</think>A</think>B": "B",
    "A</think>A</think>B": "B",
    "</think><think>A": "",
    "": "",
}


def response(*items: dict[str, Any]) -> NeMoGymResponse:
    fixed = {"id": "r", "created_at": 0, "model": "m", "object": "response", "tools": []}
    return NeMoGymResponse.model_validate(
        {**fixed, "parallel_tool_calls": True, "tool_choice": "auto", "output": list(items)}
    )


def message(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": content}


@pytest.mark.parametrize("text", CASES)
def test_reasoning_is_not_part_of_the_answer(text: str) -> None:
    assert without_reasoning(text) == CASES[text]
    thought = {"id": "t", "type": "reasoning", "summary": [{"type": "summary_text", "text": "A"}]}
    assert answer_text(response(thought, message(text))) == CASES[text]


def test_a_block_that_one_message_leaves_open_does_not_hide_the_next() -> None:
    both = response(message("<think>A"), message("B"))
    assert answer_text(both) == "B"
    assert answer_text(response(message("A"), message("B")), last_message=True) == "B"
    assert answer_text(response()) == answer_text(response(), last_message=True) == ""


def test_an_environment_can_use_other_tags_or_none() -> None:
    text = "<think>A</think>[THINK]B[/THINK]C"
    assert answer_text(response(message(text)), reasoning_tags=("[THINK]", "[/THINK]")) == "<think>A</think>C"
    assert answer_text(response(message(text)), reasoning_tags=None) == text


def test_many_tags_are_read_in_linear_time() -> None:
    for text in ("<think>" * 300_000, "</think>" * 300_000, "<think></think>" * 150_000, " " * 2_000_000 + "<think>"):
        assert without_reasoning(text) == ""
