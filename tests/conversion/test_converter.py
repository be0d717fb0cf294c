"""Responses ⇄ Chat Completions: what is said in one protocol is said in the other."""

import logging
from itertools import count
from typing import Any

import pytest

from nemo_gym import responses_converter
from nemo_gym.conversion.parts import UnsupportedContentError
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionMessage,
    NeMoGymChoice,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCallForTraining,
    NeMoGymResponseOutputMessageForTraining,
)
from nemo_gym.responses_converter import (
    ResponsesConverter,
    ResponsesConverterState,
    VLLMConverter,
    VLLMConverterResponsesToChatCompletionsState,
    split_responses_input_output_items,
)

TOKENS = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}


def converter(**options: Any) -> ResponsesConverter:
    return ResponsesConverter(**{"return_token_id_information": False} | options)


def to_chat(request: dict[str, Any], **options: Any) -> dict[str, Any]:
    params = NeMoGymResponseCreateParamsNonStreaming.model_validate(request)
    return converter(**options).responses_to_chat_completion_create_params(params).model_dump(exclude_unset=True)


def answer(text: str, **more: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "m", "role": "assistant", "content": [part], **more}


def thought(*texts: str, **more: Any) -> dict[str, Any]:
    return {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": t} for t in texts], **more}


def call(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"id_{name}", "name": name, "arguments": "{}", **more}


def chat_call(name: str) -> dict[str, Any]:
    return {"id": f"id_{name}", "type": "function", "function": {"name": name, "arguments": "{}"}}


def result(name: str, output: Any = "42") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"id_{name}", "output": output}


def test_a_text_becomes_a_user_message() -> None:
    assert to_chat({"input": "hi"}) == {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}


def test_a_turn_becomes_one_assistant_message_with_parallel_calls() -> None:
    question = {"role": "user", "content": "hi"}
    conversation = [question, thought("a", "b"), answer("wait"), call("f"), call("g"), result("f"), result("g")]

    assert to_chat({"input": [*conversation, answer("done")]})["messages"] == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "<think>a</think><think>b</think>wait",
            "tool_calls": [chat_call("f"), chat_call("g")],
        },
        {"role": "tool", "tool_call_id": "id_f", "content": "42"},
        {"role": "tool", "tool_call_id": "id_g", "content": "42"},
        {"role": "assistant", "content": "done"},
    ]


@pytest.mark.parametrize("role", ["user", "system", "developer"])
def test_another_speaker_ends_the_assistants_turn(role: str) -> None:
    messages = to_chat({"input": [answer("a"), {"role": role, "content": "b"}, answer("c")]})["messages"]

    assert [(m["role"], m["content"]) for m in messages] == [("assistant", "a"), (role, "b"), ("assistant", "c")]


def test_parts_become_chat_parts() -> None:
    content = [
        {"type": "input_text", "text": "what is this?"},
        {"type": "input_image", "image_url": "data:,x", "detail": "low"},
        {"type": "input_image", "image_url": "data:,y"},
        {"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}},
        {"type": "input_file", "file_data": "data:,z", "filename": "z.pdf"},
    ]

    assert to_chat({"input": [{"role": "user", "content": content}]})["messages"][0]["content"] == [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": "data:,x", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "data:,y"}},
        {"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}},
        {"type": "file", "file": {"file_data": "data:,z", "filename": "z.pdf"}},
    ]


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": [{"type": "input_image", "file_id": "file_1"}]},
        {"role": "user", "content": [{"type": "input_file", "file_url": "https://e.org/x.pdf"}]},
        {"role": "assistant", "content": [{"type": "input_image", "image_url": "data:,x"}]},
    ],
)
def test_content_without_an_equivalent_is_refused_by_name(item: dict[str, Any]) -> None:
    with pytest.raises(NotImplementedError, match=item["content"][0]["type"]) as error:
        to_chat({"input": [item]})

    assert isinstance(error.value, UnsupportedContentError)


def test_a_refusal_stays_a_refusal() -> None:
    refused = answer("") | {"content": [{"type": "refusal", "refusal": "no"}]}

    for item in (refused, {"role": "assistant", "content": refused["content"]}):
        message = {"role": "assistant", "content": None, "refusal": "no"}
        assert to_chat({"input": [item]})["messages"] == [message]


