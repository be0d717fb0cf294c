"""openai_model against a scripted endpoint: real HTTP on both sides."""

import asyncio
import json
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
from openai.types.responses import Response

from nemo_gym.openai_utils import (
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.http.connections import close_http_client
from nemo_gym.servers.models.failures import ModelCallError
from responses_api_models.openai_model.app import OpenAIModel, OpenAIModelConfig
from responses_api_models.openai_model.tests.scripted_endpoint import CUT, ENDLESS, error, reply, serving, stream

KEY = "sk-very-secret"
CALL = {"type": "function_call", "id": "fc", "call_id": "c", "name": "f", "arguments": "{}", "status": "completed"}
USAGE = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 20,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 120,
}
RESPONSE: dict[str, Any] = {
    "id": "resp",
    "object": "response",
    "created_at": 1.0,
    "model": "real-name",
    "output": [CALL],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "usage": USAGE,
    "billing": {"payer": "me"},
}
COMPLETION: dict[str, Any] = {
    "id": "x",
    "object": "chat.completion",
    "created": 1,
    "model": "real-name",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}],
}


def model(url: str, **settings: Any) -> OpenAIModel:
    defaults = {"host": "0.0.0.0", "port": 8080, "entrypoint": "", "name": "policy_model", "max_retries": 0}
    endpoint = {"openai_base_url": url, "openai_api_key": KEY, "openai_model": "real-name"}
    config = OpenAIModelConfig(**defaults | endpoint | settings)
    return OpenAIModel(config=config, server_client=ServerClient.detached())


async def post(server: OpenAIModel, path: str, body: Any) -> httpx.Response:
    transport = httpx.ASGITransport(server.setup_webserver(), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://model") as client:
        return await client.post(path, json=body)


async def test_a_request_is_forwarded_with_what_it_sets_and_our_models_name() -> None:
    async with serving(reply(RESPONSE)) as endpoint:
        answer = await post(
            model(endpoint.url, openai_default_headers={"X-Team": "t"}),
            "/v1/responses",
            {"input": [{"role": "user", "content": "hi"}], "model": "policy", "temperature": 0.5},
        )

        assert answer.status_code == 200
        assert answer.json()["output"] == [CALL]
        assert answer.json()["billing"] == {"payer": "me"}
        assert endpoint.bodies == [
            {"input": [{"content": "hi", "role": "user"}], "model": "real-name", "temperature": 0.5}
        ]
        assert endpoint.heads[0].startswith("POST /v1/responses ")
        assert f"Authorization: Bearer {KEY}" in endpoint.heads[0]
        assert "X-Team: t" in endpoint.heads[0]


async def test_extra_body_fills_what_the_request_leaves_open() -> None:
    async with serving(reply(RESPONSE)) as endpoint:
        server = model(endpoint.url, extra_body={"temperature": 0.1, "seed": 7, "model": "other"})
        await post(server, "/v1/responses", {"input": "hi", "temperature": 0.5})

        assert endpoint.bodies == [{"temperature": 0.5, "seed": 7, "model": "real-name", "input": "hi"}]


async def test_chat_completions_are_forwarded_too() -> None:
    async with serving(reply(COMPLETION)) as endpoint:
        answer = await post(
            model(endpoint.url), "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}
        )

        assert answer.json()["choices"][0]["message"]["content"] == "hi"
        assert endpoint.heads[0].startswith("POST /v1/chat/completions ")
        assert endpoint.bodies == [{"messages": [{"role": "user", "content": "hi"}], "model": "real-name"}]


async def test_options_that_chat_completions_does_not_know_reach_the_endpoint() -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}], "top_k": 5, "chat_template_kwargs": {"a": 1}}
    async with serving(reply(COMPLETION)) as endpoint:
        transport = httpx.ASGITransport(model(endpoint.url).setup_webserver())
        async with httpx.AsyncClient(transport=transport, base_url="http://model") as session:
            assert (await session.post("/v1/chat/completions", json=chat)).status_code == 200

        assert endpoint.bodies[0] == chat | {"model": "real-name"}


