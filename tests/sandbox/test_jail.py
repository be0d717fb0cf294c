"""What a box does for a program that means no harm, and what is left of it afterwards."""

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.sandbox import ProgramEnding, SandboxError, SandboxLimits
from nemo_gym.sandbox import jail as jail_module
from nemo_gym.sandbox.jail import Jail

SMALL = SandboxLimits(cpu_s=5, wall_s=20, memory_mib=256)


def descendants(pid: int) -> set[int]:
    """All processes that come from one, by their parents."""
    parents: dict[int, int] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            parents[int(entry)] = int(Path(f"/proc/{entry}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except OSError:
            continue
    found: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in {pid, *found}} - found:
        found |= more
    return found


def mounts() -> list[str]:
    """What this process sees of the mounts of boxes, which is to be nothing."""
    kinds = ("box ", "root ", "hidden ")
    return [line for line in Path("/proc/mounts").read_text().splitlines() if line.startswith(kinds)]


async def test_a_program_reads_and_writes(jail: Jail) -> None:
    result = await jail.run("print(input()[::-1])\nimport sys\nprint('!', file=sys.stderr)", stdin=b"abc\n")
    assert (result.ok, result.stdout, result.stderr) == (True, b"cba\n", b"!\n")
    assert result.ending is ProgramEnding.EXITED
    assert 0 < result.cpu_s < SMALL.cpu_s
    assert result.peak_memory_mib > 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give every box its own user")
async def test_boxes_of_two_jails_share_no_user(level: str) -> None:
    if level != "landlock":
        pytest.skip("in namespaces, all boxes may have the same user")
    jails = [Jail(level) for _ in range(2)]
    try:
        program = "import os, time; print(os.getuid()); time.sleep(0.5)"
        results = await asyncio.gather(*(jail.run(program) for jail in jails for _ in range(3)))
    finally:
        for jail in jails:
            await jail.aclose()
    users = {int(result.stdout) for result in results}
    assert len(users) == len(results)
    assert 0 not in users


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("raise SystemExit(3)", 3),
        ("import sys; sys.exit()", 0),
        ("raise SystemExit('no')", 1),
        ("1 / 0", 1),
        ("this is not Python", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("import os; os.abort()", -signal.SIGABRT),
        ("import atexit, os; atexit.register(lambda: os._exit(9))", 9),
    ],
)
async def test_an_exit_code_is_what_the_interpreter_would_give(jail: Jail, program: str, code: int) -> None:
    assert (await jail.run(program)).exit_code == code


async def test_errors_are_told_as_the_interpreter_does(jail: Jail) -> None:
    result = await jail.run("def f():\n    return 1 / 0\nf()\n")
    assert result.stderr.decode().splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert "in f" in result.stderr.decode()
    assert "nemo_gym" not in result.stderr.decode()


async def test_files_lie_beside_the_program(jail: Jail) -> None:
    files = {"data/in.txt": b"7", "helper.py": b"def double(x): return 2 * x\n"}
    result = await jail.run("import helper\nprint(helper.double(int(open('data/in.txt').read())))", files=files)
    assert result.text == "14\n"


async def test_large_input_and_output_pass(jail: Jail) -> None:
    data = os.urandom(1 << 19)
    result = await jail.run("import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read())", stdin=data)
    assert result.stdout == data


async def test_input_that_nobody_reads_is_dropped(jail: Jail) -> None:
    assert (await jail.run("print(1)", stdin=b"x" * (8 << 20))).text == "1\n"


@pytest.mark.parametrize(
    "program",
    [
        "import asyncio\nasync def f(): await asyncio.sleep(0); print(1)\nasyncio.run(f())",
        "import threading\nt = threading.Thread(target=print, args=(1,)); t.start()",
        "import subprocess\nprint(subprocess.run(['echo', '1'], capture_output=True, text=True).stdout, end='')",
        "import os\nr, w = os.pipe()\nif not os.fork(): os.write(w, b'1'); os._exit(0)\nprint(os.read(r, 1).decode())",
        "import tempfile\nf = tempfile.NamedTemporaryFile(); f.write(b'1'); f.seek(0); print(f.read().decode())",
        "import shutil, os\nopen('a', 'w').write('1'); shutil.copy('a', 'b'); print(open('b').read())",
        "import concurrent.futures as c\nwith c.ThreadPoolExecutor(2) as e: print(e.submit(lambda: 1).result())",
        "import random, ssl, sqlite3, xml.etree.ElementTree, zoneinfo, unittest, email\nprint(1)",
    ],
)
async def test_ordinary_programs_run(jail: Jail, program: str) -> None:
    result = await jail.run(program)
    assert (result.text, result.stderr) == ("1\n", b"")


