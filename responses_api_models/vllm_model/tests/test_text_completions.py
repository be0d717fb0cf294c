"""A chat that is sent as a completion is answered as a chat."""

from typing import Any

import pytest

from responses_api_models.vllm_model.text_completions import (
    UnreadableCompletionError,
    chat_completion_of,
    completion_request,
    forced_schema,
    read_calls,
)
from responses_api_models.vllm_model.tokens import Dialect

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}}}}}
NAMED = {"type": "function", "function": {"name": "add"}}


def chat(**more: Any) -> dict[str, Any]:
    return {"messages": [], "tools": [ADD], **more}


def test_options_of_sampling_are_kept_and_those_of_chats_are_not() -> None:
    asked = chat(max_tokens=9, temperature=0.5, top_k=3, return_token_ids=True, logprobs=True, top_logprobs=0)
    assert completion_request(asked, [1, 2], Dialect.VLLM, context=None) == {
        "prompt": [1, 2],
        "max_tokens": 9,
        "temperature": 0.5,
        "top_k": 3,
        "return_token_ids": True,
        "logprobs": 1,
        "skip_special_tokens": False,
    }


def test_a_chat_without_a_limit_may_fill_the_context() -> None:
    found = completion_request({"messages": []}, [1, 2], Dialect.VLLM, context=10)
    assert found is not None
    assert found["max_tokens"] == 8
    assert completion_request({"messages": []}, [1, 2], Dialect.VLLM, context=None) is None
    assert "max_tokens" not in (completion_request({"messages": []}, [1], Dialect.LLAMA_CPP, context=None) or {})


def test_a_forced_call_is_held_to_the_schema_of_its_tool() -> None:
    parameters = ADD["function"]["parameters"]  # type: ignore[index]
    assert forced_schema(chat()) is None
    assert forced_schema(chat(tool_choice="auto")) is None
    assert forced_schema(chat(tool_choice=NAMED)) == parameters
    listed = forced_schema(chat(tool_choice="required"))
    assert listed is not None
    assert listed["items"]["anyOf"][0]["properties"] == {"name": {"enum": ["add"]}, "parameters": parameters}
    asked = chat(tool_choice=NAMED, max_tokens=1)
    by_vllm, by_llama = [completion_request(asked, [1], dialect, context=9) or {} for dialect in ENGINES]
    assert (by_vllm["structured_outputs"], by_llama["json_schema"]) == ({"json": parameters}, parameters)


ENGINES = (Dialect.VLLM, Dialect.LLAMA_CPP)


def test_a_format_is_asked_for_in_the_words_of_the_engine() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    by_vllm, by_llama = [
        completion_request({"messages": [], "response_format": wanted}, [1], dialect, context=9) or {}
        for dialect in ENGINES
    ]
    assert by_vllm["response_format"] == wanted
    assert by_llama["json_schema"] == schema  # llama.cpp ignores response_format there
    assert "response_format" not in by_llama
    any_object = completion_request(
        {"messages": [], "response_format": {"type": "json_object"}}, [1], Dialect.LLAMA_CPP, context=9
    )
    assert any_object is not None
    assert any_object["json_schema"] == {"type": "object"}
    text = {"messages": [], "response_format": {"type": "text"}}
    assert "json_schema" not in (completion_request(text, [1], Dialect.LLAMA_CPP, context=9) or {})


def test_only_the_first_call_is_kept_if_there_may_be_one() -> None:
    called = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    assert len(read_calls(called * 2, chat())[0]) == 2
    strict = {"type": "function", "function": {**ADD["function"], "strict": True}}  # type: ignore[dict-item]
    assert len(read_calls(called, chat(tools=[strict]))[0]) == 1
    [call] = read_calls(called * 2, chat(parallel_tool_calls=False))[0]
    assert call["function"]["arguments"] == '{"a": 1}'


def test_the_prompt_is_what_the_engine_says_it_read() -> None:
    choice = {"text": "yes", "finish_reason": "stop", "prompt_token_ids": [2, 3]}
    assert chat_completion_of({"choices": [choice]}, {"messages": []}, [1, 2, 3], parses_reasoning=False)[
        "prompt_token_ids"
    ] == [2, 3]


@pytest.mark.parametrize(
    ("text", "more", "arguments", "said"),
    [
        ('Sure. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', {}, ['{"a": 1}'], "Sure."),
        (
            '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>\n<tool_call>{"name": "add"}</tool_call>',
            {},
            ["{}", "{}"],
            "",
        ),
        ("<tool_call>{oops}</tool_call>", {}, [], "<tool_call>{oops}</tool_call>"),
        ('<tool_call>{"name": "add"', {}, [], '<tool_call>{"name": "add"'),
        (
            '<tool_call>{"name": "add"}</tool_call>',
            {"tool_choice": "none"},
            [],
            '<tool_call>{"name": "add"}</tool_call>',
        ),
        ('[{"name": "add", "parameters": {"a": 1}}]', {"tool_choice": "required"}, ['{"a": 1}'], ""),
        ('[{"name": "add", "par', {"tool_choice": "required"}, [], '[{"name": "add", "par'),
        ('{"a": 1}', {"tool_choice": NAMED}, ['{"a": 1}'], ""),
    ],
)
def test_calls_are_read_from_the_text(text: str, more: dict[str, Any], arguments: list[str], said: str) -> None:
    calls, rest = read_calls(text, chat(**more))
    assert [call["function"]["arguments"] for call in calls] == arguments
    assert rest == said


@pytest.mark.parametrize(
    ("text", "thought", "said"),
    [
        ("<think>hm</think>yes", "hm", "yes"),
        ("hm</think>yes", "hm", "yes"),  # the template opened the thinking block
        ("yes", None, "yes"),
    ],
)
def test_reasoning_is_read_from_the_text(text: str, thought: str | None, said: str) -> None:
    answer = {"choices": [{"text": text, "finish_reason": "length", "token_ids": [7]}], "usage": {"prompt_tokens": 1}}
    found = chat_completion_of(answer, {"messages": []}, [1], parses_reasoning=True)
    [choice] = found["choices"]
    assert choice["message"].get("reasoning_content") == thought
    assert (choice["message"]["content"], choice["finish_reason"], choice["token_ids"]) == (said, "length", [7])
    assert (found["prompt_token_ids"], found["usage"]) == ([1], {"prompt_tokens": 1})


@pytest.mark.parametrize("answer", [{}, {"choices": []}, {"choices": [{"finish_reason": "stop"}]}])
def test_what_is_no_completion_is_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(UnreadableCompletionError):
        chat_completion_of(answer, {"messages": []}, [1], parses_reasoning=False)
