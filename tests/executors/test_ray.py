"""Gyms on a real Ray cluster of several nodes, all of them on this machine."""

import asyncio
import importlib.util
import json
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from nemo_gym.config.parse import parse_config
from nemo_gym.errors import ConfigError
from nemo_gym.executors.remote_gyms import RemoteGyms
from nemo_gym.rollouts.options import WorkerOptions
from nemo_gym.rollouts.store.outcome import Completed, Failed, PlannedRollout
from nemo_gym.rollouts.stream import stream_groups, stream_outcomes
from nemo_gym.schemas.rows import FailureClass
from nemo_gym.steps.steps_file import read_steps
from tests.forked_commands import ForkedCommands

# Importing Ray takes seconds, so only the tests do; looking for it must not.
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own code warns of its own ways
]
ROOT = Path(__file__).parents[2]
AGENT = "example_session_state_mgmt_simple_agent"
ENVIRONMENT = "resources_servers/example_session_state_mgmt"
TASKS = [json.loads(line) for line in (ROOT / ENVIRONMENT / "data/example.jsonl").read_text().splitlines()]
SMALL = {"object_store_memory": 80 << 20}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with a CPU each. Nothing is sent to anybody about it."""
    import ray
    from ray.cluster_utils import Cluster

    before = os.environ.copy()
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, **SMALL})
    made.add_node(num_cpus=1, resources={"special": 1}, **SMALL)
    yield made
    ray.shutdown()
    made.shutdown()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def trainer(cluster: Any) -> Iterator[None]:
    """A process that has Ray already."""
    import ray

    ray.init(address=cluster.address, log_to_driver=False)
    yield
    ray.shutdown()


@asynccontextmanager
async def ray_gyms(config: DictConfig, options: WorkerOptions) -> AsyncIterator[RemoteGyms]:
    from nemo_gym.executors.ray_cluster import ray_gyms

    async with ray_gyms(config, options) as gyms:
        yield gyms


def configuration(base_url: str, address: str | None = None) -> DictConfig:
    model = "responses_api_models/openai_model/configs/openai_model.yaml"
    paths = f"{ENVIRONMENT}/configs/example_session_state_mgmt.yaml,{model}"
    policy = [f"+policy_base_url={base_url}", "+policy_api_key=none", "+policy_model_name=mock"]
    return parse_config([f"+config_paths=[{paths}]", *policy], pairs={"ray_head_node_address": address}).config


async def until(condition: Any) -> None:
    async with asyncio.timeout(100):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.05)


def ready(gyms: Any) -> list[dict[str, Any]]:
    return [gym for gym in gyms.describe()["gyms"] if gym["state"] == "ready"]


async def check_that_a_killed_gym_costs_one_more_attempt(gyms: RemoteGyms, mock_model: Any) -> None:
    mock_model.set(latency="600000")
    row = {**TASKS[0], "_ng_task_index": 0, "_ng_rollout_index": 0, "agent_ref": {"name": AGENT}}
    running = asyncio.ensure_future(gyms(PlannedRollout.of(row, last_attempt=3)))
    await until(lambda: mock_model.stats()["max_inflight"] > 0 and any(worker.leases for worker in gyms))
    [busy] = [worker for worker in gyms if worker.leases]
    os.kill(int(busy.name.rpartition(" ")[2]), signal.SIGKILL)
    outcome = await running
    assert isinstance(outcome, Failed)
    assert outcome.failure.kind == FailureClass.WORKER_DIED
    mock_model.set(latency="0")
    assert isinstance(await gyms(outcome.planned), Completed)


async def test_a_trainer_keeps_its_ray_and_its_gyms_come_and_go(cluster: Any, trainer: None, mock_model: Any) -> None:
    import ray

    async with ray_gyms(configuration(mock_model.base_url), WorkerOptions(worker_cpus="node")) as gyms:
        await until(lambda: len(ready(gyms)) == 2)
        outcomes = [outcome async for outcome in stream_outcomes(TASKS, gyms, agent=AGENT, repeats=4)]
        assert Counter(type(outcome) for outcome in outcomes) == {Completed: 4 * len(TASKS)}
        assert all(gym["finished"] for gym in ready(gyms))
        node = cluster.add_node(num_cpus=1, **SMALL)
        await until(lambda: len(ready(gyms)) == 3)
        groups = [group async for group in stream_groups(TASKS, gyms, agent=AGENT, repeats=6)]
        assert [len(group) for group in groups] == [6] * len(TASKS)
        assert all(gym["finished"] for gym in ready(gyms))
        cluster.remove_node(node)
        await until(lambda: len(gyms) == 2)
        await check_that_a_killed_gym_costs_one_more_attempt(gyms, mock_model)
    assert ray.is_initialized()
    await until(lambda: ray.available_resources().get("CPU") == 2.0)


async def test_workers_go_where_their_resources_are_and_a_gym_that_cannot_start_says_why(
    cluster: Any, mock_model: Any
) -> None:
    import ray

    handler = signal.getsignal(signal.SIGTERM)
    config = configuration("http://127.0.0.1:9/v1", cluster.address)
    special = WorkerOptions(
        workers=1,
        worker_resources={"special": 1},
        worker_overrides={"policy_base_url": mock_model.base_url},
    )
    async with ray_gyms(config, special) as gyms:
        assert signal.getsignal(signal.SIGTERM) is handler
        assert all([isinstance(each, Completed) async for each in stream_outcomes(TASKS[:1], gyms, agent=AGENT)])
        assert len(gyms) == 1
    assert not ray.is_initialized()
    config[AGENT].responses_api_agents.simple_agent.entrypoint = "no_such_file.py"
    with pytest.raises(ConfigError, match=r"no_such_file\.py"):
        async with ray_gyms(config, WorkerOptions(workers=1)):
            pytest.fail("there is no Gym")


def test_a_command_that_was_killed_resumes_on_the_cluster_and_keeps_stdout_for_data(
    cluster: Any, commands: ForkedCommands, mock_model: Any, tmp_path: Path
) -> None:
    model = "responses_api_models/openai_model/configs/openai_model.yaml"
    command = (
        "ng_collect_rollouts",
        f"+config_paths=[{ENVIRONMENT}/configs/example_session_state_mgmt.yaml,{model}]",
        f"+input_jsonl_fpath={ENVIRONMENT}/data/example.jsonl",
        *("+output_jsonl_fpath=out.jsonl", "+num_repeats=3", "+executor=ray", "+workers=1", "+steps=true"),
        *(f"+policy_base_url={mock_model.base_url}", "+policy_api_key=none", "+policy_model_name=mock"),
        *("+num_samples_in_parallel=2", "+resume_from_cache=true"),
    )
    options: dict[str, Any] = {"folder": tmp_path, "environment": {**os.environ, "RAY_ADDRESS": cluster.address}}
    output = tmp_path / "out.jsonl"
    mock_model.set(latency="200")
    with commands.start(*command, **options) as collector:
        while not (output.exists() and output.read_bytes().count(b"\n") >= 2):
            assert collector.is_running, collector.err
            time.sleep(0.05)
        collector.kill()
    saved = output.read_bytes().count(b"\n")
    assert 2 <= saved < 3 * len(TASKS)
    mock_model.set(latency="0")
    done = commands.run(*command, **options)
    assert done.code == 0, done.err
    assert done.out.startswith(f"Key metrics for {AGENT}:\n")
    keys = [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in map(json.loads, output.open())]
    assert sorted(keys) == [(task, repeat) for task in range(len(TASKS)) for repeat in range(3)]
    assert not (tmp_path / "out_status.json").exists()
    records = list(read_steps(tmp_path / "out_steps.jsonl"))
    assert len({(record.task, record.rollout) for record in records}) == len(records) == 3 * len(TASKS)
    assert all(record.steps[0].kind == "seed" and record.steps[-1].kind == "verify" for record in records)
    assert all(any(step.kind == "model" and step.tokens_out for step in record.steps) for record in records)
    assert "\ntime: " in done.err + done.out


NUMBERS = """
import nemo_gym
numbers = nemo_gym.Environment(tasks=[{"prompt": str(n), "expected": n} for n in range(4)])
numbers.setup(lambda task: {"expected": task["expected"]})
numbers.verify(lambda task, response, state: float(state["expected"] < 2))
"""


def test_an_environment_in_one_file_runs_on_the_cluster(
    cluster: Any, commands: ForkedCommands, mock_model: Any, tmp_path: Path
) -> None:
    (tmp_path / "numbers.py").write_text(NUMBERS)
    done = commands.run(
        *("ng_collect_rollouts", "numbers.py", "--model", "openai:mock", "--model-url", mock_model.base_url),
        *("--model-api-key", "none", "+executor=ray", "+workers=1", "+output_jsonl_fpath=out.jsonl"),
        folder=tmp_path,
        environment={**os.environ, "RAY_ADDRESS": cluster.address},
    )
    assert done.code == 0, done.err
    rewards = {row["expected"]: row["reward"] for row in map(json.loads, (tmp_path / "out.jsonl").open())}
    assert rewards == {0: 1.0, 1: 1.0, 2: 0.0, 3: 0.0}


async def test_a_cluster_that_is_not_there_or_out_of_reach_is_said(mock_model: Any) -> None:
    with pytest.raises(ConfigError, match="can't be outside the cluster"):
        async with ray_gyms(configuration(mock_model.base_url, "ray://head:10001"), WorkerOptions()):
            pytest.fail("that can't work")
