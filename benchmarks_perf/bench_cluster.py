#!/usr/bin/env python3
"""What many Gyms cost the collector: stand-in workers that reply at once, and Gyms on Ray beside local workers.

    python benchmarks_perf/bench_cluster.py [--only driver workers ray] [--nodes 200] [--rollouts 50000] [--rounds 3]

``driver``  stand-in workers in another process, over real sockets, with plan and store as in a real collection: what a
            rollout costs the collector, and how many it gets through.
``workers`` CPU time of a rollout in one process and in two worker processes, without start-up: by how much two cores
            would be faster than one if nobody else, not even the mock, used them.
``ray``     CPU time of a rollout with Gyms in Ray's actors and in worker processes, collector and Gyms together, in
            turn (needs the extra ``ray``). Ray's own daemons are shown beside it.
"""

import argparse
import asyncio
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench import AGENT, CONFIGS, many_tasks, policy
from bench_scale import line, mock
from omegaconf import OmegaConf
from processes import ROOT, cpu_of, raise_open_files_limit

from nemo_gym.config.parse import parse_config
from nemo_gym.executors.frames import Connection, Frame, next_frame
from nemo_gym.executors.handshake import Invitation
from nemo_gym.executors.placement import ClusterNode, Place
from nemo_gym.executors.processes import worker_pool
from nemo_gym.executors.remote_gyms import remote_gyms
from nemo_gym.executors.remote_worker import join
from nemo_gym.executors.worker import READY
from nemo_gym.rollouts.attempt import AgentAttempt
from nemo_gym.rollouts.concurrency import FixedLimit
from nemo_gym.rollouts.dispatch import Attempt
from nemo_gym.rollouts.options import WorkerOptions
from nemo_gym.rollouts.plan import PlanSource, PlanSpec
from nemo_gym.rollouts.run import CollectionRun, RunControl, run_collection
from nemo_gym.servers.event_loop import new_event_loop
from nemo_gym.servers.gym import host_gym


async def collect(attempt: Attempt, tasks: Path, output: Path, in_flight: int) -> None:
    """A real collection, with its plan and its files, but without metrics."""
    source = PlanSource(str(tasks), None, PlanSpec(agent=AGENT))
    run = CollectionRun(output=output, rows=source.rows, request=source.request)
    await run_collection(run, attempt, RunControl(limit=FixedLimit(in_flight)))


# ---- stand-in workers ------------------------------------------------------------------------------------------------
async def stand_in() -> None:
    """Connect as every worker that is named on standard input, and reply at once to all that comes."""
    host, port, secret = sys.argv[2:]
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    tasks = []
    while number := await reader.readline():
        invitation = Invitation(host, int(port), bytes.fromhex(secret), int(number))
        tasks.append(asyncio.create_task(reply_to_all(invitation)))
    await asyncio.gather(*tasks)


async def reply_to_all(invitation: Invitation) -> None:
    frames: asyncio.Queue[Frame] = asyncio.Queue()
    connection: Connection = await join(invitation, frames, {"number": invitation.number})

    def reply(frame: Frame) -> None:
        if "number" in frame.head:
            head = {"number": frame.head["number"], "kind": "Completed", "seconds": 0.1, "reward": 1.0}
            connection.send(Frame(head, frame.body[:-1] + b',"reward":1.0}').encode())

    await next_frame(frames, connection)
    connection.on_frame = reply
    connection.send(Frame(READY).encode())
    await connection.closed


class StandInNodes:
    """Nodes whose workers are all in one other process."""

    host = "127.0.0.1"

    def __init__(self, nodes: int) -> None:
        self._nodes = [ClusterNode(str(number), str(number), {"CPU": 1.0}) for number in range(nodes)]
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()

    async def nodes(self) -> list[ClusterNode]:
        return self._nodes

    async def start(self, place: Place, invitation: Invitation) -> None:  # noqa: ARG002 - it is all one process
        async with self._starting:
            if self._process is None:
                arguments = ("stand-in", invitation.host, str(invitation.port), invitation.secret.hex())
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, __file__, *arguments), stdin=asyncio.subprocess.PIPE
                )
        assert self._process.stdin is not None
        self._process.stdin.write(f"{invitation.number}\n".encode())

    async def ended(self, started: None) -> None:  # noqa: ARG002
        await asyncio.Event().wait()

    async def end(self, started: None) -> None:  # noqa: ARG002
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()


async def driver(folder: Path, nodes: int, rollouts: int) -> list[str]:
    """What a rollout costs the collector."""
    tasks = many_tasks(folder, rollouts)
    config = OmegaConf.create({})
    async with remote_gyms(StandInNodes(nodes), config, WorkerOptions(), window=64) as gyms:
        while len(gyms) < nodes:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await collect(gyms, many_tasks(folder, 1000), folder / "warm.jsonl", 64)
        wall, cpu = time.perf_counter(), time.process_time()
        await collect(gyms, tasks, folder / "out.jsonl", 64 * nodes)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert sum(1 for _ in (folder / "out.jsonl").open("rb")) == rollouts
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    what = f"{rollouts:,} rollouts, {nodes} stand-in nodes x 64"
    return [
        line(f"{what}: collector", f"{1000 * cpu / rollouts:.3f} ms CPU", "a rollout, planning included (at most 0.2)"),
        line(f"{what}: rate", f"{rollouts / wall:,.0f} /s", "(at least 5,000)"),
        line(f"{what}: rate by CPU", f"{rollouts / cpu:,.0f} /s", "if nobody else used the machine"),
        line(f"{what}: peak memory", f"{peak:,.0f} MB", ""),
    ]


