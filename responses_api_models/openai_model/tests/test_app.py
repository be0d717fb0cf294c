"""openai_model against a scripted endpoint: real HTTP on both sides."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import MagicMock

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
from nemo_gym.servers.http import close_http_client
from nemo_gym.servers.model_errors import ModelCallError
from responses_api_models.openai_model.app import OpenAIModel, OpenAIModelConfig

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


def reply(body: Any, status: int = 200, headers: str = "") -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(content)}\r\n{headers}\r\n".encode() + content


@dataclass
class Endpoint:
    """Answers with scripted bytes, the last of them for ever; hangs up after answers that end in ``<cut>``."""

    answers: list[bytes]
    delay_s: float = 0.0
    url: str = ""
    heads: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    busy: int = 0
    most_busy: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head)
                length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
                self.bodies.append(json.loads(await reader.readexactly(length)))
                self.busy += 1
                self.most_busy = max(self.busy, self.most_busy)
                await asyncio.sleep(self.delay_s)
                self.busy -= 1
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                writer.write(answer)
                await writer.drain()
                if answer.endswith(b"<cut>"):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(*answers: bytes, delay_s: float = 0.0) -> AsyncIterator[Endpoint]:
    endpoint = Endpoint(list(answers), delay_s)
    server = await asyncio.start_server(endpoint.serve, "127.0.0.1", 0)
    endpoint.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield endpoint
    finally:
        await close_http_client()
        server.close()
        await server.wait_closed()


def model(url: str, **settings: Any) -> OpenAIModel:
    defaults = {"host": "0.0.0.0", "port": 8080, "entrypoint": "", "name": "policy_model", "max_retries": 0}
    endpoint = {"openai_base_url": url, "openai_api_key": KEY, "openai_model": "real-name"}
    config = OpenAIModelConfig(**defaults | endpoint | settings)
    return OpenAIModel(config=config, server_client=MagicMock(spec=ServerClient))


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


def error(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, **more}}


CUT = reply(RESPONSE)[:-40] + b"<cut>"
FAILED = RESPONSE | {"status": "failed", "output": [], "error": {"code": "server_error", "message": "went wrong"}}
HOSTED = RESPONSE | {"output": [{"type": "web_search_call", "id": "w"}]}
FAULTS: dict[str, tuple[bytes, int, str, str]] = {
    "wrong key": (reply(error(f"Incorrect API key: {KEY}"), 401), 502, "auth", "Incorrect API key: ****"),
    "wrong model": (reply(error("The model `x` does not exist"), 404), 400, "rejected", "does not exist"),
    "busy": (reply(error("slow"), 429, "Retry-After: 0\r\n"), 429, "rate_limited", "status 429 (2 attempts): slow"),
    "broken": (reply(error("boom"), 500), 502, "model_error", "status 500 (2 attempts): boom"),
    "a page": (reply(b"<html>gateway</html>"), 502, "invalid_response", "gateway"),
    "another shape": (reply({"hello": ["world"]}), 502, "invalid_response", "hello"),
    "unknown item": (reply(HOSTED), 502, "invalid_response", "web_search_call"),
    "half the JSON": (reply(json.dumps(RESPONSE).encode()[:-7]), 502, "invalid_response", "no response"),
    "nothing": (reply(b""), 502, "invalid_response", "(empty)"),
    "an error as 200": (reply(error("overloaded", type="server_error")), 502, "model_error", "overloaded"),
    "a failed response": (reply(FAILED), 502, "model_error", "went wrong"),
    "half the body": (CUT, 502, "connection", "the answer broke off (2 attempts)"),
    "not HTTP": (b"<cut>", 502, "connection", "not a valid HTTP answer"),
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
    ("body", "words"), [(COMPLETION | {"choices": []}, "without choices"), ({"hello": 1}, "no chat completion")]
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

    assert (got.status_code, got.json()["error"]["type"]) == (502, "connection")
    assert "cannot connect" in got.json()["error"]["message"]
    assert "check that the endpoint is up" in got.json()["error"]["hint"]


async def test_an_endpoint_that_hangs_is_given_up() -> None:
    async with serving(reply(RESPONSE), delay_s=5) as endpoint:
        got = await post(model(endpoint.url, request_timeout_s=0.05), "/v1/responses", {"input": "hi"})

        assert (got.status_code, got.json()["error"]["type"]) == (504, "timeout")
        assert "no answer within 0.05 s" in got.json()["error"]["message"]
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
