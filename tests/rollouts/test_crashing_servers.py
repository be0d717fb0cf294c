"""Collections whose servers are killed, by us or by a task, with real processes."""

import asyncio
import importlib.util
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from nemo_gym.api.gyms import collect_in_gym
from nemo_gym.config.parse import parse_config
from nemo_gym.errors import UnfinishedRunError
from nemo_gym.executors.handshake import Invitation
from nemo_gym.executors.placement import StartFailure
from nemo_gym.executors.processes import worker_pool
from nemo_gym.executors.remote_gyms import remote_gyms
from nemo_gym.executors.remote_worker import work_for
from nemo_gym.rollout_collection import RolloutCollectionConfig
from nemo_gym.rollouts import suspects
from nemo_gym.rollouts.options import WorkerOptions
from nemo_gym.rollouts.run import StopSwitch
from nemo_gym.rollouts.store.outcome import Completed, Failed, Outcome
from nemo_gym.rollouts.stream import stream_outcomes
from nemo_gym.rollouts.tally import Ending
from nemo_gym.servers import supervision
from nemo_gym.servers.gym import host_gym
from nemo_gym.servers.server_client import GymClient
from tests.executors.stand_in import StandInCluster

KILLS = Path(__file__).parents[2] / "benchmarks_perf" / "soak_kills.py"
APP = """
import os, signal
from pathlib import Path
from nemo_gym.base_resources_server import BaseVerifyRequest, BaseVerifyResponse, SimpleResourcesServer


class Fragile(SimpleResourcesServer):
    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        if "kill" in str(body.responses_create_params.input) or Path("always").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return BaseVerifyResponse(**body.model_dump(), reward=1.0)


if __name__ == "__main__":
    Fragile.run_webserver()
"""
CONFIG = """
fragile:
  resources_servers:
    fragile:
      entrypoint: app.py
      domain: other
fragile_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {type: resources_servers, name: fragile}
      model_server: {type: responses_api_models, name: policy_model}
"""
Configure = Callable[..., DictConfig]


@pytest.fixture
def configure(tmp_path: Path, mock_model: Any, monkeypatch: pytest.MonkeyPatch) -> Configure:
    """Builds the configuration of a Gym with a server that some tasks kill."""
    folder = tmp_path / "resources_servers" / "fragile"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(APP)
    (folder / "requirements.txt").touch()
    (tmp_path / "fragile.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setattr(supervision, "LONGEST_PAUSE_S", 0.1)

    def build(*settings: str) -> DictConfig:
        model = "responses_api_models/openai_model/configs/openai_model.yaml"
        policy = [f"+policy_base_url={mock_model.base_url}", "+policy_api_key=none", "+policy_model_name=mock"]
        isolated = [f"++fragile.resources_servers.fragile.{each}" for each in settings or ("isolation=process",)]
        return parse_config([f"+config_paths=[fragile.yaml,{model}]", *policy, *isolated]).config

    return build


def rows(number: int, *bad: int) -> list[dict[str, Any]]:
    return [{"responses_create_params": {"input": "kill" if n in bad else f"task {n}"}} for n in range(number)]


async def outcomes_of(tasks: list[dict[str, Any]], client: Any) -> dict[int, Outcome]:
    found: dict[int, Outcome] = {}
    async with asyncio.timeout(180):
        async for outcome in stream_outcomes(tasks, client, agent="fragile_agent", limit=4, max_attempts=1):
            assert outcome.planned.key.task not in found, "each ends once"
            found[outcome.planned.key.task] = outcome
    return found


def check(found: dict[int, Outcome], number: int, *bad: int) -> None:
    assert sorted(found) == list(range(number))
    assert {task for task, outcome in found.items() if isinstance(outcome, Completed)} == set(range(number)) - set(bad)
    for task in bad:
        outcome = found[task]
        assert isinstance(outcome, Failed)
        assert outcome.failure.kind == "server_crashed"
        assert outcome.is_given_up
        assert "killed by SIGKILL" in outcome.failure.message


async def test_a_task_that_kills_its_server_fails_alone(configure: Configure) -> None:
    async with host_gym(configure()) as gym:
        check(await outcomes_of(rows(12, 2), gym.client), 12, 2)


async def test_a_task_that_kills_a_worker_of_its_server_fails_alone(configure: Configure) -> None:
    async with host_gym(configure("num_workers=2")) as gym:
        check(await outcomes_of(rows(8, 2), gym.client), 8, 2)


async def test_a_task_that_kills_a_server_of_ng_run_fails_alone(configure: Configure) -> None:
    async with host_gym(configure(), head=True) as gym:
        client = await asyncio.to_thread(GymClient.load_from_head, gym.client.head_server_config)
        check(await outcomes_of(rows(8, 2), client), 8, 2)


async def test_a_task_that_kills_the_server_of_a_worker_process_fails_alone(configure: Configure) -> None:
    async with worker_pool(configure(), 2) as pool:
        check(await outcomes_of(rows(8, 2), pool), 8, 2)


async def test_a_task_that_kills_its_worker_process_fails_alone(configure: Configure) -> None:
    async with worker_pool(configure("isolation=inline"), 2) as pool:
        check(await outcomes_of(rows(8, 2), pool), 8, 2)


async def test_a_task_that_kills_a_server_on_a_cluster_fails_alone(
    configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which workers add

    def work(invitation: Invitation, node: str) -> Awaitable[StartFailure | None]:
        return work_for(invitation, {"node_id": node, "node_ip": "127.0.0.1"})

    async with remote_gyms(StandInCluster(work), configure(), WorkerOptions(executor="ray")) as gyms:
        check(await outcomes_of(rows(8, 2), gyms), 8, 2)


def collection(tmp_path: Path, **options: Any) -> RolloutCollectionConfig:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows(12)))
    return RolloutCollectionConfig(
        agent_name="fragile_agent",
        input_jsonl_fpath=str(tasks),
        output_jsonl_fpath=str(tmp_path / "out.jsonl"),
        num_samples_in_parallel=4,
        trackers=[],
        **options,
    )