async def test_an_endpoint_that_only_has_chat_completions_is_spoken_to_in_chat() -> None:
    message = {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hm",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }
    completion = COMPLETION | {"choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}]}
    request = {
        "input": [{"role": "user", "content": "hi"}],
        "instructions": "be brief",
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}],
        "max_output_tokens": 9,
    }
    async with serving(reply(completion), reply(COMPLETION)) as endpoint:
        server = model(endpoint.url, endpoint="chat_completions", extra_body={"seed": 7})
        first = await post(server, "/v1/responses", request)
        output = first.json()["output"]
        again = request["input"] + output + [{"type": "function_call_output", "call_id": "c", "output": "42"}]
        second = await post(server, "/v1/responses", request | {"input": again})

        assert [item["type"] for item in output] == ["reasoning", "function_call"]
        assert second.json()["output"][0]["content"][0]["text"] == "hi"
        assert Response.model_validate(second.json()).output_text == "hi"
        assert endpoint.heads[0].startswith("POST /v1/chat/completions ")
        tool = {"name": "f", "parameters": {"type": "object"}, "strict": True}
        assert endpoint.bodies[0] == {
            "seed": 7,
            "model": "real-name",
            "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
            "max_tokens": 9,
            "tools": [{"type": "function", "function": tool}],
        }
        assert [m["role"] for m in endpoint.bodies[1]["messages"]] == ["system", "user", "assistant", "tool"]


async def test_content_that_a_chat_cannot_carry_is_refused_without_a_call() -> None:
    async with serving(reply(COMPLETION)) as endpoint:
        content = [{"type": "input_image", "file_id": "file_1"}]
        server = model(endpoint.url, endpoint="chat_completions")
        answer = await post(server, "/v1/responses", {"input": [{"role": "user", "content": content}]})

        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "rejected")
        assert "input_image" in answer.json()["error"]["message"]
        assert endpoint.bodies == []


async def test_no_more_requests_at_once_than_allowed() -> None:
    async with serving(reply(RESPONSE), delay_s=0.01) as endpoint:
        server = model(endpoint.url, max_concurrent_requests=2)
        params = NeMoGymResponseCreateParamsNonStreaming(input="hi")
        await asyncio.gather(*(server.responses(params) for _ in range(6)))

        assert endpoint.most_busy == 2
        assert len(endpoint.bodies) == 6


async def test_a_busy_endpoint_is_asked_again_after_the_time_it_names() -> None:
    async with serving(reply({}, 429, "Retry-After: 0\r\n"), reply(RESPONSE)) as endpoint:
        answer = await post(model(endpoint.url, max_retries=1), "/v1/responses", {"input": "hi"})

        assert answer.status_code == 200
        assert len(endpoint.bodies) == 2


async def test_the_request_is_left_as_it_was() -> None:
    async with serving(reply(RESPONSE)) as endpoint:
        params = NeMoGymResponseCreateParamsNonStreaming(input="hi", model="policy")
        await model(endpoint.url).responses(params)

        assert params.model == "policy"


CUT_OFF = reply(RESPONSE)[:-40] + CUT
FAILED = RESPONSE | {"status": "failed", "output": [], "error": {"code": "server_error", "message": "went wrong"}}
HOSTED = RESPONSE | {"output": [{"type": "oracle_call", "id": "w"}]}
FAULTS: dict[str, tuple[bytes, int, str, str]] = {
    "wrong key": (reply(error(f"Incorrect API key: {KEY}"), 401), 502, "auth", "Incorrect API key: ****"),
    "wrong model": (reply(error("The model `x` does not exist"), 404), 502, "unreachable", "does not exist"),
    "busy": (reply(error("slow"), 429, "Retry-After: 0\r\n"), 429, "rate_limited", "status 429 (2 attempts): slow"),
    "broken": (reply(error("boom"), 500), 502, "model_error", "status 500 (2 attempts): boom"),
    "a page": (reply(b"<html>gateway</html>"), 502, "invalid_response", "gateway"),
    "another shape": (reply({"hello": ["world"]}), 502, "invalid_response", "hello"),
    "unknown item": (reply(HOSTED), 502, "invalid_response", "oracle_call"),
    "half the JSON": (reply(json.dumps(RESPONSE).encode()[:-7]), 502, "invalid_response", "not a response"),
    "nothing": (reply(b""), 502, "invalid_response", "(empty)"),
    "an error as 200": (reply(error("overloaded", type="server_error")), 502, "model_error", "overloaded"),
    "a failed response": (reply(FAILED), 502, "model_error", "went wrong"),
    "half the body": (CUT_OFF, 502, "connection", "the reply broke off (2 attempts)"),
    "not HTTP": (CUT, 502, "unreachable", "not a valid HTTP reply"),
}


