"""Worker processes: the same results as in one process, and nothing lost when one of them dies."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from nemo_gym.config.parse import parse_config
from nemo_gym.errors import ConfigError
from nemo_gym.executors.processes import WorkerPool, WorkerProcess, worker_count, worker_pool
from nemo_gym.io.child_process import ChildProcess
from nemo_gym.rollouts.attempt import AgentAttempt
from nemo_gym.rollouts.store.outcome import Completed, Failed, Outcome, PlannedRollout
from nemo_gym.schemas.rows import FailureClass
from nemo_gym.servers.gym import host_gym
from nemo_gym.servers.server_client import GymClient

ROOT = Path(__file__).parents[2]
AGENT = "example_session_state_mgmt_simple_agent"
ENVIRONMENT = "resources_servers/example_session_state_mgmt"


def configuration(base_url: str) -> DictConfig:
    model = "responses_api_models/openai_model/configs/openai_model.yaml"
    paths = f"{ENVIRONMENT}/configs/example_session_state_mgmt.yaml,{model}"
    policy = [f"+policy_base_url={base_url}", "+policy_api_key=none", "+policy_model_name=mock"]
    return parse_config([f"+config_paths=[{paths}]", *policy]).config


def rollouts(times: int) -> list[PlannedRollout]:
    tasks = [json.loads(line) for line in (ROOT / ENVIRONMENT / "data/example.jsonl").read_text().splitlines()]
    return [
        PlannedRollout.of(
            {**task, "_ng_task_index": number, "_ng_rollout_index": repeat, "agent_ref": {"name": AGENT}},
            last_attempt=3,
        )
        for number, task in enumerate(tasks)
        for repeat in range(times)
    ]


def comparable(outcomes: list[Outcome]) -> dict[Any, Any]:
    return {outcome.planned.key: json.loads(outcome.line) for outcome in outcomes}


async def test_one_process_http_and_workers_give_the_same_results(mock_model: Any) -> None:
    config, planned = configuration(mock_model.base_url), rollouts(4)
    async with host_gym(config) as gym:
        attempt = AgentAttempt(gym.client)
        here = await asyncio.gather(*map(attempt, planned))
        far = AgentAttempt(GymClient(head_server_config=gym.client.head_server_config, global_config_dict=config))
        over_http = await asyncio.gather(*map(far, planned))
    async with worker_pool(config, 2) as pool:
        there = await asyncio.gather(*map(pool, planned))
    assert all(isinstance(outcome, Completed) for outcome in here)
    assert comparable(here) == comparable(over_http) == comparable(there)


async def test_leases_of_a_killed_worker_come_back_and_it_is_replaced(mock_model: Any) -> None:
    mock_model.set(latency="600000")
    async with worker_pool(configuration(mock_model.base_url), 2) as pool:
        running = [asyncio.ensure_future(pool(planned)) for planned in rollouts(1)[:4]]
        while mock_model.stats()["inflight"] < len(running):  # noqa: ASYNC110 - it can only be asked
            await asyncio.sleep(0.02)
        victim = next(iter(pool)).process.pid
        os.kill(victim, signal.SIGKILL)
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        outcome = done.pop().result()
        assert isinstance(outcome, Failed)
        assert outcome.failure.kind == FailureClass.WORKER_DIED
        assert outcome.will_retry
        assert json.loads(outcome.line)["_ng_attempt"] == 1
        mock_model.set(latency="0")
        again = await pool(outcome.planned.again())
        assert isinstance(again, Completed)
        while len(pool) < 2:  # noqa: ASYNC110 - the pool has no event for this
            await asyncio.sleep(0.05)
        assert victim not in {worker.process.pid for worker in pool}
        for task in running:
            task.cancel()


async def test_workers_that_keep_dying_end_the_run(mock_model: Any, tmp_path: Path) -> None:
    config = configuration(mock_model.base_url)
    config[AGENT].responses_api_agents.simple_agent.entrypoint = "no_such_file.py"
    with pytest.raises(ConfigError, match="worker processes keep dying"):
        async with worker_pool(config, 1):
            pytest.fail("no worker can be ready")


def test_auto_means_every_core_that_may_be_used() -> None:
    assert worker_count("auto") == len(os.sched_getaffinity(0))
    assert worker_count(None) == 1
    assert worker_count(3) == 3


async def test_a_pool_without_workers_says_why(mock_model: Any) -> None:
    pool = WorkerPool(configuration(mock_model.base_url), timeout_s=None)
    pool.give_up(ConfigError("gone"))
    with pytest.raises(ConfigError, match="gone"):
        await pool(rollouts(1)[0])


async def test_a_keeper_that_is_told_to_stop_while_it_clears_away_a_dead_worker_stops() -> None:
    """Whatever the moment: a cancellation that is lost would leave it waiting for the next worker for ever."""
    process = ChildProcess("a worker process", [sys.executable, "-c", ""])
    await process.ended()
    for moment in range(12):
        stopping = asyncio.create_task(WorkerProcess(process).stop())
        for _ in range(moment):
            await asyncio.sleep(0)
        was_told = stopping.cancel()
        await asyncio.wait([stopping])
        assert stopping.cancelled() == was_told, f"told after {moment} iterations of the event loop"
