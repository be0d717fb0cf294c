#!/usr/bin/env python3
"""What recording steps adds to a rollout, in instructions: user mode, counted by valgrind.

    python benchmarks_perf/bench_steps.py [--n 200] [--profile FOLDER]

A whole collection hosts the servers in its process, as in ``bench_instructions``, but the model's completions come from
memory and rollouts run one at a time. Counting begins when the collection has warmed up and ends before it stops.
Without sockets, timers and start-up, the figures repeat to a fraction of a per cent, so small differences can be seen.
What they are small against is the cost of a whole rollout: see ``bench_instructions``. It needs gcc and valgrind's
headers.
"""

import argparse
import asyncio
import ctypes
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
from nemo_gym.servers import event_loop
from nemo_gym.servers.gym import host_gym
from nemo_gym.servers.models.endpoint import Upstream
from nemo_gym.steps import facts

TOTAL = re.compile(r"^(?:totals|summary): (\d+)", re.MULTILINE)
WARM_UP = 60  # rollouts; the collector has started to run at full speed, and whatever is cached is cached
SWITCH = """
#include <valgrind/callgrind.h>
void start(void) { CALLGRIND_START_INSTRUMENTATION; }
void dump(void) { CALLGRIND_DUMP_STATS; }
"""


def collect(n: int, folder: Path, *, steps: bool) -> None:
    """Collect in this process until n rollouts have been counted."""
    run.TICK_S = run.SYNC_INTERVAL_S = event_loop.HEARTBEAT_S = facts.BEAT_S = 3600
    event_loop.LagWatch.watch = lambda _: None
    uvicorn.Server.main_loop = lambda _: asyncio.sleep(3600)  # it would look ten times a second whether to stop
    control = rollout_collection._control
    rollout_collection._control = lambda *given: replace(control(*given), stream=None)
    completions = cycle([R_CALL.partition(b"\r\n\r\n")[2], R_TEXT.partition(b"\r\n\r\n")[2]])
    switch = ctypes.CDLL(str(folder / "switch.so"))
    calls = 0

    async def post(*_: Any) -> bytes:
        nonlocal calls
        calls += 1
        if calls == 2 * WARM_UP:
            switch.start()
        elif calls == 2 * (WARM_UP + n):
            switch.dump()
            os._exit(0)  # the servers would not stop
        return bytes(bytearray(next(completions)))  # a new object, like what arrives from a socket

    Upstream.post = post
    wanted = RolloutCollectionConfig(
        agent_name=AGENT,
        input_jsonl_fpath=str(many_tasks(folder, n + 2 * WARM_UP)),
        output_jsonl_fpath=str(folder / f"{steps}.jsonl"),
        num_samples_in_parallel=1,
        disable_aggregation=True,
        overwrite=True,
        steps=steps,
    )

    async def work() -> None:
        config = parse_config([f"+config_paths=[{CONFIGS}]", *policy("http://127.0.0.1:9")]).config
        async with host_gym(config) as gym:
            await RolloutCollectionHelper().collect(wanted, client=gym.client)

    asyncio.run(work())
    raise SystemExit("the collection ended before its rollouts were counted")


def instructions(n: int, folder: Path, *, steps: bool, profile: Path | None) -> float:
    """Instructions for a rollout."""
    counts = (profile or folder) / f"steps_{'on' if steps else 'off'}.callgrind"
    valgrind = ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={counts}"]
    command = [*valgrind, sys.executable, __file__, "--n", str(n), "--folder", str(folder), *(["--steps"] * steps)]
    environment = {"PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    ended = subprocess.run(command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True)
    found = TOTAL.search(counts.with_name(f"{counts.name}.1").read_text()) if ended.returncode == 0 else None
    if found is None:
        raise SystemExit(f"valgrind counted nothing\n{ended.stderr}")
    return int(found[1]) / n


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=200, help="rollouts to count")
    parser.add_argument("--profile", type=Path, help="folder for callgrind's counts")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--steps", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.folder:
        collect(args.n, args.folder, steps=args.steps)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compiler = ["gcc", "-x", "c", "-shared", "-fPIC", "-o", str(folder / "switch.so"), "-"]
        subprocess.run(compiler, check=True, input=SWITCH, text=True)
        off, on = (instructions(args.n, folder, steps=steps, profile=args.profile) for steps in (False, True))
        print(f"off {off / 1000:8.1f} k instructions a rollout")
        print(f"on  {on / 1000:8.1f} k instructions a rollout  {(on - off) / 1000:+.1f} k")


if __name__ == "__main__":
    main()
