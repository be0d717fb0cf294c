"""Which class an item becomes, and that nothing of it is lost on the way."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from nemo_gym.openai_utils import (
    RESPONSES_TO_TRAIN,
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymMessage,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseFunctionToolCallForTraining,
    NeMoGymResponseInput,
    NeMoGymResponseInputItem,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputMessageForTraining,
    NeMoGymResponseOutputText,
    NeMoGymResponseReasoningItem,
    NeMoGymSummary,
)

ITEM: TypeAdapter[Any] = TypeAdapter(NeMoGymResponseInputItem)
ITEMS: TypeAdapter[Any] = TypeAdapter(NeMoGymResponseInput)
TOKENS = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT_TEXT = {"type": "output_text", "text": "hi", "annotations": []}
ANSWER = {"type": "message", "id": "m", "role": "assistant", "content": [OUTPUT_TEXT]}
PARTS = [{"type": "input_text", "text": "hi"}]


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"role": "user", "content": "hi"}, NeMoGymEasyInputMessage),
        ({"role": "user", "content": PARTS}, NeMoGymEasyInputMessage),
        ({"role": "user", "content": PARTS, "type": "message"}, NeMoGymEasyInputMessage),
        ({"role": "user", "content": PARTS, "type": "message", "status": "completed"}, NeMoGymMessage),
        ({"role": "assistant", "content": "hi"}, NeMoGymEasyInputMessage),
        ({"role": "assistant", "content": [OUTPUT_TEXT]}, NeMoGymEasyInputMessage),
        ({"role": "assistant", "content": "hi", "id": "m"}, NeMoGymEasyInputMessage),
        (ANSWER, NeMoGymResponseOutputMessage),
        ({**ANSWER, "content": []}, NeMoGymResponseOutputMessage),
        ({**ANSWER, **TOKENS}, NeMoGymResponseOutputMessageForTraining),
        (CALL, NeMoGymResponseFunctionToolCall),
        ({**CALL, **TOKENS}, NeMoGymResponseFunctionToolCallForTraining),
        ({**CALL, "generation_token_ids": None}, NeMoGymResponseFunctionToolCall),
        ({"type": "function_call_output", "call_id": "c", "output": "42"}, NeMoGymFunctionCallOutput),
        ({"type": "reasoning", "id": "r", "summary": []}, NeMoGymResponseReasoningItem),
    ],
)
def test_an_item_becomes_the_class_it_was_meant_to_be(item: dict[str, Any], expected: type) -> None:
    from_python = ITEM.validate_python(item)
    from_json = ITEM.validate_json(json.dumps(item))

    assert type(from_python) is type(from_json) is expected
    assert type(ITEM.validate_python(from_python)) is expected


@pytest.mark.parametrize("kind", ["item_reference", "compaction", "nonsense"])
def test_an_item_of_an_unknown_type_is_refused_by_that_name(kind: str) -> None:
    with pytest.raises(ValidationError, match=f"'{kind}'"):
        ITEM.validate_python({"type": kind, "id": "x"})


@pytest.mark.parametrize("item", [3, None, "text", [], {"type": ["message"]}, {"type": 1}])
def test_what_is_no_item_at_all_is_refused(item: Any) -> None:
    with pytest.raises(ValidationError):
        ITEM.validate_python(item)


def test_an_error_names_the_one_class_that_was_meant() -> None:
    with pytest.raises(ValidationError) as error:
        ITEMS.validate_python([{"type": "function_call", "name": "f", "arguments": "{}"}])

    assert [entry["loc"] for entry in error.value.errors()] == [(0, "function_call", "call_id")]


def test_the_status_of_reasoning_is_dropped_and_its_content_kept() -> None:
    item = {"type": "reasoning", "id": "r", "summary": [], "status": "completed", "content": [{"text": "hm"}]}

    reasoning = ITEM.validate_python(item)

    assert not hasattr(reasoning, "status")
    assert reasoning.model_dump(exclude_unset=True) == {
        "type": "reasoning",
        "id": "r",
        "summary": [],
        "content": [{"text": "hm"}],
    }


def test_a_model_keeps_what_newer_endpoints_add_and_a_caller_does_not() -> None:
    answer = ITEM.validate_python({**ANSWER, "phase": "final_answer"})
    question = ITEM.validate_python({"role": "user", "content": "hi", "weight": 1})

    assert answer.model_dump()["phase"] == "final_answer"
    assert "weight" not in question.model_dump()


def test_null_annotations_mean_none() -> None:
    assert NeMoGymResponseOutputText.model_validate({"text": "", "annotations": None}).annotations == []


def test_annotations_are_required() -> None:
    with pytest.raises(ValidationError, match="annotations"):
        NeMoGymResponseOutputText.model_validate({"text": ""})


def test_a_subclass_of_an_item_is_that_item_and_keeps_its_fields() -> None:
    class Marked(NeMoGymResponseFunctionToolCall):
        mark: int = 7

    items = ITEMS.validate_python([Marked(**CALL)])

    assert ITEMS.dump_python(items)[0]["mark"] == 7


def test_every_trainable_item_has_a_training_class() -> None:
    for plain, training in RESPONSES_TO_TRAIN.items():
        assert issubclass(training, plain)
        assert set(TOKENS) < set(training.model_fields)


def test_defaults_are_those_of_the_interface() -> None:
    assert NeMoGymMessage(content=[], role="user").status == "completed"
    assert NeMoGymResponseOutputMessage(id="m", content=[]).model_dump() == {
        "id": "m",
        "content": [],
        "role": "assistant",
        "status": "completed",
        "type": "message",
    }
    assert NeMoGymResponseFunctionToolCall(**CALL).model_dump() == {
        "arguments": "{}",
        "call_id": "c",
        "name": "f",
        "type": "function_call",
        "id": None,
        "status": None,
    }
    assert NeMoGymSummary(text="t").model_dump() == {"text": "t", "type": "summary_text"}


text = st.text(max_size=20)
status = st.sampled_from(["in_progress", "completed", "incomplete"])
tokens = st.fixed_dictionaries(
    {
        "prompt_token_ids": st.lists(st.integers(0, 2**31), max_size=3),
        "generation_token_ids": st.lists(st.integers(0, 2**31), max_size=3),
        "generation_log_probs": st.lists(st.floats(-50, 0), max_size=3),
    }
)
input_part = st.one_of(
    st.fixed_dictionaries({"type": st.just("input_text"), "text": text}),
    st.fixed_dictionaries({"type": st.just("input_image"), "image_url": text}, optional={"detail": text}),
)
easy_messages = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system", "developer"]),
        "content": text | st.lists(input_part, max_size=2),
    },
    optional={"type": st.just("message")},
)
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "system"]), "content": st.lists(input_part, max_size=2), "status": status}
)
output_parts = st.fixed_dictionaries(
    {"type": st.just("output_text"), "text": text, "annotations": st.just([])}, optional={"logprobs": st.just([])}
) | st.fixed_dictionaries({"type": st.just("refusal"), "refusal": text})
answers = st.fixed_dictionaries(
    {"id": text, "role": st.just("assistant"), "content": st.lists(output_parts, max_size=2)},
    optional={"type": st.just("message"), "status": status},
)
calls = st.fixed_dictionaries(
    {"type": st.just("function_call"), "call_id": text, "name": text, "arguments": text},
    optional={"id": text, "status": status},
)
outputs = st.fixed_dictionaries(
    {"type": st.just("function_call_output"), "call_id": text, "output": text | st.lists(input_part, max_size=2)},
    optional={"status": status},
)
thoughts = st.fixed_dictionaries(
    {
        "type": st.just("reasoning"),
        "id": text,
        "summary": st.lists(st.fixed_dictionaries({"type": st.just("summary_text"), "text": text}), max_size=2),
    },
    optional={"encrypted_content": text},
)
trainable = st.builds(lambda item, ids: item | ids, easy_messages | messages | answers | calls | thoughts, tokens)
items = easy_messages | messages | answers | calls | outputs | thoughts | trainable


@given(st.lists(items, max_size=4))
def test_a_conversation_survives_the_round_trip_unchanged(conversation: list[dict[str, Any]]) -> None:
    from_python = ITEMS.validate_python(conversation)
    from_json = ITEMS.validate_json(json.dumps(conversation))

    assert from_python == from_json
    assert ITEMS.dump_python(from_python, exclude_unset=True) == conversation
    assert json.loads(ITEMS.dump_json(from_json, exclude_unset=True)) == conversation
    assert ITEMS.validate_python(ITEMS.dump_python(from_python)) == from_python


@pytest.mark.parametrize(
    "item",
    [
        {"type": "mcp_call", "id": "x", "name": "n", "server_label": "s", "arguments": "{}"},
        {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "custom_tool_call", "call_id": "c", "input": "x", "name": "n"},
    ],
    ids=lambda item: item["type"],
)
def test_items_of_hosted_tools_are_kept_as_they_are(item: dict) -> None:
    [read] = TypeAdapter(NeMoGymResponseInput).validate_python([item])
    assert read.model_dump() == item
