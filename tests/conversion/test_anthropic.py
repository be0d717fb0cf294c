"""Responses ⇄ Anthropic's Messages API: what is said in one protocol is said in the other."""

from itertools import count
from typing import Any

import pytest
from anthropic.types import Message, MessageParam, ToolParam
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from nemo_gym.conversion.anthropic.blocks import arguments_to_input, input_to_arguments
from nemo_gym.conversion.anthropic.message_completions import message_to_items, message_to_response, response_to_message
from nemo_gym.conversion.anthropic.message_requests import messages_to_request, request_to_messages
from nemo_gym.conversion.parts import UnsupportedContentError
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.schemas.messages import AnthropicMessage

MESSAGES: TypeAdapter[Any] = TypeAdapter(list[MessageParam])

words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
plain = st.text("abc-_1", min_size=1, max_size=6)
values = st.dictionaries(words, st.integers(-9, 9) | words, max_size=2)
texts = st.fixed_dictionaries({"type": st.just("text"), "text": words})
pictures = st.fixed_dictionaries(
    {
        "type": st.just("image"),
        "source": st.sampled_from(
            [
                {"type": "base64", "media_type": "image/png", "data": "iVBO"},
                {"type": "url", "url": "https://e.org/x.png"},
                {"type": "file", "file_id": "file_1"},
            ]
        ),
    }
)
documents = st.fixed_dictionaries(
    {
        "type": st.just("document"),
        "source": st.sampled_from(
            [
                {"type": "base64", "media_type": "application/pdf", "data": "JVBE"},
                {"type": "url", "url": "https://e.org/x.pdf"},
                {"type": "text", "media_type": "text/plain", "data": "a, b; c\n"},
            ]
        ),
    },
    optional={"title": words},
)
thoughts = st.fixed_dictionaries({"type": st.just("thinking"), "thinking": words, "signature": words})
hidden = st.fixed_dictionaries({"type": st.just("redacted_thinking"), "data": words})


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """User and assistant in turn, every call with its result."""
    numbers = count()
    messages: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 3))):
        said = [*results, *draw(st.lists(texts | pictures | documents, min_size=0 if results else 1, max_size=2))]
        messages.append({"role": "user", "content": said})
        answer = [
            *draw(st.lists(thoughts | hidden, max_size=2)),
            *draw(st.lists(texts, min_size=1, max_size=2)),
        ]
        calls = [
            {"type": "tool_use", "id": f"{draw(plain)}{next(numbers)}", "name": "f", "input": draw(values)}
            for _ in range(draw(st.integers(0, 2)))
        ]
        results = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": [*draw(st.lists(pictures, max_size=1)), text]}
            for call in calls
            for text in [draw(texts)]
        ]
        messages.append({"role": "assistant", "content": [*answer, *calls]})
    if results:
        messages.append({"role": "user", "content": results})
    return messages


@given(conversations(), st.none() | words)
def test_a_conversation_survives_as_items(messages: list[dict[str, Any]], system: str | None) -> None:
    body = {"messages": messages, "max_tokens": 9, **({"system": system} if system else {})}

    asked, lost = messages_to_request(body)
    NeMoGymResponseCreateParamsNonStreaming.model_validate(asked)
    back, lost_again = request_to_messages(asked, max_tokens=1)

    assert (lost, lost_again) == ([], [])
    assert back == body
    MESSAGES.validate_python(back["messages"])


@given(st.lists(texts | thoughts | hidden, max_size=4), st.lists(values, max_size=2))
def test_an_answer_survives_as_a_response(blocks: list[dict[str, Any]], inputs: list[dict[str, Any]]) -> None:
    calls = [{"type": "tool_use", "id": f"t{i}", "name": "f", "input": given} for i, given in enumerate(inputs)]
    content = [*blocks, *calls] or [{"type": "text", "text": "hi"}]
    message = {"id": "m", "type": "message", "role": "assistant", "model": "x", "content": content}
    message |= {"stop_reason": "tool_use" if calls else "end_turn", "usage": {"input_tokens": 3, "output_tokens": 4}}
    numbers = count()

    response = message_to_response(
        AnthropicMessage.model_validate(message),
        {"input": "hi"},
        new_id=lambda: f"{next(numbers):x}",
        created_at=7.0,
        model="x",
    )
    NeMoGymResponse.model_validate(response)
    back = response_to_message(response)

    Message.model_validate(back)
    assert (back["content"], back["stop_reason"]) == (message["content"], message["stop_reason"])
    assert back["usage"] == message["usage"]


