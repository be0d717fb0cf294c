"""Kill the collector at any instant: what is saved is right, and what is not saved is owed."""

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from nemo_gym.io.files import RunFiles
from nemo_gym.rollouts.store.saved_lines import key_in_line, read_lines
from tests.forked_commands import ForkedCommands

if TYPE_CHECKING:
    from conftest import MockModel

HOST = Path(__file__).parent / "crash_host.py"
ROUNDS = 40
TASKS, REPEATS = 500, 2
EXAMPLE = "resources_servers/example_single_tool_call"
CONFIGS = f"{EXAMPLE}/configs/example_single_tool_call.yaml,responses_api_models/openai_model/configs/openai_model.yaml"
PATIENCE_S = 60


def check_what_is_there(output: Path) -> None:
    """After a kill: whole lines of planned rollouts, none twice; at most the last line is torn."""
    if not output.exists():
        return
    lines = [line.text for line in read_lines(output)]
    whole = [line for line in lines if line.endswith(b"\n")]
    assert len(lines) - len(whole) <= 1
    keys = Counter(key_in_line(line) for line in whole)
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
    keys = sorted(key_in_line(line.text) or (-1, -1) for line in read_lines(output))
    assert keys == [(task, rollout) for task in range(TASKS) for rollout in range(REPEATS)]
    for failure in read_lines(RunFiles.of(output).failures):
        assert json.loads(failure.text)["_ng_failure_class"] == "connection"
    sent = Counter((row["_ng_task_index"], row["_ng_rollout_index"]) for row in agents.received)
    assert len(sent) == TASKS * REPEATS


def status_of(process: int) -> list[str]:
    """State, parent and so on, or nothing if there is no such process."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def is_running(process: int) -> bool:
    return status_of(process)[:1] not in ([], ["Z"])  # whoever inherits the dead may take a while to bury them


def children_of(process: int) -> set[int]:
    numbers = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return {number for number in numbers if status_of(number)[1:2] == [str(process)]}


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"still not: {what}"
        time.sleep(0.005)


def test_a_command_that_is_killed_takes_its_workers_with_it_and_is_resumed(
    commands: ForkedCommands, mock_model: "MockModel", tmp_path: Path
) -> None:
    output, repeats = tmp_path / "out.jsonl", 20
    command = [
        *("ng_collect_rollouts", f"+config_paths=[{CONFIGS}]", "+resume_from_cache=true"),
        *(f"+policy_base_url={mock_model.base_url}", "+policy_api_key=none", "+policy_model_name=mock"),
        *("+agent_name=example_single_tool_call_simple_agent", f"+input_jsonl_fpath={EXAMPLE}/data/example.jsonl"),
        *(f"+output_jsonl_fpath={output}", f"+num_repeats={repeats}", "+num_samples_in_parallel=4"),
    ]
    mock_model.set(latency="20")
    with commands.start(*command, "+workers=2") as collector:
        wait_until(lambda: output.exists() and output.stat().st_size >= 50_000, "enough is saved")
        workers = children_of(collector.pid)
        collector.kill()
        assert len(workers) == 2
        wait_until(lambda: not any(map(is_running, workers)), "workers are gone")
    whole = [key_in_line(line.text) for line in read_lines(output) if line.text.endswith(b"\n")]
    assert len(whole) == len(set(whole)) < 5 * repeats
    mock_model.reset()
    resumed = commands.run(*command)
    assert resumed.code == 0, resumed.err
    keys = sorted(key_in_line(line.text) or (-1, -1) for line in read_lines(output))
    assert keys == [(task, rollout) for task in range(5) for rollout in range(repeats)]