def test_an_assistant_message_may_be_quoted_in_any_form() -> None:
    parts = [{"type": "output_text", "text": "a"}, {"type": "input_text", "text": "b"}]

    for content in ("ab", parts):
        messages = to_chat({"input": [{"role": "assistant", "content": content}]})["messages"]
        assert messages == [{"role": "assistant", "content": "ab"}]


def test_tool_results_may_have_parts() -> None:
    conversation = [call("f"), result("f", [{"type": "input_text", "text": "42"}])]

    assert to_chat({"input": conversation})["messages"][1]["content"] == [{"type": "text", "text": "42"}]


@pytest.mark.parametrize(
    ("past_reasoning", "message"),
    [
        ("think", {"role": "assistant", "content": "<think>hm</think>hi"}),
        ("reasoning_content", {"role": "assistant", "content": "hi", "reasoning_content": "hm"}),
        ("separate", {"role": "assistant", "content": "hi", "reasoning_content": "hm", "reasoning": "hm"}),
        ("drop", {"role": "assistant", "content": "hi"}),
    ],
)
def test_past_reasoning_goes_where_the_endpoint_wants_it(past_reasoning: str, message: dict[str, Any]) -> None:
    conversation = [thought("hm"), answer("hi")]

    assert to_chat({"input": conversation}, past_reasoning=past_reasoning)["messages"] == [message]


def test_reasoning_is_also_found_where_vllm_puts_it() -> None:
    item = thought(content=[{"type": "reasoning_text", "text": "hm"}])

    assert to_chat({"input": [item]})["messages"] == [{"role": "assistant", "content": "<think>hm</think>"}]


def test_options_are_carried_over_under_their_other_names() -> None:
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True, "description": "d"}
    request = {
        "input": [],
        "instructions": "be brief",
        "max_output_tokens": 10,
        "metadata": {"k": "v"},
        "parallel_tool_calls": False,
        "reasoning": {"effort": "low"},
        "temperature": 0.5,
        "text": {"format": schema, "verbosity": "low"},
        "tool_choice": {"type": "function", "name": "f"},
        "tools": [tool],
        "top_logprobs": 2,
        "top_p": 0.9,
        "user": "me",
    }

    assert to_chat(request) == {
        "messages": [{"role": "system", "content": "be brief"}],
        "max_tokens": 10,
        "metadata": {"k": "v"},
        "parallel_tool_calls": False,
        "reasoning_effort": "low",
        "temperature": 0.5,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
        },
        "verbosity": "low",
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "tools": [
            {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "description": "d"}}
        ],
        "logprobs": True,
        "top_logprobs": 2,
        "top_p": 0.9,
        "user": "me",
    }


def test_strict_is_kept_on_demand() -> None:
    tool = {"type": "function", "name": "f", "strict": True}

    kept = to_chat({"input": "hi", "tools": [tool]}, keep_strict=True)

    assert kept["tools"] == [{"type": "function", "function": {"name": "f", "strict": True}}]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("required", "required"),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
            },
        ),
        ({"type": "custom", "name": "c"}, {"type": "custom", "custom": {"name": "c"}}),
    ],
)
def test_the_choice_of_tools_is_carried_over(given: Any, expected: Any) -> None:
    asked = {"input": "hi", "tools": [{"type": "function", "name": "f"}], "tool_choice": given}

    assert converter(custom_tools=True).request_to_chat(asked)["tool_choice"] == expected


def test_custom_tools_and_their_calls_go_to_a_chat_that_knows_them_and_come_back() -> None:
    grammar = {"syntax": "lark", "definition": "start: /x/"}
    tool = {"type": "custom", "name": "c", "format": {"type": "grammar", **grammar}}
    call = {"type": "custom_tool_call", "call_id": "1", "id": "1", "name": "c", "input": "x", "status": "completed"}
    output = {"type": "custom_tool_call_output", "call_id": "1", "output": "y"}
    there = converter(custom_tools=True)

    chat = there.request_to_chat({"input": [call, output], "tools": [tool]})

    assert chat["tools"][0]["custom"]["format"] == {"type": "grammar", "grammar": grammar}
    assert chat["messages"][1] == {"role": "tool", "tool_call_id": "1", "content": "y"}
    message = NeMoGymChatCompletionMessage.model_validate(chat["messages"][0])
    assert there.message_to_items(message.model_dump()) == [call]


