"""Programs end with everything that they started, whatever ends them."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from nemo_gym.programs.keeper import Ended, Start, private_memory, processes_of
from nemo_gym.programs.running import MARK, run_program

FAR = 60.0


def start(folder: Path, *command: str, timeout_s: float = FAR, memory_mb: int | None = None) -> Start:
    environment = {"PATH": os.environ["PATH"], "TEST_MARK": folder.name}
    return Start([*command], environment, str(folder), timeout_s, 1.0, memory_mb, str(folder))


async def run(folder: Path, *command: str, timeout_s: float = FAR, memory_mb: int | None = None) -> Ended:
    scratch = folder / "scratch"
    scratch.mkdir()
    return await run_program(start(folder, *command, timeout_s=timeout_s, memory_mb=memory_mb), scratch, lambda _: None)


def running(folder: Path) -> list[int]:
    """The processes that were started for a test, whoever their parent is now."""
    return [pid for pid in processes_of("TEST_MARK", folder.name) if private_memory(pid)]


def wait_until(holds: Callable[[], bool], *, limit_s: float = FAR) -> None:
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


async def test_the_output_and_the_exit_code_are_returned(tmp_path: Path) -> None:
    ended = await run(tmp_path, "sh", "-c", "read line || echo closed; echo problem >&2; exit 3")
    assert (ended.exit_code, ended.limit, ended.stdout, ended.stderr) == (3, None, "closed\n", "problem\n")
    assert ended.all_ended
    assert ended.peak_bytes > 0


async def test_descendants_in_other_sessions_end_with_the_program(tmp_path: Path) -> None:
    hidden = "trap '' TERM HUP; sleep 600 & wait"
    ended = await run(tmp_path, "sh", "-c", f'setsid sh -c "{hidden}" & (setsid sleep 601 &) ; sleep 0.2')
    assert (ended.exit_code, ended.all_ended) == (0, True)
    assert running(tmp_path) == []


async def test_a_program_may_end_orderly_when_its_time_is_over(tmp_path: Path) -> None:
    command = "trap 'echo saved; exit 0' TERM; while :; do sleep 0.05; done"
    ended = await run(tmp_path, "bash", "-c", command, timeout_s=1)
    assert (ended.limit, ended.exit_code) == ("time", 0)
    assert ended.stdout == "saved\n"


async def test_a_program_that_ignores_the_request_is_killed(tmp_path: Path) -> None:
    ended = await run(tmp_path, "sh", "-c", "trap '' TERM; sleep 600; sleep 600", timeout_s=0.5)
    assert (ended.limit, ended.exit_code) == ("time", -signal.SIGKILL)
    assert running(tmp_path) == []


async def test_the_memory_of_all_processes_counts(tmp_path: Path) -> None:
    hog = f"{sys.executable} -c 'import time; held = bytearray(60 << 20); time.sleep(600)'"
    ended = await run(tmp_path, "sh", "-c", f"{hog} & {hog} & {hog} & wait", memory_mb=120)
    assert ended.limit == "memory"
    assert ended.peak_bytes > 120 << 20
    assert running(tmp_path) == []


async def test_a_program_that_does_not_exist_says_so(tmp_path: Path) -> None:
    ended = await run(tmp_path, "no-such-program")
    assert ended.exit_code is None
    assert "no-such-program" in ended.error


async def test_of_a_long_output_both_ends_are_kept(tmp_path: Path) -> None:
    ended = await run(tmp_path, "sh", "-c", "echo first; yes | head -c 5000000; echo last")
    assert ended.stdout.startswith("first\n")
    assert ended.stdout.endswith("last\n")
    assert "bytes left out" in ended.stdout
    assert len(ended.stdout) < 1_100_000


async def test_cancelling_ends_the_program(tmp_path: Path) -> None:
    task = asyncio.create_task(run(tmp_path, "sh", "-c", "setsid sleep 600 & sleep 600"))
    await asyncio.to_thread(wait_until, lambda: len(running(tmp_path)) >= 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert running(tmp_path) == []


async def test_a_killed_keeper_leaves_nothing(tmp_path: Path) -> None:
    task = asyncio.create_task(run(tmp_path, "sh", "-c", "setsid sleep 600 & sleep 600"))
    await asyncio.to_thread(wait_until, lambda: len(running(tmp_path)) >= 3)
    parents = {_parent(pid) for pid in running(tmp_path)} - set(running(tmp_path))
    for pid in parents:
        os.kill(pid, signal.SIGKILL)
    ended = await task
    assert (ended.limit, ended.exit_code) == ("stopped", None)
    assert "SIGKILL" in ended.error
    assert running(tmp_path) == []


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


COLLECTOR = """
import asyncio, json, sys
from pathlib import Path
from nemo_gym.programs.keeper import Start
from nemo_gym.programs.running import run_program
asyncio.run(run_program(Start(**json.loads(sys.argv[1])), Path(sys.argv[2]), lambda used: None))
"""


def test_a_killed_collector_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    attempt = tmp_path / "attempt"
    (attempt / "scratch").mkdir(parents=True)
    command = start(attempt, "sh", "-c", "setsid sleep 600 & echo $$ > started; sleep 600")
    arguments = [json.dumps(asdict(command)), str(attempt / "scratch")]
    collector = subprocess.Popen([sys.executable, "-c", COLLECTOR, *arguments])
    wait_until((attempt / "started").exists)
    collector.kill()
    collector.wait()
    wait_until(lambda: not attempt.exists())
    wait_until(lambda: not running(attempt))


async def test_what_runs_knows_nothing_of_the_collectors_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_COLLECTOR", "hunter2")
    env = shutil.which("env")
    assert env is not None
    ended = await run(tmp_path, env)
    names = {line.partition("=")[0] for line in ended.stdout.splitlines()}
    assert names == {"PATH", "TEST_MARK", MARK}
    assert not (tmp_path / "scratch" / "start.json").exists()  # it may hold keys
