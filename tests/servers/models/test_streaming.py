"""Model servers that stream: over HTTP and in direct dispatch, made from whole answers and passed on."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import openai
import pytest

from nemo_gym.conversion.chat_streams import completion_of_stream, completion_stream
from nemo_gym.conversion.response_streams import response_of_stream, response_stream
from nemo_gym.conversion.stream_events import assembled, encode_event
from responses_api_models.openai_model.tests.scripted_endpoint import (
    CUT,
    Endpoint,
    error,
    reply,
    serving,
    stream,
)
from tests.servers.models.hosted_model import hosted

anthropic = pytest.importorskip("anthropic")

THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}
SAID = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "hi there", "annotations": []}],
}
CALL = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "name": "f",
    "arguments": '{"x":1}',
    "status": "completed",
}
RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1.0,
    "model": "real-name",
    "status": "completed",
    "output": [THOUGHT, SAID, CALL],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "usage": {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 7,
    },
}
MESSAGE = {
    "role": "assistant",
    "content": "hi there",
    "reasoning_content": "hm",
    "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}],
}
COMPLETION: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "real-name",
    "choices": [{"index": 0, "finish_reason": "tool_calls", "message": MESSAGE}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
}
QUESTION: list[Any] = [{"role": "user", "content": "hi"}]


def events_of(body: bytes) -> bytes:
    return reply(body, headers="Content-Type: text/event-stream\r\n")


def openai_client(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


MADE = {"endpoint": "chat_completions"}  # the endpoint's protocol is another, so its answer has to be whole


async def test_a_response_that_is_made_from_a_whole_answer_is_that_answer() -> None:
    async with serving(reply(COMPLETION)) as endpoint, hosted(endpoint, **MADE) as (client, url):
        async with openai_client(url) as foreign:
            whole = await foreign.responses.create(model="any", input="hi")
            sent = await foreign.responses.create(model="any", input="hi", stream=True)
            events = [event async for event in sent]
        near = await client.post("policy_model", "/v1/responses", json={"input": "hi", "stream": True})
        direct = json.loads(assembled(await near.read(), response_of_stream))

        assert near.headers["Content-Type"].startswith("text/event-stream")
        assert [event.type for event in events] == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.reasoning_summary_part.added",
            "response.reasoning_summary_text.delta",
            "response.reasoning_summary_text.done",
            "response.reasoning_summary_part.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
            "response.completed",
        ]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        streamed = events[-1].to_dict()["response"]
        for answer in (streamed, direct):
            assert _without_names(answer) == _without_names(whole.to_dict())
        assert [sorted(body) for body in endpoint.bodies] == [["messages", "model"]] * 3


def _without_names(response: Any) -> Any:
    items = [{name: value for name, value in item.items() if name != "id"} for item in response["output"]]
    kept = ("model", "status", "usage", "tools", "tool_choice")
    return [items, {name: response[name] for name in kept}]


async def test_the_clients_own_assembly_gives_the_same_response() -> None:
    async with serving(events_of(response_stream(RESPONSE))) as endpoint, hosted(endpoint) as (_, url):
        async with openai_client(url) as client, client.responses.stream(model="any", input="hi") as sent:
            final = await sent.get_final_response()

        assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
        assert final.output_text == "hi there"
        assert endpoint.bodies == [{"input": "hi", "model": "real-name", "stream": True}]


async def test_a_chat_that_is_passed_on_keeps_its_chunks_and_its_usage() -> None:
    body = completion_stream(COMPLETION, usage=True)
    async with serving(events_of(body)) as endpoint, hosted(endpoint) as (client, url):
        wanted: Any = {"messages": QUESTION, "stream": True, "stream_options": {"include_usage": True}}
        async with openai_client(url) as foreign:
            chunks = [chunk async for chunk in await foreign.chat.completions.create(model="any", **wanted)]
        near = await client.post("policy_model", "/v1/chat/completions", json=wanted)

        assert await near.read() == body
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.total_tokens == 7
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "hi there"
        assert endpoint.bodies[0]["stream_options"] == {"include_usage": True}


async def test_an_endpoint_that_does_not_stream_is_no_obstacle() -> None:
    async with serving(reply(COMPLETION)) as endpoint, hosted(endpoint) as (client, _):
        asked = {"messages": QUESTION, "stream": True}
        near = await client.post("policy_model", "/v1/chat/completions", json=asked)
        whole = json.loads(assembled(await near.read(), completion_of_stream))

        assert whole["choices"][0]["message"]["content"] == "hi there"
        assert "usage" not in whole


@pytest.mark.parametrize(
    "answer",
    [
        reply(error("no"), 400),
        stream({"type": "error", "error": {"message": "no"}}),
        reply(b"", headers="Content-Type: text/event-stream\r\n"),
    ],
)
async def test_what_fails_before_the_first_event_is_an_ordinary_error(answer: bytes) -> None:
    async with serving(answer) as endpoint, hosted(endpoint) as (_, url), openai_client(url) as client:
        with pytest.raises(openai.APIStatusError) as caught:
            await client.responses.create(model="any", input="hi", stream=True)

        assert caught.value.status_code in (400, 502)
        assert "real-name" in caught.value.message


async def test_what_fails_later_is_the_last_event() -> None:
    begun = response_stream(RESPONSE).split(b"\n\n")[0] + b"\n\n"
    cut = b"HTTP/1.1 200 X\r\nContent-Length: 999999\r\nContent-Type: text/event-stream\r\n\r\n" + begun + CUT
    async with serving(cut) as endpoint, hosted(endpoint) as (client, url), openai_client(url) as foreign:
        sent = await foreign.responses.create(model="any", input="hi", stream=True)
        with pytest.raises(openai.APIError, match="broke off"):
            [event async for event in sent]
        near = await client.post("policy_model", "/v1/responses", json={"input": "hi", "stream": True})
        last = json.loads((await near.read()).split(b"data: ")[-1])

        assert near.status == 200
        assert (last["type"], last["code"], last["sequence_number"]) == ("error", "connection", 1)


async def test_an_error_inside_a_chat_stream_ends_it_and_repeats_no_key() -> None:
    chunk = {"id": "x", "choices": [{"index": 0, "delta": {"content": "hi"}}]}
    failing = stream(chunk, {"error": {"message": "key sk-very-secret"}}, chunk)
    async with serving(failing) as endpoint, hosted(endpoint) as (client, _):
        near = await client.post("policy_model", "/v1/chat/completions", json={"messages": QUESTION, "stream": True})
        events = (await near.read()).split(b"\n\n")[:-1]

        assert len(events) == 2
        assert "with an error: key ****" in json.loads(events[1].removeprefix(b"data: "))["error"]["message"]


async def test_the_anthropic_client_streams_from_any_model_server() -> None:
    asked: Any = {"model": "any", "max_tokens": 9, "messages": QUESTION}
    async with (
        serving(reply(COMPLETION)) as endpoint,
        hosted(endpoint, **MADE) as (_, url),
        anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client,
        client.messages.stream(**asked) as sent,
    ):
        final = await sent.get_final_message()

        assert [block.type for block in final.content] == ["thinking", "text", "tool_use"]
        assert final.stop_reason == "tool_use"


async def test_a_misspelt_option_is_refused_in_a_stream_as_elsewhere() -> None:
    async with serving(reply(COMPLETION)) as endpoint, hosted(endpoint) as (client, _):
        answer = await client.post("policy_model", "/v1/responses", json={"input": "hi", "strem": 1, "stream": True})

        assert answer.status == 422
        assert endpoint.bodies == []


async def hung_up(reader: asyncio.StreamReader) -> None:
    """Wait until nobody sends any more."""
    with suppress(ConnectionError):
        while await reader.read(65536):
            pass


@asynccontextmanager
async def hesitating(first: bytes, rest: bytes) -> AsyncIterator[tuple[Endpoint, asyncio.Event, asyncio.Event]]:
    """An endpoint that sends the rest of its stream only when it is told to, and tells when its client has gone."""
    go_on, gone = asyncio.Event(), asyncio.Event()
    head = b"HTTP/1.1 200 X\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head + first)
        told = asyncio.create_task(go_on.wait())
        left = asyncio.create_task(hung_up(reader))
        await asyncio.wait({told, left}, return_when=asyncio.FIRST_COMPLETED)
        if told.done():
            writer.write(rest)
        else:
            gone.set()
        told.cancel()
        left.cancel()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield Endpoint({}, url=url), go_on, gone
    finally:
        server.close()


async def test_events_are_passed_on_while_the_endpoint_still_generates() -> None:
    *first, _ = response_stream(RESPONSE).partition(b"\n\n")
    begun = b"".join(first)
    async with (
        hesitating(begun, response_stream(RESPONSE).removeprefix(begun)) as (endpoint, go_on, _),
        hosted(endpoint) as (_, url),
        openai_client(url) as client,
    ):
        sent = await client.responses.create(model="any", input="hi", stream=True)
        events = aiter(sent)
        assert (await anext(events)).type == "response.created"
        go_on.set()
        assert [event.type async for event in events][-1] == "response.completed"


@pytest.mark.parametrize("told", [{}, {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}])
async def test_a_stream_that_was_cut_off_ends_as_incomplete_whatever_the_endpoint_says(told: dict[str, Any]) -> None:
    body = response_stream(RESPONSE | {"output": [THOUGHT, SAID], **told}).replace(
        b"response.incomplete", b"response.completed"
    )
    async with (
        serving(events_of(body)) as endpoint,
        hosted(endpoint) as (_, url),
        openai_client(url) as client,
    ):
        sent = await client.responses.create(model="any", input="hi", stream=True, max_output_tokens=4)
        last = [event async for event in sent][-1]

        assert last.type == "response.incomplete"
        assert last.response.status == "incomplete"


async def test_messages_of_an_endpoint_of_the_same_protocol_are_passed_on_one_by_one() -> None:
    message = {"id": "m", "type": "message", "role": "assistant", "model": "real-name", "content": []}
    begun = {"type": "message_start", "message": message | {"stop_reason": None, "usage": {"input_tokens": 3}}}
    ends = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}}
    asked: Any = {"model": "any", "max_tokens": 9, "messages": QUESTION}
    async with (
        hesitating(encode_event(begun), encode_event(ends) + encode_event({"type": "message_stop"})) as upstream,
        hosted(upstream[0], "anthropic") as (_, url),
        anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client,
    ):
        sent = await client.messages.create(**asked, stream=True)
        events = aiter(sent)
        assert (await anext(events)).type == "message_start"
        upstream[1].set()
        assert [event.type async for event in events] == ["message_delta", "message_stop"]
        assert "set-cookie" in sent.response.headers


async def test_a_client_that_goes_away_lets_go_of_the_endpoint() -> None:
    *first, _ = response_stream(RESPONSE).partition(b"\n\n")
    async with (
        hesitating(b"".join(first), b"") as (endpoint, _, gone),
        hosted(endpoint, max_concurrent_requests=1) as (_, url),
        openai_client(url) as client,
    ):
        for _ in range(2):  # the second would wait for the place of the first
            gone.clear()
            sent = await client.responses.create(model="any", input="hi", stream=True)
            assert (await anext(aiter(sent))).type == "response.created"
            await sent.close()
            await asyncio.wait_for(gone.wait(), 20)