@pytest.mark.parametrize(("answer", "status", "kind", "words"), FAULTS.values(), ids=FAULTS)
async def test_what_goes_wrong_upstream_is_told_clearly_and_without_the_key(
    answer: bytes, status: int, kind: str, words: str
) -> None:
    async with serving(answer) as endpoint:
        got = await post(model(endpoint.url, max_retries=1), "/v1/responses", {"input": "hi"})

        told = got.json()["error"]
        assert (got.status_code, told["type"], got.headers["X-NG-Failure-Class"]) == (status, kind, kind)
        assert words in told["message"]
        assert (told["endpoint"], told["model"]) == (endpoint.url, "real-name")
        assert told["message"].startswith(f"model real-name at {endpoint.url}: ")
        assert told["hint"]
        assert KEY not in got.text


@pytest.mark.parametrize(
    ("body", "words"), [(COMPLETION | {"choices": []}, "without choices"), ({"hello": 1}, "not a chat completion")]
)
async def test_what_is_no_completion_is_told_clearly(body: Any, words: str) -> None:
    async with serving(reply(body)) as endpoint:
        params = NeMoGymChatCompletionCreateParamsNonStreaming(messages=[])
        with pytest.raises(ModelCallError, match=words) as failure:
            await model(endpoint.url).chat_completions(params)

        assert failure.value.kind == "invalid_response"


async def test_an_endpoint_that_refuses_connections_is_told_clearly() -> None:
    async with serving(reply(RESPONSE)) as endpoint:
        url = endpoint.url
    got = await post(model(url), "/v1/responses", {"input": "hi"})
    await close_http_client()

    assert (got.status_code, got.json()["error"]["type"]) == (502, "unreachable")
    assert "cannot connect" in got.json()["error"]["message"]
    assert "check that the endpoint is up" in got.json()["error"]["hint"]


async def test_an_endpoint_that_hangs_is_given_up() -> None:
    async with serving(reply(RESPONSE), delay_s=5) as endpoint:
        got = await post(model(endpoint.url, request_timeout_s=0.5), "/v1/responses", {"input": "hi"})

        assert (got.status_code, got.json()["error"]["type"]) == (504, "timeout")
        assert "no reply within 0.5 s" in got.json()["error"]["message"]
        assert len(endpoint.bodies) == 1


async def test_small_gaps_in_an_answer_are_forgiven() -> None:
    part = {"type": "output_text", "text": "hi", "annotations": None}
    output = [{"type": "message", "role": "assistant", "content": [part]}]
    async with serving(reply({"id": "r", "output": output})) as endpoint:
        got = await post(model(endpoint.url), "/v1/responses", {"input": "hi"})

        assert got.json()["output"][0]["content"][0]["text"] == "hi"


def test_the_key_is_in_no_repr() -> None:
    server = model("http://127.0.0.1:1/v1", openai_default_headers={"X-Key": KEY})

    assert KEY not in repr(server)
    assert KEY not in repr(server.config)


async def test_tools_that_the_endpoint_runs_itself_are_named_as_the_reason() -> None:
    async with serving(reply(HOSTED)) as endpoint:
        got = await post(model(endpoint.url), "/v1/responses", {"input": "hi", "tools": [{"type": "web_search"}]})

        assert "remove hosted tools" in got.json()["error"]["hint"]


async def test_the_real_openai_client_is_served() -> None:
    async with serving(reply(RESPONSE), reply(COMPLETION), reply(error("no"), 401)) as endpoint:
        transport = httpx2.ASGITransport(model(endpoint.url).setup_webserver())
        async with openai.AsyncOpenAI(
            base_url="http://model/v1",
            api_key="none",
            max_retries=0,
            http_client=httpx2.AsyncClient(transport=transport),
        ) as client:
            response = await client.responses.create(
                model="any", input=[{"role": "user", "content": "hi"}], tools=[], temperature=0.5
            )
            completion = await client.chat.completions.create(model="any", messages=[{"role": "user", "content": "hi"}])
            with pytest.raises(openai.APIStatusError, match="status 401: no"):
                await client.responses.create(model="any", input="hi")

        assert [item.to_dict() for item in response.output] == [CALL]
        assert completion.choices[0].message.content == "hi"
        assert endpoint.bodies[0]["input"] == [{"role": "user", "content": "hi"}]


