"""The long way to break a collection on Ray: ``make ray-chaos``. Not part of the suite, because it takes minutes.

Actors, nodes and connections are killed at random, and nodes join, while a real collection writes its files. Every
planned rollout has to be there exactly once.
"""

import asyncio
import json
import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from test_ray import AGENT, ENVIRONMENT, ROOT, SMALL, cluster, configuration, until

from nemo_gym.executors.ray_cluster import ray_gyms
from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper
from nemo_gym.rollouts.options import WorkerOptions
from nemo_gym.rollouts.run import StopSwitch
from nemo_gym.servers.gym import host_gym

__all__ = ["cluster"]
pytestmark = pytest.mark.filterwarnings("ignore")
EVENTS = int(os.environ.get("CHAOS_EVENTS", "24"))
MOST_NODES = 3


class Chaos:
    """Breaks one thing after the other, and knows what it broke."""

    def __init__(self, cluster: Any, gyms: Any, seed: int) -> None:
        self.cluster = cluster
        self.gyms = gyms
        self.dice = random.Random(seed)
        self.nodes = list(cluster.worker_nodes)
        self.done: Counter[str] = Counter()
        self.costs: list[int] = []

    async def step(self) -> None:
        await until(lambda: len(self.gyms) > 0)
        kind = self.dice.choice(["actor", "actor", "connection", "connection", "node", "join"])
        victim = self.dice.choice(list(self.gyms))
        if kind == "node" and len(self.nodes) > 1:
            self.cluster.remove_node(self.nodes.pop(self.dice.randrange(len(self.nodes))), allow_graceful=False)
        elif kind == "join" and len(self.nodes) < MOST_NODES:
            self.nodes.append(self.cluster.add_node(num_cpus=1, **SMALL))
        elif kind == "connection":
            self.costs.append(victim.leases)
            victim.connection.abort()
        else:
            kind = "actor"
            self.costs.append(victim.leases)
            os.kill(int(victim.name.rpartition(" ")[2]), signal.SIGKILL)
        self.done[kind] += 1


async def test_every_rollout_is_there_once_after_dozens_of_deaths(
    cluster: Any, mock_model: Any, tmp_path: Path
) -> None:
    mock_model.set(latency="lognormal:200:0.8:2000")
    tasks = [json.loads(line) for line in (ROOT / ENVIRONMENT / "data/example.jsonl").read_text().splitlines()]
    (tmp_path / "tasks.jsonl").write_text(
        "".join(json.dumps(task | {"n": n}) + "\n" for n in range(40) for task in tasks)
    )
    settings = RolloutCollectionConfig(
        agent_name=AGENT,
        input_jsonl_fpath=str(tmp_path / "tasks.jsonl"),
        output_jsonl_fpath=str(tmp_path / "out.jsonl"),
        num_repeats=20,
        num_samples_in_parallel=32,
        disable_aggregation=True,
        overwrite=True,
    )
    config, stop = configuration(mock_model.base_url, cluster.address), StopSwitch(drain_s=30)
    async with host_gym(config) as gym, ray_gyms(config, WorkerOptions()) as gyms:
        collecting = asyncio.create_task(
            RolloutCollectionHelper().collect(settings, client=gym.client, attempt=gyms, stop=stop)
        )
        chaos = Chaos(cluster, gyms, seed=16)
        while chaos.done.total() < EVENTS:
            await asyncio.sleep(chaos.dice.uniform(0.5, 3))
            assert not collecting.done(), collecting
            await chaos.step()
        stop.press()
        summary = await collecting
    sys.stderr.write(f"broke {dict(chaos.done)}; leases of the dead: {chaos.costs}\n{summary.text()}\n")
    keys = [
        (row["_ng_task_index"], row["_ng_rollout_index"]) for row in map(json.loads, (tmp_path / "out.jsonl").open())
    ]
    assert len(keys) == len(set(keys)) == summary.tally.completed > 0
    failures = [json.loads(line) for line in (tmp_path / "out_failures.jsonl").read_text().splitlines()]
    assert {row["_ng_failure_class"] for row in failures} <= {"worker_died"}
    assert len(failures) <= 16 * chaos.done.total()

    async with host_gym(config) as gym:  # what is left runs to the end, and nothing runs twice
        again = settings.model_copy(update={"resume_from_cache": True, "limit": None})
        mock_model.set(latency="0")
        await RolloutCollectionHelper().collect(again, client=gym.client)
    keys = [
        (row["_ng_task_index"], row["_ng_rollout_index"]) for row in map(json.loads, (tmp_path / "out.jsonl").open())
    ]
    assert len(keys) == len(set(keys)) == 40 * len(tasks) * 20
