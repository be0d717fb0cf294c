"""Runs a collector again and again in processes that are killed; started by test_crash.py.

    crash_host.py URL TASKS OUTPUT ROUNDS SEED

Each round forks a collector and kills it with SIGKILL: after some milliseconds, after some rollouts, or in the middle
of a write, at a byte chosen by chance. Whoever started this process looks at the files after every kill and then says
how to go on. The last round is left alone.
"""

import asyncio
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp

from nemo_gym.rollouts.attempt import AgentAttempt
from nemo_gym.rollouts.concurrency import FixedLimit
from nemo_gym.rollouts.plan import PlanSource, PlanSpec
from nemo_gym.rollouts.run import RunControl, run_owed
from nemo_gym.rollouts.store.history import AttemptPolicy
from nemo_gym.rollouts.store.journal import Write
from nemo_gym.rollouts.store.rollout_store import open_plan, open_store


class Client:
    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url, self.session = url, session

    async def post(self, *, server_name: str, url_path: str, json: Any) -> aiohttp.ClientResponse:
        return await self.session.post(f"{self.url}/{server_name}{url_path}", json=json)


def deadly_write(after_bytes: int) -> Write:
    """Writes so many bytes and not one more, then dies without a word."""
    left = after_bytes

    def write(descriptor: int, data: bytes) -> int:
        nonlocal left
        written = os.write(descriptor, data[: max(left, 0)]) if left > 0 else 0
        left -= written
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return written

    return write


async def run(url: str, tasks: str, output: Path, write: Write) -> None:
    source = PlanSource(tasks, None, PlanSpec(agent="alpha", repeats=2))
    async with aiohttp.ClientSession() as session:
        with open_store(output, write=write) as store:
            plan = open_plan(store, source.rows, source.request, resume=True, policy=AttemptPolicy(1000))
            control = RunControl(limit=FixedLimit(16), pause=lambda *_: 0.001)
            await run_owed(plan, store, AgentAttempt(Client(url, session)), control)


def wait_for(output: Path, chance: random.Random) -> None:
    """Wait a moment, and then perhaps until the output has grown by some bytes."""
    time.sleep(chance.uniform(0.0, 0.02))
    size = output.stat().st_size if output.exists() else 0
    enough = size + chance.choice((0, chance.randrange(1, 20_000)))
    while enough > size:
        time.sleep(0.0005)
        size = output.stat().st_size if output.exists() else 0


def one_round(arguments: list[str], chance: random.Random, *, last: bool) -> str:
    url, tasks, output = arguments
    torn = chance.random() < 0.5
    write = deadly_write(chance.randrange(1, 20_000)) if torn and not last else os.write
    child = os.fork()
    if child == 0:
        asyncio.run(run(url, tasks, Path(output), write))
        os._exit(0)
    if not torn and not last:
        wait_for(Path(output), chance)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return "killed" if os.WIFSIGNALED(status) else "finished"


def main() -> None:
    *arguments, rounds, seed = sys.argv[1:]
    chance = random.Random(seed)
    for number in range(int(rounds)):
        ending = one_round(arguments, chance, last=number == int(rounds) - 1)
        sys.stdout.write(f"{ending}\n")
        sys.stdout.flush()
        sys.stdin.readline()  # until the files were looked at


if __name__ == "__main__":
    main()
