"""Kill the collector at any instant: what is saved is right, and what is not saved is owed."""

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from aiohttp import web

from nemo_gym.rollouts.keyed import key_of
from nemo_gym.rollouts.store.files import RunFiles
from nemo_gym.rollouts.store.repair import read_lines

HOST = Path(__file__).parent / "crash_host.py"
ROUNDS = 40
TASKS, REPEATS = 500, 2


def check_what_is_there(output: Path) -> None:
    """After a kill: whole lines of planned rollouts, none twice; at most the last line is torn."""
    if not output.exists():
        return
    lines = [line.text for line in read_lines(output)]
    whole = [line for line in lines if line.endswith(b"\n")]
    assert len(lines) - len(whole) <= 1
    keys = Counter(key_of(line) for line in whole)
    assert None not in keys
    assert all(count == 1 for count in keys.values())
    for line in whole:
        record = json.loads(line)
        assert record["echo"] == [record["_ng_task_index"], record["_ng_rollout_index"]]


async def test_whenever_it_is_killed_the_next_run_completes_the_plan_exactly(
    agents_with: Callable[..., AbstractAsyncContextManager[Any]], tasks_file: Callable[..., Path], tmp_path: Path
) -> None:
    chance = random.Random(7)

    async def answer(row: dict[str, Any], _: int) -> Any:
        await asyncio.sleep(chance.uniform(0.001, 0.01))
        if chance.random() < 0.1:
            return web.Response(status=503)
        key = [row["_ng_task_index"], row["_ng_rollout_index"]]
        return {"reward": 1.0, "echo": key, "text": "x" * chance.randrange(2000)}

    output = tmp_path / "out.jsonl"
    async with agents_with(answer) as agents:
        host = await asyncio.create_subprocess_exec(
            *(sys.executable, str(HOST), agents.url, str(tasks_file(TASKS)), str(output), str(ROUNDS), "7"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert host.stdin is not None
        assert host.stdout is not None
        endings = []
        for _ in range(ROUNDS):
            endings.append(await host.stdout.readline())
            check_what_is_there(output)
            host.stdin.write(b"go on\n")
        assert await host.wait() == 0
    assert endings.count(b"killed\n") >= 30
    keys = sorted(key_of(line.text) or (-1, -1) for line in read_lines(output))
    assert keys == [(task, rollout) for task in range(TASKS) for rollout in range(REPEATS)]
    for failure in read_lines(RunFiles.of(output).failures):
        assert json.loads(failure.text)["_ng_failure_class"] == "connection"
    sent = Counter((row["_ng_task_index"], row["_ng_rollout_index"]) for row in agents.received)
    assert len(sent) == TASKS * REPEATS
