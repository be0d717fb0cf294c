"""Collected rollouts have every token once, wherever the servers run, and in the form that was asked for."""

import asyncio
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from omegaconf import DictConfig

from nemo_gym.config.parse import parse_config
from nemo_gym.executors.processes import worker_pool
from nemo_gym.exporting.tokens import token_spans
from nemo_gym.metrics.continuity import check_continuity
from nemo_gym.rollouts.attempt import AgentAttempt
from nemo_gym.rollouts.store.outcome import Completed, Outcome, PlannedRollout
from nemo_gym.schemas.call_tokens import with_added_prompts, with_full_prompts
from nemo_gym.schemas.record import Record
from nemo_gym.servers.gym import host_gym
from nemo_gym.servers.server_client import GymClient
from nemo_gym.training.sequences import sequences_of
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
AGENT = "example_single_tool_call_simple_agent"
TASK = orjson.loads(
    (ROOT / "resources_servers/example_single_tool_call/data/example.jsonl").read_text().splitlines()[0]
)
TURNS = 4
VLLM = "policy_model.responses_api_models.vllm_model"


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """An engine whose rollouts have four turns, in a process of its own."""
    port = free_port()
    command = [sys.executable, str(ROOT / "benchmarks_perf/mock_engine.py"), str(port), str(TURNS)]
    with subprocess.Popen(command) as process:
        for _ in range(200):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/stats").close()
                break
            except OSError:
                subprocess.run(["sleep", "0.05"], check=True)  # it is still starting
        yield f"http://127.0.0.1:{port}/v1"
        process.terminate()


def configuration(url: str, *more: str) -> DictConfig:
    model = "responses_api_models/vllm_model/configs/vllm_model_for_training.yaml"
    paths = f"resources_servers/example_single_tool_call/configs/example_single_tool_call.yaml,{model}"
    policy = [f"+policy_base_url={url}", "+policy_api_key=none", "+policy_model_name=mock"]
    return parse_config([f"+config_paths=[{paths}]", *policy, *more]).config


def rollouts(number: int) -> list[PlannedRollout]:
    row = {**TASK, "_ng_task_index": 0, "agent_ref": {"name": AGENT}}
    return [PlannedRollout.of({**row, "_ng_rollout_index": index}) for index in range(number)]


def shown(outcome: Outcome) -> tuple[Any, ...]:
    """What is the same in every rollout: the number of calls and tokens, and that they are one sequence."""
    assert isinstance(outcome, Completed), outcome.line[:2000]
    record = Record.parse(outcome.line)
    found = check_continuity(record.items)
    [span] = token_spans(record.items, record.traces)
    names = sorted({name for item in record.items for name in item if "token" in name or name.startswith("ng_")})
    return found.ok, found.calls, len(span.ids), sum(span.mask), record.fields.get("traces"), names


async def test_one_process_http_and_workers_give_the_same_tokens(engine: str) -> None:
    config, planned = configuration(engine), rollouts(3)
    async with host_gym(config) as gym:
        here = await asyncio.gather(*map(AgentAttempt(gym.client), planned))
        far = AgentAttempt(GymClient(head_server_config=gym.client.head_server_config, global_config_dict=config))
        over_http = await asyncio.gather(*map(far, planned))
        assert len(gym.client.calls) == 0
    async with worker_pool(config, 2) as pool:
        there = await asyncio.gather(*map(pool, planned))
    [expected] = {str(shown(outcome)) for outcome in (*here, *over_http, *there)}
    assert expected.startswith(f"(True, {TURNS}, ")
    assert "['generation_token_ids', 'prompt_token_ids_added']" in expected


@pytest.mark.parametrize("form", ["full", "items"])
async def test_the_older_form_is_written_on_request(engine: str, form: str) -> None:
    async with host_gym(configuration(engine, f"+token_ids={form}")) as gym:
        outcome = await AgentAttempt(gym.client)(rollouts(1)[0])
    record = Record.parse(outcome.line)
    assert check_continuity(record.items).calls == TURNS
    assert [name for item in record.items for name in item if name.startswith("prompt_token")] == [
        "prompt_token_ids"
    ] * TURNS
    assert "_ng_token_form" not in record.fields
    assert with_full_prompts(with_added_prompts(record.fields)) == record.fields


async def test_several_processes_of_a_model_server_send_tokens_with_the_items(engine: str) -> None:
    config = configuration(engine, f"++{VLLM}.num_workers=2")
    async with host_gym(config) as gym:
        outcome = await AgentAttempt(gym.client)(rollouts(1)[0])
    assert shown(outcome)[:2] == (True, TURNS)


async def test_a_model_server_in_its_own_process_is_asked_for_its_calls(engine: str) -> None:
    async with host_gym(configuration(engine, f"++{VLLM}.isolation=process")) as gym:
        outcome = await AgentAttempt(gym.client)(rollouts(1)[0])
    assert shown(outcome)[:2] == (True, TURNS)
    assert shown(outcome)[-1] == ["generation_token_ids", "prompt_token_ids_added"]


async def test_trainers_get_whole_prompts(engine: str) -> None:
    async with host_gym(configuration(engine)) as gym:
        outcome = await AgentAttempt(gym.client)(rollouts(1)[0])
    assert b'"prompt_token_ids":' not in outcome.line
    items = [item for item in outcome.record["response"]["output"] if "generation_token_ids" in item]
    lengths = [len(item["prompt_token_ids"]) for item in items]
    assert lengths == sorted(set(lengths))
    [sequence] = sequences_of(Record.parse(outcome.line))
    assert sequence.ids == items[-1]["prompt_token_ids"] + items[-1]["generation_token_ids"]


async def test_nothing_is_kept_of_an_attempt_that_is_given_up(engine: str) -> None:
    async with host_gym(configuration(engine)) as gym:
        attempt = AgentAttempt(gym.client, timeout_s=0.001)
        await asyncio.gather(*map(attempt, rollouts(2)))
        assert len(gym.client.calls) == 0