async def test_random_numbers_differ_between_boxes(jail: Jail) -> None:
    results = await asyncio.gather(*(jail.run("import random; print(random.random())") for _ in range(4)))
    assert len({result.text for result in results}) == 4


async def test_a_box_starts_empty(jail: Jail) -> None:
    program = "import os\nprint(sorted(f for f in os.listdir('.') if f == 'left'))\nopen('left', 'w')"
    assert [(await jail.run(program)).text for _ in range(3)] == ["[]\n"] * 3


async def test_a_box_is_used_again_but_nothing_in_it(level: str) -> None:
    """The next program may get the box of the last one: its processes, its files and its limits are gone."""
    before = descendants(os.getpid())
    jail = Jail(level, parallel=1)
    leave = "import os\nopen('left', 'w').write('x' * 10**6)\nos.chmod('.', 0)\nwhile not os.fork(): pass"
    look = "import os\nprint([n for n in os.listdir('.') if n == 'left'])\nopen('big', 'wb').write(b'x' * (3 << 20))"
    try:
        for _ in range(3):
            await jail.run(leave, limits=SandboxLimits(disk_mib=2))
            assert len(descendants(os.getpid()) - before) <= 3  # caretaker, fork server, one supervisor
            assert (await jail.run(look, limits=SandboxLimits(disk_mib=8))).text == "[]\n"
    finally:
        await jail.aclose()


async def test_a_session_keeps_its_folder(jail: Jail) -> None:
    async with jail.session(limits=SMALL) as session:
        await session.upload("in/a.txt", b"hello")
        counted = await session.exec(
            "wc -c < in/a.txt > count; (sleep 0.2; echo late > late) & echo $X", environment={"X": "y"}
        )
        assert (counted.text, counted.exit_code) == ("y\n", 0)
        assert (await session.download("count")).strip() == b"5"
        assert (await session.python("print(open('in/a.txt').read())")).text == "hello\n"
        assert (await session.exec(["pwd"], folder="in")).text.strip().endswith("/in")
        assert (await session.exec("exit 3")).exit_code == 3
        with pytest.raises(FileNotFoundError, match="nothing"):
            await session.download("nothing")
    with pytest.raises(SandboxError):
        await session.exec("echo 1")


async def test_a_session_survives_a_command_that_takes_too_long(jail: Jail) -> None:
    async with jail.session(limits=SMALL) as session:
        slow = await session.exec("echo begun; sleep 60", limits=SandboxLimits(wall_s=0.3))
        assert (slow.ending, slow.stdout) == (ProgramEnding.WALL_TIME, b"begun\n")
        assert (await session.exec("echo on")).text == "on\n"


async def test_the_event_loop_is_never_held_up(jail: Jail) -> None:
    longest = 0.0
    stop = False

    async def tick() -> int:
        nonlocal longest
        turns = 0
        while not stop:
            before = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - before)
            turns += 1
            await asyncio.sleep(0.001)
        return turns

    ticking = asyncio.create_task(tick())
    await asyncio.gather(*(jail.run("import time; time.sleep(0.5)") for _ in range(6)))
    stop = True
    # Counted in turns and in CPU time of this thread, because other processes hold it up, too. If a run held it up,
    # there would be one turn for each of them.
    assert await ticking > 12
    assert longest < 0.02


async def test_a_session_can_be_stopped_while_it_works(jail: Jail) -> None:
    session = await jail.open_session(limits=SMALL)
    working = asyncio.create_task(session.exec("sleep 60"))
    await asyncio.sleep(0.2)
    await session.stop()
    with pytest.raises(SandboxError):
        await working


async def test_a_cancelled_run_ends_its_program(level: str) -> None:
    jail = Jail(level)
    await jail.start()
    quiet = descendants(os.getpid())
    task = asyncio.create_task(jail.run("import time; time.sleep(1000)", limits=SandboxLimits(wall_s=1000)))
    while descendants(os.getpid()) == quiet:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    while descendants(os.getpid()) - quiet:
        await asyncio.sleep(0.01)
    await jail.aclose()


