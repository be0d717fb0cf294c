"""Servers whose processes are killed come back at the same address, and nobody is told a wrong result meanwhile."""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter

import aiohttp
import pytest
from omegaconf import DictConfig, OmegaConf

from nemo_gym.schemas.rows import FAILURE_CLASS_HEADER
from nemo_gym.servers.crashes import Crash, CrashLog, ServerDownError
from nemo_gym.servers.gym import Gym, host_gym
from nemo_gym.servers.http.deadlines import Deadlines, attempt_deadline
from nemo_gym.servers.server_client import fetch_crashes, probe_server
from nemo_gym.servers.supervision import LONGEST_PAUSE_S, ServerCrashedError, pause_before_start

Build = Callable[..., DictConfig]
FOREIGN = """
import http.server, os, yaml


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(204)
        self.end_headers()

    do_POST = do_GET


settings = yaml.safe_load(os.environ["NEMO_GYM_CONFIG_DICT"])["far"]["resources_servers"]["toy_for_tests"]
http.server.HTTPServer((settings["host"], settings["port"]), Handler).serve_forever()
"""


@asynccontextmanager
async def limited(seconds: float = 60.0) -> AsyncIterator[None]:
    """A test that does not hang if a server never comes back."""
    async with asyncio.timeout(seconds):
        yield


async def greet(gym: Gym, server: str = "far", path: str = "/greet") -> str:
    reply = await gym.client.post(server, path, json={"name": "Ada"})
    return str((await reply.json())["text"])


def kill(gym: Gym, number: int = 0) -> int:
    victim = gym.supervisors[0].processes[number].pid
    os.kill(victim, signal.SIGKILL)
    return victim


async def test_a_killed_server_is_named_and_comes_back_at_the_same_address(
    gym_config: Build, caplog: pytest.LogCaptureFixture
) -> None:
    async with limited(), host_gym(gym_config(far={"isolation": "process"}, near={"other": "far"})) as gym:
        slow = asyncio.create_task(gym.client.post("far", "/slow"))
        await greet(gym)
        began = perf_counter()
        victim = kill(gym)
        with pytest.raises(aiohttp.ClientConnectionError):
            await slow
        assert await gym.client.crashes.expect(began, within_s=10), "its end is noticed, not looked for"
        assert "far" in gym.client.crashes.down
        assert await asyncio.gather(greet(gym), greet(gym, "near", "/ask_other")) == ["hello, Ada", "hello, Ada"]
        assert not gym.client.crashes.down
        assert gym.describe()[0].pid == gym.supervisors[0].processes[0].pid != victim
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len([text for text in warnings if text.startswith("far ended and is started again in 0.1 s: killed")]) == 1


async def test_calls_of_other_processes_wait_in_the_queue_of_the_socket(gym_config: Build) -> None:
    async with limited(), host_gym(gym_config(far={"isolation": "process"})) as gym:
        url = gym.describe()[0].url
        kill(gym)
        await asyncio.sleep(0.02)  # dead, and nobody is there to accept
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{url}/greet", json={"name": "Ada"}) as reply,
        ):
            assert await reply.json() == {"text": "hello, Ada"}


async def test_a_program_that_binds_its_address_itself_comes_back_too(gym_config: Build, project: Path) -> None:
    (project / "app.py").write_text(FOREIGN)
    async with limited(), host_gym(gym_config(far={"isolation": "process"})) as gym:
        victim = kill(gym)
        assert await gym.client.crashes.expect(0.0, within_s=10)
        assert (await gym.client.post("far", "/anything")).status == 204
        assert gym.supervisors[0].processes[0].pid != victim


async def test_a_crash_ends_the_sessions_of_a_server(gym_config: Build) -> None:
    async with limited(), host_gym(gym_config(far={"isolation": "process"})) as gym:
        before = await gym.client.post("far", "/whoami")
        again = await gym.client.post("far", "/whoami", cookies=before.cookies)
        assert json.loads(await again.read()) == json.loads(await before.read())
        kill(gym)
        assert await gym.client.crashes.expect(0.0, within_s=10)
        with pytest.raises(aiohttp.ClientResponseError) as lost:
            await gym.client.post("far", "/whoami", cookies=before.cookies)
        assert (lost.value.headers or {})[FAILURE_CLASS_HEADER] == "server_crashed"
        new = await gym.client.post("far", "/whoami")
        kept = await gym.client.post("far", "/whoami", cookies=new.cookies)
        assert json.loads(await kept.read()) == json.loads(await new.read())


