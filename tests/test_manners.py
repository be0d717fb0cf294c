"""Model servers of one Gym at one endpoint: together they send no more than it takes, and wait when it asks for it."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from nemo_gym.config.parse import parse_config
from nemo_gym.servers.gym import host_gym
from nemo_gym.servers.http.gate import origin
from nemo_gym.servers.server_client import GymClient
from responses_api_models.openai_model.tests.scripted_endpoint import Endpoint, error, reply, serving

PART = {"type": "output_text", "text": "hi", "annotations": []}
ITEM = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [PART]}
RESPONSE: dict[str, Any] = {"id": "r", "object": "response", "created_at": 1, "model": "m", "output": [ITEM]}
RESPONSE |= {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
CHOICE = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}
COMPLETION = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [CHOICE]}
MESSAGE: dict[str, Any] = {"id": "a", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn"}
MESSAGE |= {"content": [{"type": "text", "text": "hi"}], "usage": {"input_tokens": 1, "output_tokens": 1}}
GOOD = {
    "/v1/responses": reply(RESPONSE),
    "/v1/chat/completions": reply(COMPLETION),
    "/v1/messages": reply(MESSAGE),
}
POLICY, JUDGE, CRITIC = GOOD
PAUSE_S = 0.3


def settings(kind: str, url: str, **more: Any) -> dict[str, Any]:
    """The settings of a model server of this kind."""
    prefix = {"openai_model": "openai_", "anthropic_model": "anthropic_", "vllm_model": ""}[kind]
    named: dict[str, Any] = {f"{prefix}base_url": url, f"{prefix}api_key": "none", f"{prefix}model": "m"}
    if kind == "vllm_model":
        named |= {"return_token_id_information": False, "uses_reasoning_parser": True, "max_queue_depth": None}
    return named | {"entrypoint": "app.py", "max_retries": 0} | more


@asynccontextmanager
async def gym_at(
    endpoint: Endpoint, *, policy: dict[str, Any], judge: dict[str, Any], critic: dict[str, Any] | None = None
) -> AsyncIterator[GymClient]:
    """A Gym with a policy behind openai_model, a judge behind vllm_model and a critic behind anthropic_model."""
    servers = {"policy": ("openai_model", policy), "judge": ("vllm_model", judge)}
    if critic is not None:
        servers["critic"] = ("anthropic_model", critic)
    words = [
        f"++{role}.responses_api_models.{kind}.{name}={json.dumps(value)}"
        for role, (kind, more) in servers.items()
        for name, value in settings(kind, endpoint.url, **more).items()
    ]
    async with host_gym(parse_config(words).config) as gym:
        yield gym.client


async def ask(client: GymClient, role: str) -> int:
    """The status of the answer of a model server."""
    answer = await client.post(server_name=role, url_path="/v1/responses", json={"input": "hi"})
    await answer.read()
    return int(answer.status)


async def test_all_roles_together_stay_below_the_limit_of_their_endpoint() -> None:
    async with (
        serving(routes=GOOD, delay_s=0.005) as endpoint,
        gym_at(endpoint, policy={"endpoint_max_concurrent_requests": 3}, judge={}, critic={}) as client,
    ):
        asked = [ask(client, role) for role in ("policy", "judge", "critic") for _ in range(20)]
        statuses = await asyncio.gather(*asked)

    assert set(statuses) == {200}
    assert endpoint.most_busy == 3
    assert Counter(endpoint.paths) == dict.fromkeys(GOOD, 20)


async def test_the_lowest_limit_that_any_role_gives_counts_and_shares_count_too() -> None:
    limits = {"endpoint_max_concurrent_requests": 9, "max_concurrent_requests": 2}
    async with (
        serving(routes=GOOD, delay_s=0.005) as endpoint,
        gym_at(endpoint, policy=limits, judge={"endpoint_max_concurrent_requests": 4}) as client,
    ):
        await asyncio.gather(*(ask(client, role) for role in ("policy", "judge") for _ in range(12)))
        together, endpoint.most_busy = endpoint.most_busy, 0
        await asyncio.gather(*(ask(client, "policy") for _ in range(12)))

    assert together == 4
    assert endpoint.most_busy == 2


async def test_a_judge_with_a_long_queue_does_not_starve_the_policy() -> None:
    async with (
        serving(routes=GOOD, delay_s=0.002) as endpoint,
        gym_at(endpoint, policy={}, judge={"endpoint_max_concurrent_requests": 1}) as client,
    ):
        judging = [asyncio.create_task(ask(client, "judge")) for _ in range(30)]
        await asyncio.gather(*(ask(client, "policy") for _ in range(5)))
        served = Counter(endpoint.paths)
        await asyncio.gather(*judging)

    assert served[JUDGE] <= 10


async def test_without_a_limit_nothing_waits() -> None:
    async with (
        serving(routes=GOOD, delay_s=0.3) as endpoint,
        gym_at(endpoint, policy={}, judge={}) as client,
    ):
        await asyncio.gather(*(ask(client, role) for role in ("policy", "judge") for _ in range(10)))

    assert endpoint.most_busy == 20


async def test_who_waits_for_another_attempt_holds_no_place() -> None:
    broken = reply(error("broken"), 500, "Retry-After: 0.2\r\n")
    async with (
        serving(routes={**GOOD, POLICY: [broken, GOOD[POLICY]]}, delay_s=0.005) as endpoint,
        gym_at(endpoint, policy={"endpoint_max_concurrent_requests": 1, "max_retries": 1}, judge={}) as client,
    ):
        statuses = await asyncio.gather(ask(client, "policy"), ask(client, "judge"))

    assert set(statuses) == {200}
    assert endpoint.paths == [POLICY, JUDGE, POLICY]


def in_a_moment() -> str:
    # Later than the other pauses end: this one begins now, and not when the answer arrives.
    return (datetime.now(UTC) + timedelta(seconds=5 * PAUSE_S)).isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize(
    ("status", "role", "headers"),
    [
        (429, "policy", "Retry-After: 0.3"),
        (503, "judge", "Retry-After: 0.3"),
        (529, "critic", "retry-after: 0.3"),
        (200, "policy", "x-ratelimit-remaining-requests: 0\r\nx-ratelimit-reset-requests: 300ms"),
        (200, "judge", "X-RateLimit-Remaining-Tokens: 0\r\nX-RateLimit-Reset-Tokens: 0.3"),
        (200, "critic", "anthropic-ratelimit-tokens-remaining: 0\r\nanthropic-ratelimit-tokens-reset: {moment}"),
    ],
)
async def test_one_answer_that_asks_for_a_pause_holds_all_roles_back(status: int, role: str, headers: str) -> None:
    path = dict(zip(("policy", "judge", "critic"), GOOD, strict=True))[role]
    body = {POLICY: RESPONSE, JUDGE: COMPLETION, CRITIC: MESSAGE}[path] if status == 200 else error("slow down")
    async with (
        serving(routes=GOOD) as endpoint,
        gym_at(endpoint, policy={}, judge={}, critic={}) as client,
    ):
        started = time.monotonic()
        endpoint.routes[path].insert(0, reply(body, status, headers.format(moment=in_a_moment()) + "\r\n"))
        first = await ask(client, role)
        others = await asyncio.gather(*(ask(client, other) for other in ("policy", "judge", "critic")))
        # A pause has a beginning that we know and an end before which nobody came.
        assert time.monotonic() - started >= PAUSE_S
        gate = client.gates.for_role(endpoint.url, "anybody").gate

    assert (first == 200) == (status == 200)
    assert others == [200, 200, 200]
    assert gate.pauses == 1
    assert sorted(endpoint.paths) == sorted([path, *GOOD])


async def test_other_endpoints_do_not_wait() -> None:
    closing = reply(error("slow down"), 429, "Retry-After: 30\r\n")
    async with (
        serving(closing) as busy,
        serving(routes=GOOD) as free,
        gym_at(busy, policy={}, judge={"base_url": free.url}) as client,
    ):
        assert origin(busy.url) != origin(free.url)
        assert await ask(client, "policy") == 429
        assert await ask(client, "judge") == 200


async def test_what_remains_is_no_reason_to_wait() -> None:
    headers = "x-ratelimit-remaining-requests: 1\r\nx-ratelimit-reset-requests: 50s\r\n"
    async with (
        serving(reply(RESPONSE, headers=headers)) as endpoint,
        gym_at(endpoint, policy={}, judge={}) as client,
    ):
        assert [await ask(client, "policy") for _ in range(5)] == [200] * 5
        assert client.gates.for_role(endpoint.url, "anybody").gate.pauses == 0