# ---- Ray beside worker processes -------------------------------------------------------------------------------------
@asynccontextmanager
async def local(config: Any) -> AsyncIterator[tuple[Attempt, list[int]]]:
    async with worker_pool(config, 2) as pool:
        yield pool, [worker.process.pid for worker in pool]  # type: ignore[attr-defined]


@asynccontextmanager
async def one_process(config: Any) -> AsyncIterator[tuple[Attempt, list[int]]]:
    async with host_gym(config) as gym:
        yield AgentAttempt(gym.client), []


@asynccontextmanager
async def on_ray(config: Any) -> AsyncIterator[tuple[Attempt, list[int]]]:
    from nemo_gym.executors.ray_cluster import ray_gyms  # noqa: PLC0415 - for those who have it

    async with ray_gyms(config, WorkerOptions(workers=2)) as gyms:
        while len(gyms) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        yield gyms, [int(worker.name.rpartition(" ")[2]) for worker in gyms]


def daemons() -> dict[int, float]:
    """CPU seconds of Ray's own processes."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
            if b"/ray/" in command and b"GymActor" not in command:
                found[int(entry.name)] = cpu_of(int(entry.name))
        except OSError:
            continue
    return found


async def workers(folder: Path, rollouts: int, rounds: int) -> list[str]:
    """CPU time of a rollout in one process and in two."""
    tasks, warm = many_tasks(folder, rollouts), many_tasks(folder, 200)
    costs: dict[str, list[float]] = {"one process": [], "two workers": []}
    shares: list[float] = []  # of the collector
    with mock(latency=20) as model:
        config = parse_config([f"+config_paths=[{CONFIGS}]", *policy(model.base_url)]).config
        for _ in range(rounds):
            for name, open_pool in (("one process", one_process), ("two workers", local)):
                async with open_pool(config) as (attempt, pids):
                    await collect(attempt, warm, folder / "warm.jsonl", 64)
                    own, theirs = time.process_time(), sum(map(cpu_of, pids))
                    await collect(attempt, tasks, folder / "out.jsonl", 128)
                    own, theirs = time.process_time() - own, sum(map(cpu_of, pids)) - theirs
                    costs[name].append(1000 * (own + theirs) / rollouts)
                    shares += [1000 * own / rollouts] if pids else []
    lines = [
        line(f"{rollouts:,} rollouts, {name}", f"{statistics.median(figures):.2f} ms CPU", "a rollout")
        for name, figures in costs.items()
    ]
    faster = statistics.median(2 * one / two for one, two in zip(*costs.values(), strict=True))
    lines.append(line("of that, the collector of two workers", f"{statistics.median(shares):.2f} ms CPU", "a rollout"))
    return [*lines, line("two cores over one, by CPU time", f"{faster:.2f} x", "(at least 1.6)")]


async def ray(folder: Path, rollouts: int, rounds: int) -> list[str]:
    """CPU time of a rollout, collector and Gyms together."""
    tasks, warm = many_tasks(folder, rollouts), many_tasks(folder, 200)
    costs: dict[str, list[float]] = {"local workers": [], "Ray": []}
    beside: list[float] = []
    with mock(latency=20) as model:
        config = parse_config([f"+config_paths=[{CONFIGS}]", *policy(model.base_url)]).config
        for _ in range(rounds):
            for name, open_pool in (("local workers", local), ("Ray", on_ray)):
                async with open_pool(config) as (attempt, pids):
                    await collect(attempt, warm, folder / "warm.jsonl", 64)
                    before, before_ray = time.process_time() + sum(map(cpu_of, pids)), daemons()
                    await collect(attempt, tasks, folder / "out.jsonl", 128)
                    cost = time.process_time() + sum(map(cpu_of, pids)) - before
                    costs[name].append(1000 * cost / rollouts)
                    if name == "Ray":
                        after = {pid: cpu for pid, cpu in daemons().items() if pid not in pids}
                        beside.append(sum(cpu - before_ray.get(pid, 0.0) for pid, cpu in after.items()))
    middle = {name: statistics.median(figures) for name, figures in costs.items()}
    lines = [line(f"{rollouts:,} rollouts, {name}", f"{ms:.2f} ms CPU", "a rollout") for name, ms in middle.items()]
    ratio = statistics.median(there / here for here, there in zip(*costs.values(), strict=True))
    lines.append(line("Ray over local workers", f"{ratio:.2f} x", "(at most 1.15)"))
    return [*lines, line("Ray's daemons meanwhile", f"{statistics.median(beside):.1f} s CPU", "")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=["driver", "workers", "ray"])
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--rollouts", type=int, default=50_000, help="of the stand-in workers")
    parser.add_argument("--real", type=int, default=3000, help="rollouts with real Gyms")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    raise_open_files_limit()
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts: dict[str, Callable[[], Awaitable[list[str]]]] = {
            "driver": lambda: driver(folder, args.nodes, args.rollouts),
            "workers": lambda: workers(folder, args.real, args.rounds),
            "ray": lambda: ray(folder, args.real, args.rounds),
        }
        for part in args.only or parts:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                print("\n".join(runner.run(parts[part]())), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["stand-in"]:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(stand_in())
    else:
        main()