SAID = {
    "type": "message",
    "id": "m",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "hi", "annotations": []}],
}
CHUNK = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "real-name"}


def chunk(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return CHUNK | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


async def test_items_of_unknown_types_are_kept_and_given_back(caplog: pytest.LogCaptureFixture) -> None:
    search = {"type": "oracle_call", "id": "w", "status": "completed", "action": {"query": "x"}}
    async with serving(reply(RESPONSE | {"output": [search, SAID]}), reply(RESPONSE)) as endpoint:
        server = model(endpoint.url)
        first = (await post(server, "/v1/responses", {"input": "hi"})).json()["output"]
        conversation = [{"role": "user", "content": "hi"}, *first]
        await post(server, "/v1/responses", {"input": conversation})
        await server.responses(NeMoGymResponseCreateParamsNonStreaming.model_validate({"input": conversation}))

        assert [item["type"] for item in first] == ["reasoning", "message"]
        assert first[0]["unknown_item"] == search
        assert [body["input"][1] for body in endpoint.bodies[1:]] == [search, search]
        assert f"model real-name at {endpoint.url}: it returns items of type oracle_call" in caplog.text


async def test_arguments_that_are_no_json_are_what_the_model_wrote() -> None:
    async with serving(reply(RESPONSE | {"output": [CALL | {"arguments": "{city: oops"}]})) as endpoint:
        got = await post(model(endpoint.url), "/v1/responses", {"input": "hi"})

        assert got.json()["output"][0]["arguments"] == "{city: oops"


async def test_call_ids_that_repeat_are_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(reply(RESPONSE | {"output": [CALL, CALL, CALL]})) as endpoint:
        server = model(endpoint.url)
        got = [await post(server, "/v1/responses", {"input": "hi"}) for _ in range(2)]

        assert [item["call_id"] for item in got[0].json()["output"]] == ["c", "c_2", "c_3"]
        assert caplog.text.count("repeated call ids") == 1


async def test_usage_that_cannot_be_true_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(reply(RESPONSE | {"usage": USAGE | {"output_tokens": -20}})) as endpoint:
        got = await post(model(endpoint.url), "/v1/responses", {"input": "hi"})

        assert got.json()["usage"] is None
        assert "usage with negative numbers" in caplog.text


async def test_a_streamed_response_is_read_as_a_whole_one() -> None:
    events = [{"type": "response.created", "response": {}}, {"type": "response.completed", "response": RESPONSE}]
    async with serving(stream(*events, b"data: [DONE]")) as endpoint:
        got = await post(model(endpoint.url, extra_body={"stream": True}), "/v1/responses", {"input": "hi"})

        assert got.json()["output"] == [CALL]
        assert endpoint.bodies[0]["stream"] is True


async def test_a_streamed_chat_is_read_as_a_whole_one() -> None:
    part = {"index": 0, "function": {"arguments": '{"x"'}}
    chunks = [
        chunk(role="assistant", content=""),
        chunk(reasoning_content="h"),
        chunk(reasoning_content="m"),
        chunk(content="h"),
        chunk(content="i"),
        chunk(tool_calls=[{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}]),
        chunk(tool_calls=[part]),
        chunk(tool_calls=[part | {"function": {"arguments": ": 1}"}}]),
        chunk("tool_calls"),
        CHUNK | {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}},
    ]
    async with serving(stream(b": waiting", *chunks, b"data: [DONE]")) as endpoint:
        server = model(endpoint.url, endpoint="chat_completions")
        got = (await post(server, "/v1/responses", {"input": "hi"})).json()

        thought, said, call = got["output"]
        assert (thought["summary"][0]["text"], said["content"][0]["text"]) == ("hm", "hi")
        assert (call["name"], call["call_id"], call["arguments"]) == ("f", "c", '{"x": 1}')
        assert got["usage"]["total_tokens"] == 7


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (stream(chunk(content="h")), "invalid_response", "a stream that broke off after 1 events"),
        (stream(b"data: {nonsense"), "invalid_response", "an event that is not a JSON object"),
        (stream({"choices": [{"delta": 3}]}), "invalid_response", "an event of an unexpected form"),
        (stream(chunk(content="h"), error("overloaded")), "model_error", "overloaded"),
        (reply({"object": "error", "message": "no room", "code": 500}), "model_error", "no room"),
        (reply(COMPLETION | {"choices": []}), "invalid_response", "without choices"),
        (reply(b"<html>gateway</html>"), "invalid_response", "gateway"),
        (reply(json.dumps(COMPLETION).encode()[:-9]), "invalid_response", "not a chat completion"),
        (
            reply(COMPLETION | {"choices": [COMPLETION["choices"][0] | {"finish_reason": "error", "error": "oom"}]}),
            "model_error",
            "ended with an error: oom",
        ),
    ],
)
async def test_a_chat_that_goes_wrong_is_told_clearly(answer: bytes, kind: str, words: str) -> None:
    async with serving(answer) as endpoint:
        got = await post(model(endpoint.url, endpoint="chat_completions"), "/v1/responses", {"input": "hi"})

        told = got.json()["error"]
        assert (told["type"], got.headers["X-NG-Failure-Class"]) == (kind, kind)
        assert told["message"].startswith(f"model real-name at {endpoint.url}: ")
        assert words in told["message"]
        assert told["hint"]


