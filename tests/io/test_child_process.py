"""Programs that this process starts: how they end, what is known of it, and that nothing is left behind."""

import asyncio
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_gym.io.child_process import ChildProcess, exit_text

READY = "print('ready', flush=True)\n"
FOREVER = "import time\nwhile True: time.sleep(60)\n"
IGNORING = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
WITH_CHILD = "import subprocess, sys\nprint(subprocess.Popen(['sleep', '600']).pid, flush=True)\n"


def start(code: str, lines: list[str] | None = None) -> ChildProcess:
    return ChildProcess("program", [sys.executable, "-c", code], on_line=[].append if lines is None else lines.append)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - what other processes do sets no event
            await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_its_end_is_noticed_with_the_reason_and_its_last_lines() -> None:
    lines: list[str] = []
    before = time.time()
    child = start("import sys\nfor n in range(40): print(n)\nprint('why', file=sys.stderr)\nsys.exit(7)", lines)
    assert before <= child.started <= time.time()
    assert await child.ended() == 7
    assert not child.running
    assert child.exit_reason == "exit code 7"
    assert "why" in child.last_lines
    assert len(child.last_lines) == 30
    assert len(lines) == 41


async def test_a_signal_is_named_as_the_reason() -> None:
    child = start(FOREVER)
    assert child.exit_reason == "still running"
    os.kill(child.pid, signal.SIGKILL)
    assert await child.ended() == -signal.SIGKILL
    assert child.exit_reason == "killed by SIGKILL"
    assert exit_text(-60) == "killed by signal 60"


async def test_it_is_asked_to_stop_first_and_killed_after_a_while(caplog: pytest.LogCaptureFixture) -> None:
    lines: list[str] = []
    polite, stubborn = start(FOREVER), start(IGNORING + READY + FOREVER, lines)
    await until(lambda: lines)
    assert await polite.stop() == -signal.SIGTERM
    assert not caplog.messages
    assert await stubborn.stop(0.1) == -signal.SIGKILL
    assert caplog.messages == ["program did not stop within 0.1 s and will be killed"]
    assert await stubborn.stop() == -signal.SIGKILL  # a second time changes nothing


@pytest.mark.parametrize("ending", ["", FOREVER])
async def test_what_it_started_ends_with_it(ending: str) -> None:
    lines: list[str] = []
    child = start(WITH_CHILD + ending, lines)
    await until(lambda: lines)
    if ending:
        await child.stop()
    await child.ended()
    await until(lambda: not is_alive(int(lines[0])))


async def test_a_caller_who_stops_waiting_does_not_disturb_others() -> None:
    child = start(FOREVER)
    impatient, patient = asyncio.create_task(child.ended()), asyncio.create_task(child.ended())
    await asyncio.sleep(0)
    impatient.cancel()
    child.kill()
    assert await patient == -signal.SIGKILL


def test_it_needs_no_event_loop() -> None:
    child = start(FOREVER)
    with pytest.raises(TimeoutError):
        child.wait(0.01)
    child.kill()
    assert child.wait() == -signal.SIGKILL


def test_a_fork_leaves_it_alone() -> None:
    child = start(FOREVER)
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # there are threads
        pid = os.fork()
    if pid == 0:
        child.kill()
        os._exit(0 if not child.running else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert child.running
    child.kill()
    child.wait()


def test_a_program_that_does_not_exist_leaves_no_descriptors() -> None:
    before = len([*Path("/proc/self/fd").iterdir()])
    with pytest.raises(FileNotFoundError):
        ChildProcess("nothing", ["/no/such/program"])
    assert len([*Path("/proc/self/fd").iterdir()]) == before


PARENT = """
import sys, time
from nemo_gym.io.child_process import ChildProcess
code = {code!r}
child = ChildProcess("child", [sys.executable, "-c", code], on_line=lambda line: print(child.pid, line, flush=True))
time.sleep(600)
"""
WATCHING = "from nemo_gym.io.child_process import end_with_parent\n"


@pytest.mark.parametrize(
    "code",
    [
        "end_with_parent()\n" + READY + "while True: pass\n",  # while it computes
        "import os\nend_with_parent(lambda: os._exit(0))\n" + READY + FOREVER,  # in order
        "end_with_parent(lambda: None)\n" + READY + FOREVER,  # by force
    ],
)
async def test_it_ends_when_its_parent_is_killed(code: str) -> None:
    command = [sys.executable, "-c", PARENT.format(code=WATCHING + code)]
    parent = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    pid = int((await parent.stdout.readline()).split()[0])
    parent.kill()
    await parent.wait()
    await until(lambda: not is_alive(pid))


async def test_a_program_that_was_started_by_hand_watches_nothing() -> None:
    code = WATCHING + "import threading\nend_with_parent()\nassert threading.active_count() == 1"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    assert await process.wait() == 0
