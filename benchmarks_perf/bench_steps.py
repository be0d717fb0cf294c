#!/usr/bin/env python3
"""What recording steps adds to a rollout, in instructions: user mode, counted by valgrind.

    python benchmarks_perf/bench_steps.py [--n 200]

A whole collection hosts the servers in its process, as in ``bench_instructions``, but the model's answers come from
memory and rollouts run one at a time. Without sockets and timers, the figures repeat to a fraction of a per cent, so
small differences can be seen. What they are small against is the cost of a whole rollout: see ``bench_instructions``.
"""

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import uvicorn
from bench import AGENT, CONFIGS, many_tasks, policy
from mock_model import R_CALL, R_TEXT
from processes import ROOT

from nemo_gym import rollout_collection
from nemo_gym.config.parse import parse_config
from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper
from nemo_gym.rollouts import run
from nemo_gym.servers import lag
from nemo_gym.servers.gym import host_gym
from nemo_gym.servers.models.endpoint import Upstream
from nemo_gym.steps import facts

TOTAL = re.compile(r"^summary: (\d+)", re.MULTILINE)
MODES = {"off": "steps=false", "on": "steps=true", "on, with the summary at the end": "steps=true"}


def collect(mode: str, n: int, folder: Path) -> None:
    """Collect n rollouts in this process."""
    run.TICK_S = run.SYNC_INTERVAL_S = lag.HEARTBEAT_S = facts.BEAT_S = 3600
    lag.LagWatch.watch = lambda _: None
    uvicorn.Server.main_loop = lambda _: asyncio.sleep(3600)  # it would look ten times a second whether to stop
    control = rollout_collection._control
    rollout_collection._control = lambda *given: replace(control(*given), stream=None)
    if "summary" not in mode:
        run.FEWEST_TIMED = sys.maxsize
    answers = cycle([R_CALL.partition(b"\r\n\r\n")[2], R_TEXT.partition(b"\r\n\r\n")[2]])

    async def answer(*_: Any) -> bytes:
        return bytes(bytearray(next(answers)))  # a new object, like what arrives from a socket

    Upstream.post = answer
    wanted = RolloutCollectionConfig(
        agent_name=AGENT,
        input_jsonl_fpath=str(many_tasks(folder, n)),
        output_jsonl_fpath=str(folder / f"{n}.jsonl"),
        num_samples_in_parallel=1,
        disable_aggregation=True,
        overwrite=True,
        steps=mode != "off",
    )

    async def work() -> None:
        config = parse_config([f"+config_paths=[{CONFIGS}]", *policy("http://127.0.0.1:9")]).config
        async with host_gym(config) as gym:
            await RolloutCollectionHelper().collect(wanted, client=gym.client)
            os._exit(0)  # the servers would not stop

    asyncio.run(work())


def instructions(mode: str, n: int, folder: Path) -> int:
    counts = folder / "counts"
    valgrind = ["valgrind", "-q", "--tool=cachegrind", "--cache-sim=no", f"--cachegrind-out-file={counts}"]
    command = [*valgrind, sys.executable, __file__, "--mode", mode, "--n", str(n), "--folder", str(folder)]
    environment = {"PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    subprocess.run(command, check=True, cwd=ROOT, env=environment, capture_output=True)
    found = TOTAL.search(counts.read_text())
    if found is None:
        raise SystemExit("valgrind counted nothing")
    return int(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=200, help="the difference in rollouts between two runs")
    parser.add_argument("--mode", choices=MODES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.mode:
        collect(args.mode, args.n, args.folder)
        return
    with tempfile.TemporaryDirectory() as name:
        folder, off = Path(name), 0.0
        instructions("on", 2, folder)  # whatever is compiled is compiled now
        for mode in MODES:
            few, many = (instructions(mode, count, folder) for count in (args.n, 2 * args.n))
            cost = (many - few) / args.n
            off = off or cost
            print(f"{mode:<35}{cost / 1000:8.1f} k instructions a rollout  {(cost - off) / 1000:+.1f} k", flush=True)


if __name__ == "__main__":
    main()