async def test_a_stream_without_end_is_given_up() -> None:
    head = b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n"
    async with serving(head + ENDLESS) as endpoint:
        got = await post(model(endpoint.url, request_timeout_s=0.1), "/v1/responses", {"input": "hi"})

        assert (got.status_code, got.json()["error"]["type"]) == (504, "timeout")
        assert "no reply within 0.1 s" in got.json()["error"]["message"]


async def test_a_request_that_cannot_be_converted_is_refused_with_the_place() -> None:
    async with serving(reply(COMPLETION)) as endpoint:
        server = model(endpoint.url, endpoint="chat_completions")
        for question in ([{"role": "user"}], [3], 3, [{"type": "function_call", "call_id": "c"}]):
            got = await post(server, "/v1/responses", {"input": question})

            assert got.status_code == 422
            assert got.json()["detail"][0]["loc"][:2] == ["body", "input"]
        assert endpoint.bodies == []


def anthropic_client(server: OpenAIModel) -> anthropic.AsyncAnthropic:
    transport = httpx2.ASGITransport(server.setup_webserver())
    return anthropic.AsyncAnthropic(
        base_url="http://model",
        api_key="none",
        max_retries=0,
        http_client=httpx2.AsyncClient(transport=transport),
    )


async def test_the_real_anthropic_client_is_served() -> None:
    thought = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]}
    output = [thought | {"encrypted_content": "sig"}, SAID, CALL | {"arguments": '{"x": 1}'}]
    tool: Any = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
    async with serving(reply(RESPONSE | {"output": output}), reply(RESPONSE | {"output": [SAID]})) as endpoint:
        async with anthropic_client(model(endpoint.url)) as client:
            first = await client.messages.create(
                model="any",
                max_tokens=9,
                system=[{"type": "text", "text": "be brief"}],
                messages=[{"role": "user", "content": "hi"}],
                tools=[tool],
                tool_choice={"type": "any", "disable_parallel_tool_use": True},
            )
            result: Any = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "42"}]}
            second = await client.messages.create(
                model="any",
                max_tokens=9,
                messages=[
                    {"role": "user", "content": "hi"},
                    {"role": "assistant", "content": [block.to_dict() for block in first.content]},  # type: ignore[misc]
                    {"role": "user", "content": [result]},
                ],
            )

        assert [block.to_dict() for block in first.content] == [
            {"type": "thinking", "thinking": "hm", "signature": "sig"},
            {"type": "text", "text": "hi"},
            {"type": "tool_use", "id": "c", "name": "f", "input": {"x": 1}},
        ]
        assert (first.stop_reason, first.usage.input_tokens, first.usage.output_tokens) == ("tool_use", 100, 20)
        assert (second.stop_reason, second.content[0].to_dict()) == ("end_turn", {"type": "text", "text": "hi"})
        assert endpoint.bodies[0] == {
            "model": "real-name",
            "instructions": "be brief",
            "input": [{"role": "user", "content": "hi", "type": "message"}],
            "max_output_tokens": 9,
            "tools": [
                {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": False}
            ],
            "tool_choice": "required",
            "parallel_tool_calls": False,
        }
        history = endpoint.bodies[1]["input"]
        assert [item["type"] for item in history] == [
            "message",
            "reasoning",
            "message",
            "function_call",
            "function_call_output",
        ]
        assert history[1]["encrypted_content"] == "sig"
        assert history[4] == {"type": "function_call_output", "call_id": "c", "output": "42"}


async def test_the_real_anthropic_client_may_stream() -> None:
    async with serving(reply(RESPONSE | {"output": [SAID, CALL | {"arguments": '{"x": 1}'}]})) as endpoint:
        async with (
            anthropic_client(model(endpoint.url)) as client,
            client.messages.stream(model="any", max_tokens=9, messages=[{"role": "user", "content": "hi"}]) as events,
        ):
            kinds = [event.type async for event in events]
            message = await events.get_final_message()

        assert [kinds[0], kinds[-1]] == ["message_start", "message_stop"]
        assert [block.to_dict() for block in message.content] == [
            {"type": "text", "text": "hi"},
            {"type": "tool_use", "id": "c", "name": "f", "input": {"x": 1}},
        ]
        assert (message.stop_reason, message.usage.output_tokens) == ("tool_use", 20)


async def test_the_real_anthropic_client_understands_our_errors() -> None:
    async with serving(reply(error("slow"), 429)) as endpoint, anthropic_client(model(endpoint.url)) as client:
        with pytest.raises(anthropic.RateLimitError, match="status 429: slow") as failure:
            await client.messages.create(model="any", max_tokens=9, messages=[{"role": "user", "content": "hi"}])

        assert isinstance(failure.value.body, dict)
        assert failure.value.body["type"] == "error"


async def test_what_anthropics_protocol_says_and_ours_cannot_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(reply(RESPONSE)) as endpoint:
        transport = httpx.ASGITransport(model(endpoint.url, on_loss="warn").setup_webserver())
        async with httpx.AsyncClient(transport=transport, base_url="http://model") as client:
            asked = {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], "stop_sequences": ["x"]}
            answers = [await client.post("/v1/messages", json=asked) for _ in range(2)]
            upload = {"role": "user", "content": [{"type": "container_upload", "file_id": "f"}]}
            refused = await client.post("/v1/messages", json=asked | {"messages": [upload]})
            malformed = await client.post("/v1/messages", json=asked | {"messages": [{"role": "user"}]})

        assert [answer.status_code for answer in answers] == [200, 200]
        assert caplog.text.count("no equivalent for stop_sequences") == 1
        assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
        assert "container_upload" in refused.json()["error"]["message"]
        assert (malformed.status_code, malformed.json()["type"]) == (422, "error")
        assert "messages.0.content" in malformed.json()["error"]["message"]
        assert len(endpoint.bodies) == 2