async def test_nothing_is_left_after_many_runs(level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gc.collect()  # so that what earlier tests left to the collector is not closed in between
    processes, descriptors = descendants(os.getpid()), len(os.listdir("/proc/self/fd"))
    jail = Jail(level)
    programs = [
        "open('f', 'w').write('x' * 1000)",
        "import os\nif os.fork() == 0:\n    os.execvp('sleep', ['sleep', '1000'])",
        "import os; os.kill(os.getpid(), 9)",
        "1 / 0",
    ]
    results = await asyncio.gather(*(jail.run(programs[number % 4], limits=SMALL) for number in range(300)))
    assert {result.ending for result in results} == {ProgramEnding.EXITED}
    await jail.aclose()
    assert descendants(os.getpid()) <= processes
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert (mounts(), os.listdir(tmp_path)) == ([], [])


def test_nothing_is_left_when_the_host_is_killed(level: str, tmp_path: Path) -> None:
    script = f"""
import asyncio, os
from nemo_gym.sandbox.jail import Jail
from nemo_gym.sandbox import SandboxLimits
async def main():
    jail = Jail({level!r})
    await jail.start()
    program = "import os\\nos.fork()\\nos.execvp('sleep', ['sleep', '1000'])"
    task = asyncio.create_task(jail.run(program, limits=SandboxLimits(wall_s=900)))
    await asyncio.sleep(0.5)
    print("ready", flush=True)
    await task
asyncio.run(main())
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    host = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment)
    assert host.stdout is not None
    assert host.stdout.readline() == b"ready\n"
    started = descendants(host.pid)
    assert len(started) >= 3
    host.kill()
    host.wait()
    host.stdout.close()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and (any(alive(pid) for pid in started) or os.listdir(tmp_path)):
        time.sleep(0.05)
    assert [pid for pid in started if alive(pid)] == []
    assert os.listdir(tmp_path) == []


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in {b"Z", b"X"}
    except OSError:
        return False


async def test_a_fork_server_that_dies_is_an_error_and_then_replaced(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    jail = Jail(level)
    await jail.start()
    running = asyncio.create_task(jail.run("import time; time.sleep(1000)", limits=SandboxLimits(wall_s=1000)))
    await asyncio.sleep(0.2)
    # Stopped first, so that the server can't report the death of the program as its result. One takes others with it.
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in descendants(os.getpid()):
            with contextlib.suppress(OSError):
                if b"nemo_gym.sandbox.inside.server" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, number)
    with pytest.raises(SandboxError):
        await running
    while True:
        try:
            assert (await jail.run("print(1)")).text == "1\n"
            break
        except SandboxError:
            await asyncio.sleep(0.01)
    await jail.aclose()
    assert os.listdir(tmp_path) == []


async def test_modules_are_there_for_all_programs(level: str) -> None:
    jail = Jail(level, modules={"answers": "def answer(): return 42"})
    try:
        assert (await jail.run("import answers; print(answers.answer())")).text == "42\n"
    finally:
        await jail.aclose()


async def test_more_of_the_system_can_be_shown(level: str, tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    shown.mkdir()
    (shown / "file").write_text("1")
    for folder in (shown, *shown.parents[:-1]):
        if folder.is_relative_to(tempfile.gettempdir()) and folder != Path(tempfile.gettempdir()):
            folder.chmod(0o755)
    jail = Jail(level, readable=[shown])
    try:
        assert (await jail.run(f"print(open('{shown}/file').read())")).text == "1\n"
        assert not (await jail.run(f"open('{shown}/file', 'w')")).ok
    finally:
        await jail.aclose()


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan"), True, "many"])
def test_a_limit_is_a_positive_number(value: float) -> None:
    with pytest.raises(ConfigError, match="processes must be a positive number"):
        SandboxLimits(processes=value)  # type: ignore[arg-type]


async def test_a_box_whose_program_came_to_a_bad_end_is_not_used_again(level: str) -> None:
    jail = Jail(level, parallel=1)
    try:
        await jail.run("pass", limits=SMALL)
        kept = len(jail._idle)
        session = jail._idle[0].session
        with pytest.raises((asyncio.CancelledError, TimeoutError)):
            await asyncio.wait_for(jail.run("import time; time.sleep(60)", limits=SMALL), 0.3)
        left = [box.session for box in jail._idle]
        assert kept == 1
        assert session not in left
        assert (await jail.run("print(1)", limits=SMALL)).stdout == b"1\n"
    finally:
        await jail.aclose()


async def test_a_box_is_retired_after_many_uses(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jail_module, "_MOST_USES", 2)
    jail = Jail(level, parallel=1)
    used = []
    try:
        for _ in range(7):
            await jail.run("pass", limits=SMALL)
            used.append(jail._idle[0].session if jail._idle else None)
    finally:
        await jail.aclose()
    assert [one is None for one in used] == [False, True] * 3 + [False]  # each box serves twice
    assert len({id(one) for one in used if one is not None}) == 4