def test_a_request_is_carried_over() -> None:
    body = {
        "model": "m",
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "system": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        "messages": [{"role": "user", "content": "hi"}, {"role": "system", "content": "x"}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}, "strict": True}],
        "tool_choice": {"type": "tool", "name": "f"},
    }

    assert messages_to_request(body).request == {
        "model": "m",
        "max_output_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "instructions": "a\nb",
        "input": [
            {"role": "user", "content": "hi", "type": "message"},
            {"role": "system", "content": "x", "type": "message"},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}],
        "tool_choice": {"type": "function", "name": "f"},
    }


def test_what_the_responses_api_cannot_express_is_listed() -> None:
    body = {
        "messages": [],
        "stop_sequences": ["x"],
        "top_k": 3,
        "metadata": {"user_id": "u"},
        "tools": [{"name": "web_search", "type": "web_search_20250305"}],
    }

    asked, lost = messages_to_request(body)

    assert lost == ["stop_sequences", "top_k", "tools.web_search_20250305"]
    assert asked == {"input": [], "user": "u"}
    assert messages_to_request(body, extras={"stop"}).request["stop"] == ["x"]


@pytest.mark.parametrize("choice", ["auto", "none", "any"])
def test_the_choice_of_tools_survives(choice: str) -> None:
    tool = {"name": "f", "input_schema": {"type": "object"}}
    asked = messages_to_request({"messages": [], "tools": [tool], "tool_choice": {"type": choice}}).request

    body = request_to_messages(asked, max_tokens=9).body

    assert body.get("tool_choice", {"type": "auto"}) == {"type": choice}
    TypeAdapter(ToolParam).validate_python(body["tools"][0])


def test_options_go_where_the_messages_api_has_them() -> None:
    asked = {
        "input": [
            {"role": "developer", "content": "one"},
            {"role": "user", "content": "hi"},
            {"role": "system", "content": [{"type": "input_text", "text": "late"}]},
        ],
        "instructions": "zero",
        "user": "me",
        "reasoning": {"effort": "minimal"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}, "verbosity": "low"},
        "tool_choice": "required",
        "tools": [{"type": "function", "name": "f"}, {"type": "web_search"}],
        "store": False,
        "truncation": "disabled",
        "previous_response_id": "r",
    }

    body, lost = request_to_messages(asked, max_tokens=9)

    assert body == {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "late"}]}],
        "max_tokens": 9,
        "system": "zero\n\none",
        "metadata": {"user_id": "me"},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
        "tools": [{"name": "f", "input_schema": {"type": "object", "properties": {}}}],
        "tool_choice": {"type": "any"},
    }
    assert lost == [
        "previous_response_id",
        "the role of instructions after the first message",
        "text.verbosity",
        "tools.web_search",
    ]


def test_names_of_calls_are_made_plain_and_different_with_their_results() -> None:
    def call(name: str) -> dict[str, Any]:
        return {"type": "function_call", "call_id": name, "name": "f", "arguments": "{}"}

    def result(name: str, output: str) -> dict[str, Any]:
        return {"type": "function_call_output", "call_id": name, "output": output}

    items = [call("call:0"), result("call:0", "a"), call("call:0"), call("call:0"), result("call:0", "b")]
    messages = request_to_messages({"input": [*items, result("call:0", "")]}, max_tokens=9).body["messages"]

    named = [block.get("id") or block.get("tool_use_id") for message in messages for block in message["content"]]
    assert named == ["call_0", "call_0", "call_0_2", "call_0_3", "call_0_2", "call_0_3"]
    assert messages[3]["content"][1]["content"] == []