async def test_an_answer_that_ended_at_its_limit_is_incomplete_also_where_it_looks_plain() -> None:
    part = {"type": "output_text", "text": "hi", "annotations": []}
    said = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [part]}
    answers = [RESPONSE | {"status": "completed", "output": [item]} for item in (said, CALL)]
    async with serving(*map(reply, answers)) as endpoint:
        asked = {"input": "hi", "max_output_tokens": USAGE["output_tokens"]}
        cut, called = [(await post(model(endpoint.url), "/v1/responses", asked)).json() for _ in answers]

        assert (cut["status"], cut["incomplete_details"]["reason"]) == ("incomplete", "max_output_tokens")
        assert called["status"] == "completed"


async def test_an_empty_account_is_not_asked_again() -> None:
    refusal = reply({"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}, 429)
    async with serving(refusal) as endpoint:
        got = await post(model(endpoint.url, max_retries=8), "/v1/responses", {"input": "hi"})

        assert (got.json()["error"]["type"], len(endpoint.bodies)) == ("quota", 1)
        assert "status 429: You exceeded your current quota" in got.json()["error"]["message"]


async def test_https_on_a_plain_port_is_told_clearly() -> None:
    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as plain:
        url = f"https://127.0.0.1:{plain.sockets[0].getsockname()[1]}/v1"
        got = await post(model(url), "/v1/responses", {"input": "hi"})
    await close_http_client()

    told = got.json()["error"]
    assert told["type"] == "unreachable"
    assert "does not speak TLS; if it serves plain HTTP, write http:// and not https://" in told["message"]
