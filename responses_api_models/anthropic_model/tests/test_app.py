"""anthropic_model against a scripted endpoint: real HTTP on both sides."""

import json
from typing import Any

import anthropic
import httpx
import httpx2
import pytest
from anthropic.types import Message
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.http.connections import close_http_client
from responses_api_models.anthropic_model.app import AnthropicModel, AnthropicModelConfig
from responses_api_models.openai_model.tests.scripted_endpoint import CUT, ENDLESS, reply, serving, stream

KEY = "sk-ant-very-secret"
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": False}
USE = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"x": 1}}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "sig"}


def message(*content: Any, stop_reason: str = "end_turn", **more: Any) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "real-name",
        "content": list(content) or [{"type": "text", "text": "hi"}],
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 5, "cache_read_input_tokens": 3, "output_tokens": 4},
        **more,
    }


def error(message: str, kind: str = "api_error") -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


def model(url: str, **settings: Any) -> AnthropicModel:
    server = {"host": "0.0.0.0", "port": 8080, "entrypoint": "", "name": "policy_model", "max_retries": 0}
    endpoint = {"anthropic_base_url": url, "anthropic_api_key": KEY, "anthropic_model": "real-name"}
    config = AnthropicModelConfig(**server | endpoint | settings)
    return AnthropicModel(config=config, server_client=ServerClient.detached())


async def post(server: AnthropicModel, body: Any, path: str = "/v1/responses") -> httpx.Response:
    transport = httpx.ASGITransport(server.setup_webserver(), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://model") as client:
        return await client.post(path, json=body)


async def test_a_rollout_of_two_turns_speaks_the_endpoints_protocol() -> None:
    answers = reply(message(THOUGHT, USE, stop_reason="tool_use")), reply(message())
    async with serving(*answers) as endpoint:
        server = model(endpoint.url)
        question = {"role": "user", "content": "hi"}
        asked = {"instructions": "be brief", "tools": [TOOL], "parallel_tool_calls": False, "temperature": 0.5}
        first = (await post(server, {"input": [question], **asked})).json()
        result = {"type": "function_call_output", "call_id": "toolu_1", "output": "42"}
        second = (await post(server, {"input": [question, *first["output"], result], **asked})).json()

        assert endpoint.paths == ["/v1/messages", "/v1/messages"]
        head = endpoint.heads[0].lower()
        assert f"x-api-key: {KEY}" in head
        assert "anthropic-version: 2023-06-01" in head
        assert "authorization" not in head
        assert endpoint.bodies[0] == {
            "model": "real-name",
            "max_tokens": 8192,
            "system": "be brief",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
            "tools": [{"name": "f", "input_schema": {"type": "object", "properties": {}}}],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            "temperature": 0.5,
        }
        assert endpoint.bodies[1]["messages"][1:] == [
            {"role": "assistant", "content": [THOUGHT, USE]},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "42"}]}
                ],
            },
        ]
        assert [item["type"] for item in first["output"]] == ["reasoning", "function_call"]
        assert first["output"][1]["arguments"] == '{"x":1}'
        assert first["usage"]["input_tokens"] == 8
        assert first["usage"]["input_tokens_details"] == {"cached_tokens": 3}
        assert (second["status"], second["model"]) == ("completed", "real-name")
        assert Response.construct(**second).model == "real-name"


@pytest.mark.parametrize("path", ["", "/v1"])
async def test_base_urls_with_and_without_a_version_mean_the_same(path: str) -> None:
    async with serving(reply(message())) as endpoint:
        await post(model(endpoint.url.removesuffix("/v1") + path), {"input": "hi"})

        assert endpoint.paths == ["/v1/messages"]


@pytest.mark.parametrize(
    ("stop_reason", "reason"),
    [
        ("end_turn", None),
        ("stop_sequence", None),
        ("max_tokens", "max_output_tokens"),
        ("model_context_window_exceeded", "max_output_tokens"),
        ("refusal", "content_filter"),
        ("pause_turn", "pause_turn"),
    ],
)
async def test_the_reason_to_stop_is_carried_over(stop_reason: str, reason: str | None) -> None:
    async with serving(reply(message(stop_reason=stop_reason))) as endpoint:
        got = (await post(model(endpoint.url), {"input": "hi"})).json()

        assert (got["incomplete_details"] or {}).get("reason") == reason


async def test_a_message_that_ended_for_an_unknown_reason_is_not_an_answer() -> None:
    async with serving(reply(message(stop_reason="paused_for_lunch"))) as endpoint:
        got = await post(model(endpoint.url), {"input": "hi"})

        assert (got.status_code, got.json()["error"]["type"]) == (502, "invalid_response")
        assert "paused_for_lunch" in got.json()["error"]["message"]


