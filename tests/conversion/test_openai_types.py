"""What we make is what the real client's types describe, and what they describe we read."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam, ChatCompletionToolUnionParam
from openai.types.responses import (
    Response,
    ResponseFunctionToolCall,
    ResponseInputItemParam,
    ResponseOutputMessage,
    ResponseReasoningItem,
)
from pydantic import TypeAdapter

from nemo_gym.conversion.chat_completions import response_to_completion
from nemo_gym.openai_utils import NeMoGymChatCompletion, NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.responses_converter import ResponsesConverter

CONVERTER = ResponsesConverter(return_token_id_information=False)
MESSAGE: TypeAdapter[Any] = TypeAdapter(ChatCompletionMessageParam)
TOOL: TypeAdapter[Any] = TypeAdapter(ChatCompletionToolUnionParam)
ITEM: TypeAdapter[Any] = TypeAdapter(ResponseInputItemParam)

text = st.text(st.characters(codec="utf-8", exclude_characters="<"), max_size=12)
words = text.filter(bool)
calls = st.builds(
    lambda name, arguments, call_id: ResponseFunctionToolCall(
        type="function_call", name=name, arguments=arguments, call_id=call_id, id="fc", status="completed"
    ),
    words,
    text,
    words,
)
answers = st.builds(
    lambda said: ResponseOutputMessage.model_validate(
        {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": said, "annotations": []}],
        }
    ),
    words,
)
thoughts = st.builds(
    lambda said: ResponseReasoningItem.model_validate(
        {"id": "r", "type": "reasoning", "summary": [{"type": "summary_text", "text": said}]}
    ),
    words,
)
questions = st.builds(
    lambda role, parts: {"role": role, "content": parts},
    st.sampled_from(["user", "system", "developer"]),
    st.lists(st.builds(lambda said: {"type": "input_text", "text": said}, text), min_size=1, max_size=2),
)
results = st.builds(
    lambda call_id, output: {"type": "function_call_output", "call_id": call_id, "output": output}, words, text
)
items = st.one_of(calls, answers, thoughts, questions, results)
chat_calls = st.fixed_dictionaries(
    {
        "id": words,
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": words, "arguments": text}),
    }
)
completions = st.builds(
    lambda said, refusal, made, finish, cached: ChatCompletion.model_validate(
        {
            "id": "x",
            "object": "chat.completion",
            "created": 7,
            "model": "m",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": finish,
                    "logprobs": None,
                    "message": {"role": "assistant", "content": said, "refusal": refusal, "tool_calls": made or None},
                }
            ],
            "usage": {
                "prompt_tokens": 5,
                "completion_tokens": 3,
                "total_tokens": 8,
                "prompt_tokens_details": {"cached_tokens": cached},
                "completion_tokens_details": {"reasoning_tokens": 1},
            },
        }
    ),
    st.none() | words,
    st.none() | words,
    st.lists(chat_calls, max_size=2, unique_by=lambda call: call["id"]),
    st.sampled_from(["stop", "length", "tool_calls", "content_filter"]),
    st.integers(0, 5),
)


def as_sent(item: Any) -> Any:
    return item if isinstance(item, dict) else item.to_dict()


@given(st.lists(items, max_size=6))
def test_a_conversation_of_the_clients_items_becomes_messages_of_its_types(conversation: list[Any]) -> None:
    sent = [as_sent(item) for item in conversation]
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": None}
    asked = {"input": sent, "tools": [tool]}

    chat = CONVERTER.request_to_chat(asked)
    typed = CONVERTER.responses_to_chat_completion_create_params(
        NeMoGymResponseCreateParamsNonStreaming.model_validate(asked)
    )

    for message in chat["messages"]:
        MESSAGE.validate_python(message)
    TOOL.validate_python(chat["tools"][0])
    assert typed.model_dump(exclude_unset=True) == chat


@given(completions)
def test_a_completion_of_the_client_becomes_a_response_of_its_types_and_back(completion: ChatCompletion) -> None:
    ours = NeMoGymChatCompletion.model_validate_json(completion.to_json())
    response = CONVERTER.completion_to_response(ours, {"input": "hi", "temperature": 0.5}, model="m")

    written = NeMoGymResponse.model_validate(response).model_dump_json()
    # The field is younger than the protocol that we promise to speak.
    response["usage"]["input_tokens_details"]["cache_write_tokens"] = 0
    theirs = Response.model_validate(response)
    again = ChatCompletion.model_validate(response_to_completion(response))

    assert theirs.output_text == (completion.choices[0].message.content or "")
    assert theirs.usage is not None
    assert completion.usage is not None
    assert theirs.usage.total_tokens == completion.usage.total_tokens
    for item in theirs.output:
        ITEM.validate_python(item.to_dict())
    assert Response.construct(**NeMoGymResponse.model_validate_json(written).model_dump()).model == "m"
    message, first = again.choices[0].message, completion.choices[0].message
    assert (message.content or "", message.refusal) == (first.content or "", first.refusal)
    assert message.tool_calls == first.tool_calls
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert completion.usage.prompt_tokens_details is not None
    assert again.usage.prompt_tokens_details.cached_tokens == completion.usage.prompt_tokens_details.cached_tokens