def test_citations_of_a_chat_are_annotations() -> None:
    cited = {"url": "https://a", "title": "A", "start_index": 0, "end_index": 2}
    said = {"role": "assistant", "content": "hi", "annotations": [{"type": "url_citation", "url_citation": cited}]}

    (item,) = converter().message_to_items(said)

    assert item["content"][0]["annotations"] == [{"type": "url_citation", **cited}]


def test_without_tools_nothing_is_said_about_tools() -> None:
    request = {"input": "hi", "tools": [], "tool_choice": "auto", "parallel_tool_calls": True}

    assert set(to_chat(request)) == {"messages"}


@pytest.mark.parametrize(("kind", "expected"), [("text", None), ("json_object", {"type": "json_object"})])
def test_plain_formats_are_carried_over(kind: str, expected: Any) -> None:
    assert to_chat({"input": "hi", "text": {"format": {"type": kind}}}).get("response_format") == expected


def test_what_a_chat_cannot_express_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    request = {
        "input": [{"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "gAAA"}],
        "truncation": "auto",
        "max_tool_calls": 3,
        "reasoning": {"effort": "low", "summary": "auto"},
        "tools": [{"type": "web_search"}],
        "include": ["reasoning.encrypted_content"],
    }
    params = NeMoGymResponseCreateParamsNonStreaming.model_validate(request)
    once = converter()

    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            once.responses_to_chat_completion_create_params(params)

    reported = sorted(record.args[1] for record in caplog.records if isinstance(record.args, tuple))
    assert reported == [
        "encrypted reasoning",
        "include",
        "max_tool_calls",
        "reasoning.summary",
        "tools.web_search",
        "truncation",
    ]


def test_options_that_change_nothing_are_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    to_chat({"input": "hi", "truncation": "disabled", "background": False, "include": [], "prompt": None})

    assert caplog.records == []


def test_the_assistant_message_carries_the_tokens_of_its_last_item() -> None:
    conversation = [answer("a", **TOKENS), result("f"), thought("hm"), call("g", **TOKENS, routed_experts=[[1]])]

    with_tokens = to_chat({"input": conversation}, return_token_id_information=True)["messages"]
    without = to_chat({"input": conversation})["messages"]

    assert {**with_tokens[0]}.items() >= TOKENS.items()
    assert {**with_tokens[2]}.items() >= {**TOKENS, "routed_experts": [[1]]}.items()
    assert set(with_tokens[1]) == {"role", "tool_call_id", "content"}
    assert not any("prompt_token_ids" in message for message in without)


# ---- back -----------------------------------------------------------------------------------------------------------
def choice(**message: Any) -> NeMoGymChoice:
    return NeMoGymChoice.model_validate(
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **message}}
    )


@pytest.fixture
def ids(monkeypatch: pytest.MonkeyPatch) -> None:
    class Numbered:
        def __init__(self, number: int) -> None:
            self.hex = str(number)

    numbers = count(1)
    monkeypatch.setattr(responses_converter, "uuid4", lambda: Numbered(next(numbers)))


@pytest.mark.usefixtures("ids")
@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_an_answer_becomes_reasoning_text_and_calls(field: str) -> None:
    message = {"content": "hi", field: "hm", "tool_calls": [chat_call("f"), chat_call("g")]}

    items = converter().postprocess_chat_response(choice(**message))

    part = {"type": "output_text", "text": "hi", "annotations": []}
    calls = [{**call(n), "id": f"id_{n}", "status": "completed"} for n in "fg"]
    assert [item.model_dump(exclude_unset=True) for item in items] == [
        {"id": "rs_1", "summary": [{"text": "hm", "type": "summary_text"}], "type": "reasoning"},
        {"id": "msg_2", "content": [part], "role": "assistant", "status": "completed", "type": "message"},
        *calls,
    ]


