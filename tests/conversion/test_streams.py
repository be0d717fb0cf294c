"""Streams add up to the answers that would have come without streaming."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.conversion.anthropic.message_streams import message_events, message_of_stream
from nemo_gym.conversion.chat_streams import completion_of_stream
from nemo_gym.conversion.reading import read_chat_completion, read_response
from nemo_gym.conversion.stream_events import BrokenStreamError, assembled, event_bytes, is_stream

text = st.text(st.characters(codec="utf-8"), max_size=12)
words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)


def stream(*events: Any, end: bytes = b"data: [DONE]\n\n") -> bytes:
    return b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events) + end


def pieces(whole: str) -> list[str]:
    return [whole[i : i + 3] for i in range(0, len(whole), 3)]


@given(text, text, st.lists(st.tuples(words, text), max_size=3), st.sampled_from(["stop", "length"]))
def test_chunks_of_a_chat_add_up(said: str, thought: str, calls: list[tuple[str, str]], finish: str) -> None:
    deltas: list[dict[str, Any]] = [{"role": "assistant"}]
    deltas += [{"reasoning_content": part} for part in pieces(thought)] + [{"content": part} for part in pieces(said)]
    for index, (name, arguments) in enumerate(calls):
        deltas.append({"tool_calls": [{"index": index, "id": f"c{index}", "function": {"name": name}}]})
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": part}}]} for part in pieces(arguments)]
    head = {"id": "x", "created": 7, "model": "m", "object": "chat.completion.chunk"}
    chunks = [head | {"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    ending = [head | {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}, head | {"usage": usage}]

    completion = read_chat_completion(stream(*chunks, *ending)).completion

    message = completion.choices[0].message
    assert (message.content or "", (message.model_extra or {}).get("reasoning_content", "")) == (said, thought)
    made = [(call.function.name, call.function.arguments) for call in message.tool_calls or []]
    assert made == calls
    assert (completion.choices[0].finish_reason, completion.created) == (finish, 7)
    assert completion.usage is not None


def test_several_choices_and_tokens_add_up() -> None:
    def chunk(index: int, **more: Any) -> dict[str, Any]:
        return {"choices": [{"index": index, "delta": {"content": str(index)}, **more}]}

    scores = {"content": [{"token": "token_id:7", "logprob": -1}]}
    events = [chunk(1, token_ids=[7], logprobs=scores), chunk(0), chunk(1, token_ids=[8]), {"prompt_token_ids": [1]}]
    ends = [chunk(0, finish_reason="stop"), chunk(1, finish_reason="length")]

    completion = read_chat_completion(stream(*events, *ends, end=b"")).completion

    assert [choice.message.content for choice in completion.choices] == ["00", "111"]
    assert completion.choices[1].model_extra == {"token_ids": [7, 8]}
    assert completion.choices[1].logprobs == scores
    assert completion.model_extra == {"prompt_token_ids": [1]}


@given(
    st.lists(
        st.one_of(
            st.fixed_dictionaries({"type": st.just("text"), "text": text}),
            st.fixed_dictionaries({"type": st.just("thinking"), "thinking": text, "signature": text}),
            st.fixed_dictionaries({"type": st.just("redacted_thinking"), "data": text}),
            st.fixed_dictionaries(
                {
                    "type": st.just("tool_use"),
                    "id": words,
                    "name": words,
                    "input": st.dictionaries(words, st.integers(-9, 9), max_size=2),
                }
            ),
        ),
        max_size=4,
    )
)
def test_the_events_we_write_are_the_message_they_came_from(content: list[dict[str, Any]]) -> None:
    usage = {"input_tokens": 3, "output_tokens": 4}
    message = {"id": "m", "type": "message", "role": "assistant", "model": "x", "content": content}
    message |= {"stop_reason": "end_turn", "stop_sequence": None, "usage": usage}

    written = event_bytes(message_events(message))

    assert is_stream(written)
    assert json.loads(assembled(written, message_of_stream)) == message


def test_comments_and_names_of_events_are_no_data() -> None:
    data = [b'data: {"type": "response.completed",', b'data: "response": {"output": []}}']
    body = b"\r\n".join([b": hello", b"", b"event: x", b"id: 3", *data, b"", b""])

    assert read_response(body, {}).response.output == []


@pytest.mark.parametrize(
    "body",
    [
        b"data: [DONE]\n\n",
        b": nothing follows\n\n",
        stream({"choices": [{"delta": {"content": "h"}}]}),
        stream({"choices": [{"delta": {"tool_calls": 3}, "finish_reason": "stop"}]}),
        stream({"choices": [3]}),
        b"data: 3\n\n",
    ],
)
def test_half_a_stream_is_no_answer(body: bytes) -> None:
    with pytest.raises(BrokenStreamError):
        assembled(body, completion_of_stream)


@pytest.mark.parametrize("body", [b"", b"{}", b"<html>", b'{"data": 1}', b'  {"id": 1}'])
def test_other_bodies_are_no_streams(body: bytes) -> None:
    assert not is_stream(body)


def test_sound_and_citations_add_up_chunk_by_chunk() -> None:
    head = {"id": "x", "created": 7, "model": "m", "object": "chat.completion.chunk"}
    deltas: list[dict[str, Any]] = [
        {"audio": {"id": "a", "transcript": "it "}, "annotations": [{"type": "one"}]},
        {"audio": {"data": "UklG", "transcript": "is"}, "annotations": [{"type": "two"}]},
        {"audio": {"data": "Rg==", "expires_at": 9}},
    ]
    chunks = [head | {"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    ending = head | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}

    [choice] = read_chat_completion(stream(*chunks, ending)).completion.choices

    assert choice.message.audio == {"id": "a", "data": "UklGRg==", "transcript": "it is", "expires_at": 9}
    assert choice.message.annotations == [{"type": "one"}, {"type": "two"}]
