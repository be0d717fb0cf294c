"""Programs call a model under the address of their attempt, with its key, for as long as it is open."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from time import perf_counter_ns
from typing import Any

import aiohttp
import orjson
import pytest

from nemo_gym.capture.outline import outline
from nemo_gym.capture.traces import complete, references
from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.agents import GymAgents
from nemo_gym.servers.attempts import OpenedAttempt, open_attempt
from nemo_gym.servers.gym import Gym, host_gym
from nemo_gym.servers.middleware.rollout_scope import mark_of_program, mark_rollout
from nemo_gym.steps.recording import Trail, current_span, root_span
from responses_api_models.vllm_model.tests.toy_engine import ToyEngine, toy_engine
from tests.servers.models.test_long_conversations import vllm

FORCED = '[{"name": "add", "parameters": {"a": 2, "b": 3}}]'
ADD = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}


@asynccontextmanager
async def gym_with(*script: str, tokens: bool = True) -> AsyncIterator[tuple[ToyEngine, Gym]]:
    async with (
        toy_engine("vLLM", *script) as engine,
        host_gym(vllm(engine.url, return_token_id_information=tokens)) as gym,
    ):
        yield engine, gym


async def post(
    attempt: OpenedAttempt, path: str, body: Any, *, key: str | None = None, **headers: str
) -> tuple[int, bytes]:
    given = {"Authorization": f"Bearer {key or attempt.api_key}", "Content-Type": "application/json", **headers}
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    async with (
        aiohttp.ClientSession() as session,
        session.post(attempt.root_url + path, data=data, headers=given) as reply,
    ):
        return reply.status, await reply.read()


async def chat(attempt: OpenedAttempt, messages: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    status, content = await post(attempt, "/v1/chat/completions", {"model": "m", "messages": messages, **options})
    assert status == 200, content
    return orjson.loads(content)["choices"][0]["message"]  # type: ignore[no-any-return]


def row_of(gym: Gym, response: dict[str, Any] | None) -> dict[str, Any]:
    row = {"response": response}
    complete(row, gym.client.calls.take(mark_of_program(), references(row)))
    return row


@pytest.mark.parametrize("tokens", [True, False])
async def test_a_program_s_calls_become_the_response_whatever_it_sends_back(tokens: bool) -> None:
    async with gym_with(FORCED, "It is five.", tokens=tokens) as (engine, gym):
        mark_rollout(3, 1, 1)
        attempt = await open_attempt(gym.client, "policy_model")
        question = {"role": "user", "content": "What is two and three?"}
        tools = [{"type": "function", "function": ADD}]
        made = await chat(attempt, [question], tools=tools)
        call = made["tool_calls"][0]
        # As an SDK writes it: without the fields that it does not know, and with the arguments in its own form.
        given = {"name": "add", "arguments": orjson.dumps(orjson.loads(call["function"]["arguments"])).decode()}
        repeated = {"role": "assistant", "tool_calls": [{"id": call["id"], "type": "function", "function": given}]}
        result = {"role": "tool", "tool_call_id": call["id"], "content": "5"}
        await chat(attempt, [question, repeated, result], tools=tools)
        report = await attempt.close()
        assert (report.answer, report.calls, report.answered, report.last_status) == ("It is five.", 2, 2, 200)
        assert report.response is not None
        kinds = [item["type"] for item in report.response["output"]]
        assert kinds == ["function_call", "function_call_output", "message"]
        row = row_of(gym, report.response)
        [main] = row["traces"]
        assert (main["response"], main["input"][0]["content"]) == (True, "What is two and three?")
        if tokens:
            sampled = [
                item["generation_token_ids"]
                for item in row["response"]["output"]
                if "ng_call" not in item and "generation_token_ids" in item
            ]
            assert [engine.text(ids) for ids in sampled] == [FORCED + "<|im_end|>", "It is five.<|im_end|>"]


async def test_only_the_key_of_an_open_attempt_lets_a_program_in() -> None:
    async with gym_with("One.", "Two.") as (_, gym):
        mark_rollout(0, 0, 1)
        first = await open_attempt(gym.client, "policy_model")
        second = await open_attempt(gym.client, "policy_model")
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        for key in ("wrong", second.api_key, gym.client.token or ""):
            assert (await post(first, "/v1/chat/completions", body, key=key))[0] == 401
        assert (await post(first, "/ng-calls", {"attempt": "0.0.1.ab"}))[0] == 404
        assert (await post(first, "/tokenize", {"prompt": "a"}))[0] == 404
        assert (await post(first, "/v1/chat/completions", body))[0] == 200
        report = await first.close()
        assert (report.calls, report.late) == (1, 0)
        status, content = await post(first, "/v1/chat/completions", body)
        assert status == 410, content
        assert (await first.close()).late == 1
        assert (await post(second, "/v1/chat/completions", body))[0] == 200


async def test_calls_that_run_when_an_attempt_is_closed_are_cancelled() -> None:
    async with gym_with() as (engine, gym):  # it has no answer, so it replies with an error that passes
        mark_rollout(0, 0, 1)
        attempt = await open_attempt(gym.client, "policy_model")
        engine.down = frozenset({"/v1/chat/completions"})
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        running = asyncio.create_task(post(attempt, "/v1/chat/completions", body))
        while not (await attempt.report()).calls:  # noqa: ASYNC110 - it is the other side that calls
            await asyncio.sleep(0.01)
        report = await attempt.close()
        assert report.cancelled == 1
        status, content = await running
        assert status == 410, content


async def test_the_gateway_says_in_its_own_words_what_was_refused() -> None:
    async with gym_with("One.") as (_, gym):
        mark_rollout(0, 0, 1)
        attempt = await open_attempt(gym.client, "policy_model")
        status, content = await post(attempt, "/v1/responses", {"model": "m", "input": [{"role": "nobody"}] * 500})
        assert 400 <= status < 500
        assert len(content) < 4000, "the request is not repeated"
        report = await attempt.close()
        assert [refusal.status for refusal in report.refused] == [status]
        assert report.refused[0].path == "/v1/responses"


async def test_calls_are_held_while_the_endpoint_is_down() -> None:
    async with gym_with("One.", "Two.") as (engine, gym):
        mark_rollout(0, 0, 1)
        attempt = await open_attempt(gym.client, "policy_model")
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
        assert (await post(attempt, "/v1/chat/completions", body))[0] == 200
        engine.down = frozenset({"/v1/chat/completions"})
        held = asyncio.create_task(post(attempt, "/v1/chat/completions", body))
        while not (await attempt.report()).waited_s:
            await asyncio.sleep(0.05)
            engine.down = frozenset() if engine.asked[1:] else engine.down
        status, content = await held
        assert status == 200
        assert b"Two." in content
        assert content.endswith(b"data: [DONE]\n\n")
        report = await attempt.close()
        assert (report.calls, report.last_failure) == (2, None)


async def test_an_endpoint_that_stays_down_is_reported() -> None:
    async with gym_with("One.", "Two.") as (engine, gym):
        mark_rollout(0, 0, 1)
        attempt = await open_attempt(gym.client, "policy_model", patience_s=0)
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        assert (await post(attempt, "/v1/chat/completions", body))[0] == 200
        engine.down = frozenset({"/v1/chat/completions"})
        status, content = await post(attempt, "/v1/chat/completions", body)
        assert status == 502, content
        report = await attempt.close()
        assert report.last_failure is not None
        assert (report.last_failure.kind, report.answered, report.refused) == ("model_error", 1, [])
        assert "out of order" in report.last_failure.message


async def test_a_model_server_in_its_own_process_has_a_gateway_too() -> None:
    async with (
        toy_engine("vLLM", FORCED, "It is five.") as engine,
        host_gym(vllm(engine.url, return_token_id_information=True, isolation="process")) as gym,
    ):
        mark_rollout(0, 0, 1, captured=True)
        attempt = await open_attempt(gym.client, "policy_model")
        question = {"role": "user", "content": "What is two and three?"}
        await chat(attempt, [question], tools=[{"type": "function", "function": ADD}])
        report = await attempt.close()
        assert report.response is not None
        assert (await post(attempt, "/v1/chat/completions", {"messages": []}))[0] == 410
        agents = GymAgents(gym.client)
        row = await agents.with_tokens({"response": report.response})
        [item] = row["response"]["output"]
        assert engine.text(item["generation_token_ids"]) == FORCED + "<|im_end|>"


async def test_a_server_of_several_processes_has_none() -> None:
    async with toy_engine("vLLM") as engine, host_gym(vllm(engine.url, num_workers=2)) as gym:
        with pytest.raises(ConfigError, match="has no gateway for programs"):
            await open_attempt(gym.client, "policy_model")


def test_moved_marks_and_other_spellings_say_the_same() -> None:
    def asked(content: Any, arguments: str) -> bytes:
        call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": arguments}
        return outline([{"role": "user", "content": content}, call]).text

    marked = [{"type": "input_text", "text": "Hi ", "cache_control": {"type": "ephemeral"}}]
    assert asked("Hi", '{"a":1,"b":2}') == asked(marked, '{"b": 2, "a": 1}')
    assert asked("Hi", "{}") != asked("Hello", "{}")


async def test_a_request_may_come_in_chunks_but_not_without_end() -> None:
    async def body(parts: int) -> AsyncIterator[bytes]:
        yield b'{"model": "m", "messages": [{"role": "user", "content": "'
        for _ in range(parts):
            yield b"x" * (1 << 18)
        yield b'"}]}'

    async with gym_with("One.") as (_, gym), aiohttp.ClientSession() as session:
        mark_rollout(0, 0, 1)
        attempt = await open_attempt(gym.client, "policy_model")
        address, headers = f"{attempt.base_url}/chat/completions", {"x-api-key": attempt.api_key}
        async with session.post(address, data=body(1), headers=headers) as reply:
            assert reply.status == 200, await reply.text()
        with suppress(aiohttp.ClientError):  # it may be cut off while it is still being sent
            async with session.post(address, data=body(270), headers=headers) as reply:
                assert reply.status == 413
        assert [one.status for one in (await attempt.close()).refused] == [413]


async def test_the_steps_of_a_rollout_have_the_calls_of_its_program() -> None:
    async with gym_with("One.") as (_, gym):
        trail = Trail(perf_counter_ns())
        current_span.set(root_span(trail))
        mark_rollout(0, 0, 1)
        attempt = await open_attempt(gym.client, "policy_model")
        await chat(attempt, [{"role": "user", "content": "Hi"}])
        await attempt.close()
        kinds = [(step.kind, step.route) for step in trail.steps]
        assert kinds == [("call", "/ng-attempts"), ("model", "/v1/chat/completions"), ("call", "/ng-attempts/close")]