async def test_a_killed_worker_is_replaced_while_the_others_serve(
    gym_config: Build, caplog: pytest.LogCaptureFixture
) -> None:
    async with limited(), host_gym(gym_config(far={"num_workers": 2})) as gym:
        cookies = (await gym.client.post("far", "/whoami")).cookies
        victim = kill(gym, 1)
        assert await gym.client.crashes.expect(0.0, within_s=10)
        assert not gym.client.crashes.down, "the other worker serves"
        for _ in range(20):  # sessions of workers are not kept in their memory
            assert (await gym.client.post("far", "/whoami", cookies=cookies)).status == 200
        while victim in (pids := {process.pid for process in gym.supervisors[0].processes}):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert len(pids) == 2
    assert "worker 2 of far ended and is started again in 0.1 s: killed by SIGKILL" in caplog.text


async def test_when_all_workers_are_killed_calls_wait_for_the_next(gym_config: Build) -> None:
    async with limited(), host_gym(gym_config(far={"num_workers": 2})) as gym:
        for number in range(2):
            kill(gym, number)
        assert await gym.client.crashes.expect(0.0, within_s=10)
        assert await greet(gym) == "hello, Ada"


def test_workers_of_a_program_started_by_hand_are_replaced_and_end_with_it(gym_config: Build, project: Path) -> None:
    config = gym_config(far={"num_workers": 2})
    environment = {**os.environ, "NEMO_GYM_CONFIG_DICT": OmegaConf.to_yaml(config), "NEMO_GYM_CONFIG_PATH": "far"}
    command = [sys.executable, str(project / "app.py")]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as program:
        try:
            first = wait_for_children(program.pid, 2)
            while probe_server(f"http://127.0.0.1:{config.far.resources_servers.toy_for_tests.port}") != "success":
                time.sleep(0.05)
            time.sleep(2.0)  # for the program to get a reply, too
            os.kill(first[0], signal.SIGKILL)
            second = wait_for_children(program.pid, 2, without=first[0])
        finally:
            program.send_signal(signal.SIGINT)
            _, errors = program.communicate(timeout=30)
    assert program.returncode == 0
    assert b"worker 1 of far ended and is started again in 0.1 s: killed by SIGKILL" in errors
    assert first[1] in second
    assert not any(Path(f"/proc/{pid}").exists() for pid in (*first, *second))


def wait_for_children(process: int, number: int, *, without: int = 0) -> list[int]:
    for _ in range(600):
        found = [
            int(pid)
            for task in Path(f"/proc/{process}/task").iterdir()
            for pid in (task / "children").read_text().split()
        ]
        if len(found) == number and without not in found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{number} children were expected, not {found}")


async def test_a_server_that_can_not_be_started_again_is_given_up_with_its_last_lines(
    gym_config: Build, project: Path
) -> None:
    async with limited(120), host_gym(gym_config(far={"isolation": "process"})) as gym:
        (project / "app.py").write_text("raise ImportError('no such thing')")
        kill(gym)
        assert await gym.client.crashes.expect(0.0, within_s=10)
        waiting = asyncio.create_task(greet(gym))
        with pytest.raises(ServerCrashedError, match=r"`far` finished unexpectedly(?s:.*)no such thing"):
            await gym.watch()
        with pytest.raises((ServerDownError, aiohttp.ClientConnectionError)):
            await waiting
        with pytest.raises(ServerDownError, match="no such thing"):
            await greet(gym)


async def test_the_head_server_tells_about_crashes(gym_config: Build) -> None:
    async with limited(), host_gym(gym_config(far={"isolation": "process"}), head=True) as gym:
        head = gym.client.head_server_config
        assert (await asyncio.to_thread(fetch_crashes, head)) == (True, [])
        kill(gym)
        crash = await gym.client.crashes.expect(0.0, within_s=10)
        assert (await asyncio.to_thread(fetch_crashes, head)) == (True, [crash])
        assert crash is not None
        assert crash[1:] == ("far", "killed by SIGKILL")
    assert fetch_crashes(head) == (False, ()), "nothing is known about a Gym that is gone"


def test_pauses_grow_up_to_a_limit() -> None:
    pauses = [pause_before_start(lives) for lives in range(1, 20)]
    assert pauses[:4] == [0.1, 0.2, 0.4, 0.8]
    assert max(pauses) == LONGEST_PAUSE_S


async def test_waiting_for_a_server_does_not_count_against_the_limit_on_an_attempt() -> None:
    log = CrashLog()
    log.note_down("far")
    asyncio.get_running_loop().call_later(0.3, log.note_up, "far")
    with Deadlines().within(0.1) as deadline:
        attempt_deadline.set(deadline)
        await log.wait_until_up("far")
        await log.wait_until_up("another")


async def test_a_crash_counts_from_the_moment_it_is_noticed() -> None:
    log, crash = CrashLog(), Crash("1", "far", "exit code 1")
    log.add(crash)
    now = perf_counter()
    assert log.latest(0.0) == crash
    assert log.latest(now) is None
    assert await log.expect(now, within_s=0.01) is None
    expecting = asyncio.create_task(log.expect(now, within_s=10))
    await asyncio.sleep(0)
    log.add(crash)
    assert await expecting == crash