@pytest.mark.parametrize(
    ("message", "kinds"),
    [
        ({"content": None}, ["message"]),
        ({"content": ""}, ["message"]),
        ({"content": "<think>a</think>"}, ["reasoning"]),
        ({"content": "<think>a</think>b<think>c</think>"}, ["reasoning", "message"]),
        ({"content": None, "tool_calls": [chat_call("f")]}, ["function_call"]),
        ({"content": "<think>cut off"}, ["reasoning"]),
    ],
)
def test_an_answer_has_a_message_if_it_says_something_or_nothing_else(
    message: dict[str, Any], kinds: list[str]
) -> None:
    assert [item.type for item in converter().postprocess_chat_response(choice(**message))] == kinds


def test_every_think_block_becomes_a_summary_of_one_reasoning_item() -> None:
    reasoning, message = converter().postprocess_assistant_message_dict(
        {"content": "<think>a\n</think>b<think>c</think>"}
    )

    assert [part.text for part in reasoning.summary] == ["a\n", "c"]
    assert message.content[0].text == "b"


def test_a_refusal_becomes_a_refusal() -> None:
    (message,) = converter().postprocess_chat_response(choice(content=None, refusal="no"))

    assert [part.model_dump() for part in message.content] == [{"refusal": "no", "type": "refusal"}]


def test_separate_reasoning_without_a_parser_is_a_mistake_in_the_configuration() -> None:
    with pytest.raises(AssertionError, match="uses_reasoning_parser"):
        converter(uses_reasoning_parser=False).postprocess_chat_response(choice(content="", reasoning_content="hm"))


def test_the_last_item_carries_the_tokens() -> None:
    training = converter(return_token_id_information=True)
    spoken = choice(content="hi", reasoning_content="hm", **TOKENS)
    called = choice(content="hi", tool_calls=[chat_call("f")], **TOKENS)

    first, last = training.postprocess_chat_response(spoken)
    assert not hasattr(first, "prompt_token_ids")
    assert type(last) is NeMoGymResponseOutputMessageForTraining
    assert last.model_dump().items() >= TOKENS.items()
    assert type(training.postprocess_chat_response(called)[-1]) is NeMoGymResponseFunctionToolCallForTraining
    assert not hasattr(converter().postprocess_chat_response(spoken)[-1], "prompt_token_ids")


def completion(finish_reason: str, **more: Any) -> NeMoGymChatCompletion:
    answer_choice = {"index": 0, "finish_reason": finish_reason, "message": {"role": "assistant", "content": "hi"}}
    body = {"id": "x", "object": "chat.completion", "created": 7, "model": "other", "choices": [answer_choice], **more}
    return NeMoGymChatCompletion.model_validate(body)


@pytest.mark.parametrize(
    ("finish_reason", "status", "reason"),
    [
        ("stop", "completed", None),
        ("tool_calls", "completed", None),
        ("length", "incomplete", "max_output_tokens"),
        ("content_filter", "incomplete", "content_filter"),
    ],
)
def test_the_reason_to_stop_is_carried_over(finish_reason: str, status: str, reason: str | None) -> None:
    params = NeMoGymResponseCreateParamsNonStreaming(input="hi", temperature=0.5)

    response = converter().chat_completion_to_response(params, completion(finish_reason), model="mine")

    details = response.incomplete_details
    assert (response.status, details.reason if details else None) == (status, reason)
    assert (response.model, response.created_at, response.output_text) == ("mine", 7, "hi")
    assert response.id.startswith("resp_")


def test_a_response_repeats_its_request() -> None:
    tool = {"type": "function", "name": "f"}
    params = NeMoGymResponseCreateParamsNonStreaming.model_validate(
        {"input": "hi", "temperature": 0.5, "instructions": "be brief", "tools": [tool], "metadata": {"k": "v"}}
    )

    response = converter().chat_completion_to_response(params, completion("stop"), model="mine")

    assert (response.temperature, response.instructions, response.tools) == (0.5, "be brief", [tool])
    assert (response.metadata, response.parallel_tool_calls, response.tool_choice) == ({"k": "v"}, True, "auto")