async def test_a_server_that_does_not_stay_up_ends_the_run_which_can_be_resumed(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    always = tmp_path / "resources_servers" / "fragile" / "always"
    always.touch()
    monkeypatch.setattr(suspects, "FRUITLESS_CRASHES", 4)
    async with asyncio.timeout(180):
        ended = await collect_in_gym(configure(), collection(tmp_path), stop=StopSwitch(drain_s=1))
    assert (ended.exit_code, ended.tally.ending, ended.tally.completed) == (3, Ending.OUTAGE, 0)
    assert ended.tally.reason.startswith("4 crashes in a row without a completed rollout: ")
    assert "fragile ended (killed by SIGKILL)" in ended.tally.reason
    always.unlink()
    async with asyncio.timeout(180):
        resumed = await collect_in_gym(
            configure(), collection(tmp_path, resume_from_cache=True), stop=StopSwitch(drain_s=1)
        )
    assert (resumed.exit_code, resumed.tally.completed) == (0, 12)


async def test_a_server_that_can_not_be_started_again_ends_the_run_with_its_last_lines(
    configure: Configure, tmp_path: Path, mock_model: Any
) -> None:
    mock_model.set(latency="100")
    parameters = collection(tmp_path, num_repeats=100)

    async def break_it() -> None:
        await until_saved(tmp_path, 5)
        (tmp_path / "resources_servers" / "fragile" / "app.py").write_text("raise ImportError('no such thing')")
        os.kill(servers_below()[0], signal.SIGKILL)

    breaking = asyncio.create_task(break_it())
    with pytest.raises(UnfinishedRunError, match=r"(?s)no such thing.*could not be started again, 5 times") as ended:
        async with asyncio.timeout(180):
            await collect_in_gym(configure(), parameters, stop=StopSwitch(drain_s=1))
    await breaking
    assert "+resume_from_cache=true" in (ended.value.hint or "")


async def until_saved(folder: Path, number: int) -> None:
    output = folder / "out.jsonl"
    while not output.exists() or output.read_bytes().count(b"\n") < number:  # noqa: ASYNC110 - seen as by others
        await asyncio.sleep(0.02)


async def test_a_killed_server_uses_up_no_attempt(configure: Configure, tmp_path: Path, mock_model: Any) -> None:
    mock_model.set(latency="100")

    async def kill_twice() -> None:
        for saved in (20, 60):
            await until_saved(tmp_path, saved)
            os.kill(servers_below()[0], signal.SIGKILL)

    async with asyncio.timeout(180):
        killing = asyncio.create_task(kill_twice())
        ended = await collect_in_gym(configure(), collection(tmp_path, num_repeats=10), stop=StopSwitch(drain_s=1))
        await killing
    assert (ended.exit_code, ended.tally.completed) == (0, 120)
    failures = [json.loads(line) for line in (tmp_path / "out_failures.jsonl").read_text().splitlines()]
    assert {(each["_ng_failure_class"], each["_ng_owed"]) for each in failures} == {("server_crashed", True)}
    saved = Counter(json.loads(line)["_ng_task_index"] for line in (tmp_path / "out.jsonl").read_text().splitlines())
    assert saved == dict.fromkeys(range(12), 10)


def servers_below() -> list[int]:
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in children if "servers/fragile" in Path(f"/proc/{pid}/cmdline").read_text()]


def test_random_kills_lose_nothing_and_leave_nothing(tmp_path: Path) -> None:
    """The soak of ``benchmarks_perf/soak_kills.py`` in small."""
    sys.path.insert(0, str(KILLS.parent))
    spec = importlib.util.spec_from_file_location("soak_kills", KILLS)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["soak_kills"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.Kills(rollouts=60, kills=2, parallel=8, places=("workers",)).run(tmp_path)
    assert module.is_good(found), found
