"""The stream for trainers, against real agents in this process."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from nemo_gym.config.parse import parse_config
from nemo_gym.rollouts.store.outcome import Completed, Failed
from nemo_gym.rollouts.stream import OutageError, stream_groups, stream_outcomes
from nemo_gym.servers.gym import Gym, host_gym

ROOT = Path(__file__).parents[2]
ENVIRONMENT = "resources_servers/example_single_tool_call"
AGENT = "example_single_tool_call_simple_agent"


@pytest.fixture
async def gym(mock_model: Any) -> AsyncIterator[Gym]:
    model = "responses_api_models/openai_model/configs/openai_model.yaml"
    paths = f"{ENVIRONMENT}/configs/example_single_tool_call.yaml,{model}"
    policy = [f"+policy_base_url={mock_model.base_url}", "+policy_api_key=none", "+policy_model_name=mock"]
    server = "policy_model.responses_api_models.openai_model"
    config = parse_config([f"+config_paths=[{paths}]", *policy, f"++{server}.max_retries=0"]).config
    async with host_gym(config) as hosted:
        yield hosted


@pytest.fixture
def tasks() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ROOT / ENVIRONMENT / "data/example.jsonl").read_text("utf-8").splitlines()]


async def test_every_rollout_is_handed_out_once(gym: Gym, tasks: list[dict[str, Any]]) -> None:
    outcomes = [outcome async for outcome in stream_outcomes(tasks, gym.client, agent=AGENT, repeats=3, limit=4)]
    assert sorted(outcome.planned.key for outcome in outcomes) == [(t, r) for t in range(5) for r in range(3)]
    assert all(isinstance(outcome, Completed) and outcome.reward == 1.0 for outcome in outcomes)


async def test_groups_come_whole_and_in_order(gym: Gym, tasks: list[dict[str, Any]]) -> None:
    groups = [group async for group in stream_groups(tasks, gym.client, agent=AGENT, repeats=4, limit=3)]
    assert sorted(group[0].planned.key.task for group in groups) == list(range(5))
    for group in groups:
        assert [outcome.planned.key.rollout for outcome in group] == [0, 1, 2, 3]
        assert len({outcome.planned.key.task for outcome in group}) == 1


async def test_leaving_the_loop_cancels_the_rest(gym: Gym, tasks: list[dict[str, Any]], mock_model: Any) -> None:
    mock_model.set(latency="300")
    outcomes = stream_outcomes(tasks, gym.client, agent=AGENT, repeats=50, limit=10)
    async for _ in outcomes:
        break
    await outcomes.aclose()
    while mock_model.stats()["inflight"]:  # noqa: ASYNC110 - it can only be asked
        await asyncio.sleep(0.02)
    assert mock_model.stats()["model_calls"] < len(tasks) * 50


async def test_a_rollout_that_fails_for_good_is_an_outcome(
    gym: Gym, tasks: list[dict[str, Any]], mock_model: Any
) -> None:
    mock_model.set(faults="html:1.0")
    [outcome] = [outcome async for outcome in stream_outcomes(tasks[:1], gym.client, agent=AGENT, max_attempts=1)]
    mock_model.set(faults="none:0")
    assert isinstance(outcome, Failed)
    assert outcome.failure.kind == "invalid_response"


async def test_an_outage_that_outlasts_patience_is_shown_and_ends_the_loop(
    agents_with: Callable[..., AbstractAsyncContextManager[Any]],
) -> None:
    tasks = [{"responses_create_params": {"input": f"q{n}"}} for n in range(10)]
    shown: list[Any] = []

    async def follow(agents: Any) -> None:
        async for outcome in stream_outcomes(tasks, agents, agent="alpha", patience_s=0.2):
            shown.append(outcome)  # noqa: PERF401 - what was shown before the error counts

    async with agents_with(lambda *_: web.Response(status=503)) as agents:
        with pytest.raises(OutageError, match=r"nothing got through for 0\.2 s"):
            await follow(agents)
    assert {outcome.planned.key.task for outcome in shown} == set(range(10))
    assert all(isinstance(outcome, Failed) for outcome in shown)