@pytest.mark.parametrize(
    ("details", "cached", "reasoning"),
    [
        ({}, 0, 0),
        ({"prompt_tokens_details": None, "completion_tokens_details": {"reasoning_tokens": None}}, 0, 0),
        (
            {"prompt_tokens_details": {"cached_tokens": 3}, "completion_tokens_details": {"reasoning_tokens": 4}},
            3,
            4,
        ),
    ],
)
def test_usage_is_carried_over(details: dict[str, Any], cached: int, reasoning: int) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, **details}
    params = NeMoGymResponseCreateParamsNonStreaming(input="hi")

    response = converter().chat_completion_to_response(params, completion("stop", usage=usage), model="m")

    assert response.usage is not None
    assert response.usage.model_dump() == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": 15,
    }
    assert converter().chat_completion_to_response(params, completion("stop"), model="m").usage is None


def test_items_split_where_the_model_first_spoke() -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": "<think>hm</think>", "tool_calls": [chat_call("f")]},
        {"role": "tool", "tool_call_id": "id_f", "content": "42"},
        {"role": "user", "content": "more"},
    ]

    before, since = split_responses_input_output_items(
        converter().chat_completions_messages_to_responses_items(messages)
    )

    assert [item.type for item in before] == ["message", "message"]
    assert [item.type for item in since] == ["reasoning", "function_call", "function_call_output", "message"]
    assert split_responses_input_output_items(before) == (before, [])


def test_old_names_still_work() -> None:
    assert VLLMConverter is ResponsesConverter
    assert VLLMConverterResponsesToChatCompletionsState is ResponsesConverterState
    assert converter()._extract_reasoning_from_content("<think>a</think>b") == (["a"], "b")
    assert converter()._wrap_reasoning_in_think_tags(["a"]) == "<think>a</think>"


def test_a_call_in_the_older_form_is_a_call_too() -> None:
    old = choice(content=None, function_call={"name": "f", "arguments": "{}"})

    (item,) = converter().postprocess_chat_response(old)

    assert item.model_dump()["call_id"].startswith("call_")
    assert (item.type, item.model_dump()["name"]) == ("function_call", "f")


def test_items_that_a_chat_cannot_carry_are_named(caplog: pytest.LogCaptureFixture) -> None:
    kept = {"type": "reasoning", "id": "r", "summary": [], "unknown_item": {"type": "web_search_call"}}

    messages = to_chat({"input": [{"role": "user", "content": "hi"}, kept, answer("yes")]})["messages"]

    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert "no equivalent for items of type web_search_call" in caplog.text


@pytest.mark.parametrize("setting", ["think", "separate", "reasoning_content"])
def test_reasoning_survives_the_way_to_a_chat_and_back(setting: str) -> None:
    conversation = [{"role": "user", "content": "hi"}, thought("hm"), answer("yes"), call("f"), result("f")]
    params = NeMoGymResponseCreateParamsNonStreaming.model_validate({"input": conversation})
    there = converter(past_reasoning=setting)

    messages: Any = there.responses_to_chat_completion_create_params(params).messages
    back = there.chat_completions_messages_to_responses_items(messages)

    assert [item.type for item in back] == ["message", "reasoning", "message", "function_call", "function_call_output"]
    assert back[1].model_dump()["summary"] == [{"text": "hm", "type": "summary_text"}]


def test_what_was_spoken_is_also_text(caplog: pytest.LogCaptureFixture) -> None:
    spoken = {"role": "assistant", "content": None, "audio": {"id": "a", "data": "UklGRg==", "transcript": "hello"}}
    choice = {"index": 0, "finish_reason": "stop", "message": spoken}
    completion = NeMoGymChatCompletion.model_validate(
        {"id": "c", "created": 1, "model": "m", "object": "chat.completion", "choices": [choice]}
    )
    for _ in range(2):
        response = converter().completion_to_response(completion, {"input": "hi"}, model="m")
        assert response["output"][0]["content"][0]["text"] == "hello"
    assert caplog.text.count("audio of answers") == 2  # once by each converter


def test_a_refusal_among_the_parts_of_an_earlier_answer_is_kept() -> None:
    parts = [{"type": "text", "text": "well, "}, {"type": "refusal", "refusal": "no"}]
    [item] = converter().history_to_items([{"role": "assistant", "content": parts}])
    assert [part["type"] for part in item["content"]] == ["output_text", "refusal"]
    with pytest.raises(UnsupportedContentError, match="image_url"):
        converter().history_to_items([{"role": "assistant", "content": [{"type": "image_url", "image_url": {}}]}])