def test_reasoning_without_proof_is_not_sent_and_reported() -> None:
    thought = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]}

    body, lost = request_to_messages({"input": [thought, {"role": "user", "content": "hi"}]}, max_tokens=9)

    assert [message["role"] for message in body["messages"]] == ["user"]
    assert lost == ["reasoning without a signature"]


@pytest.mark.parametrize("arguments", ["{city: oops", "[1]", "3", "null", '"x"'])
def test_arguments_that_are_no_object_are_what_the_model_wrote(arguments: str) -> None:
    assert input_to_arguments(arguments_to_input(arguments)) == arguments


def test_no_arguments_are_an_empty_object() -> None:
    assert arguments_to_input("") == {}


@pytest.mark.parametrize(
    ("output", "details", "reason"),
    [
        ([], {"reason": "max_output_tokens"}, "max_tokens"),
        ([], {"reason": "content_filter"}, "refusal"),
        ([], {"reason": "something"}, "max_tokens"),
        ([{"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}], None, "refusal"),
        ([{"type": "message", "content": []}], None, "end_turn"),
    ],
)
def test_the_reason_to_stop_is_carried_over(output: Any, details: Any, reason: str) -> None:
    response = {"id": "resp_0a", "model": "m", "output": output, "incomplete_details": details, "usage": None}

    message = response_to_message(response)

    assert (message["stop_reason"], message["id"]) == (reason, "msg_0a")
    assert message["usage"] == {"input_tokens": 0, "output_tokens": 0}


def test_the_same_response_is_the_same_message() -> None:
    response = {"id": "resp_foreign!", "model": "m", "output": [], "usage": None}

    first, second = response_to_message(response), response_to_message(response)

    assert first == second
    assert int(first["id"].removeprefix("msg_"), 16)


def test_an_empty_answer_is_an_empty_message() -> None:
    (item,) = message_to_items([], lambda: "0")

    assert (item["type"], item["content"][0]["text"]) == ("message", "")


def test_blocks_without_an_equivalent_are_refused_by_name() -> None:
    message = {"role": "user", "content": [{"type": "container_upload", "file_id": "f"}]}

    with pytest.raises(UnsupportedContentError, match="container_upload"):
        messages_to_request({"messages": [message]})


def test_cached_tokens_are_counted_apart_and_add_up_again() -> None:
    details = {"input_tokens_details": {"cached_tokens": 60}, "output_tokens_details": {"reasoning_tokens": 0}}
    usage = {"input_tokens": 100, "output_tokens": 5, "total_tokens": 105, **details}
    response = {"id": "resp_1", "model": "m", "output": [], "usage": usage}

    message = response_to_message(response)

    assert message["usage"] == {"input_tokens": 40, "cache_read_input_tokens": 60, "output_tokens": 5}
    back = message_to_response(
        AnthropicMessage.model_validate(message), {"input": "hi"}, new_id=lambda: "x", created_at=1.0, model="m"
    )
    assert back["usage"] == usage


def test_marks_for_the_cache_are_found_wherever_they_are() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    question = {"messages": [{"role": "user", "content": "hi"}]}
    tool = {"name": "f", "input_schema": {"type": "object"}}
    for marked in ({"system": [{"type": "text", "text": "be brief", **mark}]}, {"tools": [{**tool, **mark}]}):
        assert messages_to_request(question | marked).lost == ["cache_control"]
    assert messages_to_request(question | {"tools": [tool], "system": [{"type": "text", "text": "x"}]}).lost == []


def test_every_wish_about_the_text_is_carried_or_listed() -> None:
    asked = {"input": "hi", "text": {"format": {"type": "text"}, "verbosity": "low", "shape": "round"}}
    assert request_to_messages(asked, max_tokens=9).lost == ["text.verbosity", "text.shape"]