async def test_both_ways_to_ask_send_the_same() -> None:
    asked = {"input": [{"role": "user", "content": "hi"}], "tools": [TOOL], "max_output_tokens": 7}
    async with serving(reply(message())) as endpoint:
        server = model(endpoint.url)
        relayed = (await post(server, asked)).json()
        typed = await server.responses(NeMoGymResponseCreateParamsNonStreaming.model_validate(asked))

        assert endpoint.bodies[0] == endpoint.bodies[1]
        assert list(relayed) == list(typed.model_dump())


async def test_chat_completions_are_answered_too() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    async with serving(reply(message(THOUGHT, USE, stop_reason="tool_use"))) as endpoint:
        asked = {"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]}
        got = await post(
            model(endpoint.url), {**asked, "tools": [tool], "max_tokens": 9, "stop": "x"}, "/v1/chat/completions"
        )

        completion = ChatCompletion.model_validate(got.json())
        call = completion.choices[0].message.tool_calls[0].to_dict()  # type: ignore[index]
        assert call == {"id": "toolu_1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
        assert completion.choices[0].finish_reason == "tool_calls"
        assert got.json()["choices"][0]["message"]["reasoning_content"] == "hm"
        assert (endpoint.bodies[0]["system"], endpoint.bodies[0]["max_tokens"]) == ("be brief", 9)


async def test_its_own_protocol_is_passed_on_as_it_came() -> None:
    block = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    served = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    asked: dict[str, Any] = {
        "model": "any",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": [block]}, {"role": "assistant", "content": [served]}],
        "thinking": {"type": "adaptive"},
        "tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 1}],
    }
    async with serving(reply(message(THOUGHT, USE, stop_reason="tool_use"))) as endpoint:
        server = model(endpoint.url)
        whole = await post(server, asked, "/v1/messages")
        transport = httpx2.ASGITransport(server.setup_webserver())
        async with (
            anthropic.AsyncAnthropic(
                base_url="http://model", api_key="x", http_client=httpx2.AsyncClient(transport=transport)
            ) as client,
            client.messages.stream(**asked) as events,
        ):
            streamed = await events.get_final_message()

        sent = asked | {"model": "real-name"}
        assert endpoint.bodies == [sent, sent | {"stream": True}]
        assert Message.model_validate(whole.json()).content == streamed.content
        assert [part.to_dict() for part in streamed.content] == [THOUGHT, USE]


async def test_a_streamed_message_is_read_as_a_whole_one() -> None:
    started = message() | {"content": [], "stop_reason": None}
    delta = {"type": "content_block_delta", "index": 0}
    events = [
        {"type": "message_start", "message": started},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        delta | {"delta": {"type": "thinking_delta", "thinking": "hm"}},
        delta | {"delta": {"type": "signature_delta", "signature": "sig"}},
        {"type": "content_block_start", "index": 1, "content_block": USE | {"input": {}}},
        delta | {"index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"x"'}},
        delta | {"index": 1, "delta": {"type": "input_json_delta", "partial_json": ": 1"}},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    ]
    async with serving(stream(*events)) as endpoint:
        got = (await post(model(endpoint.url, extra_body={"stream": True}), {"input": "hi"})).json()

        thought, call = got["output"]
        assert (thought["summary"][0]["text"], thought["encrypted_content"]) == ("hm", "sig")
        assert call["arguments"] == '{"x": 1'
        assert got["usage"]["output_tokens"] == 9


async def test_what_a_request_cannot_carry_is_refused_or_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(reply(message())) as endpoint:
        refused = await post(model(endpoint.url), {"input": "hi", "truncation": "auto"})
        assert (refused.status_code, endpoint.bodies) == (400, [])
        assert "no equivalent for truncation" in refused.json()["error"]["message"]

        server = model(endpoint.url, on_loss="warn")
        for _ in range(2):
            await post(server, {"input": "hi", "truncation": "auto", "top_logprobs": 2})

        assert caplog.text.count("no equivalent for truncation") == 1
        assert caplog.text.count("no equivalent for top_logprobs") == 1


async def test_odd_answers_are_used_and_noted_once(caplog: pytest.LogCaptureFixture) -> None:
    search = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    odd = message(search, {"type": "text", "text": "hi"}, usage={"input_tokens": -5, "output_tokens": 4})
    async with serving(reply(odd), reply(message())) as endpoint:
        server = model(endpoint.url)
        first = (await post(server, {"input": "hi"})).json()
        await post(server, {"input": [{"role": "user", "content": "hi"}, *first["output"]]})

        assert first["usage"] is None
        assert endpoint.bodies[1]["messages"][1]["content"] == [search, {"type": "text", "text": "hi"}]
        assert caplog.text.count("blocks of type server_tool_use") == caplog.text.count("negative numbers") == 1


FAULTS: dict[str, tuple[bytes, int, str, str]] = {
    "wrong key": (reply(error(f"invalid x-api-key {KEY}", "authentication_error"), 401), 502, "auth", "x-api-key ****"),
    "wrong model": (reply(error("model: x", "not_found_error"), 404), 502, "unreachable", "status 404: model: x"),
    "busy": (reply(error("slow"), 429, "Retry-After: 0\r\n"), 429, "rate_limited", "status 429 (2 attempts): slow"),
    "overloaded": (reply(error("Overloaded", "overloaded_error"), 529), 502, "model_error", "Overloaded"),
    "a page": (reply(b"<html>gateway</html>"), 502, "invalid_response", "gateway"),
    "another protocol": (reply({"id": "x", "choices": []}), 502, "invalid_response", "no message"),
    "half the JSON": (reply(json.dumps(message()).encode()[:-7]), 502, "invalid_response", "no message"),
    "half a block": (reply(message({"type": "text"})), 502, "invalid_response", "content.0.text"),
    "an error as 200": (reply(error("broken")), 502, "model_error", "broken"),
    "an error in a stream": (stream(error("Overloaded")), 502, "model_error", "Overloaded"),
    "half a stream": (stream({"type": "message_start", "message": message()}), 502, "invalid_response", "broke off"),
    "half the body": (reply(message())[:-40] + CUT, 502, "connection", "the reply broke off (2 attempts)"),
}


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
@pytest.mark.parametrize(("answer", "status", "kind", "words"), FAULTS.values(), ids=FAULTS)
async def test_what_goes_wrong_upstream_is_told_clearly_and_without_the_key(
    path: str, answer: bytes, status: int, kind: str, words: str
) -> None:
    async with serving(answer) as endpoint:
        body: dict[str, Any] = {"input": "hi"}
        if path == "/v1/messages":
            body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
        got = await post(model(endpoint.url, max_retries=1), body, path)

        told = got.json()["error"]
        assert (got.status_code, told.get("kind", told["type"])) == (status, kind)
        assert got.headers["X-NG-Failure-Class"] == kind
        assert words in told["message"]
        assert told["message"].startswith(f"model real-name at {endpoint.url}: ")
        assert told["hint"]
        assert KEY not in got.text


async def test_a_stream_without_end_is_given_up() -> None:
    head = b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with serving(head + ENDLESS) as endpoint:
        got = await post(model(endpoint.url, request_timeout_s=0.1), {"input": "hi"})

        assert (got.status_code, got.json()["error"]["type"]) == (504, "timeout")


async def test_content_without_an_equivalent_is_refused_without_a_call() -> None:
    content = [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]
    got = await post(model("http://127.0.0.1:1/v1"), {"input": [{"role": "user", "content": content}]})
    malformed = await post(model("http://127.0.0.1:1/v1"), {"input": [{"role": "user"}]})

    assert (got.status_code, got.json()["error"]["type"]) == (400, "rejected")
    assert "input_audio" in got.json()["error"]["message"]
    assert malformed.status_code == 422


async def test_an_endpoint_that_is_not_there_is_told_clearly() -> None:
    got = await post(model("http://127.0.0.1:1/v1"), {"input": "hi"})
    await close_http_client()

    assert (got.status_code, got.json()["error"]["type"]) == (502, "unreachable")


def test_the_key_is_in_no_repr() -> None:
    server = model("http://127.0.0.1:1/v1", anthropic_default_headers={"X-Key": KEY})

    assert KEY not in repr(server)
    assert KEY not in repr(server._upstream.endpoint)


async def test_the_endpoint_counts_tokens_of_both_protocols() -> None:
    async with serving(routes={"/v1/messages/count_tokens": reply({"input_tokens": 11})}) as endpoint:
        server = model(endpoint.url)
        thinking = {"type": "enabled", "budget_tokens": 1024}
        own = {"messages": [{"role": "user", "content": "hi"}], "thinking": thinking, "max_tokens": 9}
        counted = await post(server, own, "/v1/messages/count_tokens")
        other = await post(server, {"input": "hi", "temperature": 1.0}, "/v1/responses/input_tokens")

        assert (counted.json(), other.json()["input_tokens"]) == ({"input_tokens": 11}, 11)
        assert endpoint.bodies[0] == {"messages": own["messages"], "thinking": thinking, "model": "real-name"}
        assert set(endpoint.bodies[1]) == {"messages", "model"}
