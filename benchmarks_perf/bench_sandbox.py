"""What a run in the sandbox costs: CPU and rate at each level, HumanEval's verdicts, and how long a verification takes.
Then worlds: how long they take to start and to run a command, and 64 at once. ``--worlds 10000`` opens that many and
looks for what they leave behind.

CPU is that of everything involved (host, fork server, supervisors, programs), as a control group counts it. That needs
root and a writable hierarchy; without, only the rate is printed.

    python benchmarks_perf/bench_sandbox.py [--worlds 10000]
"""

import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from benchmarks.human_eval.prepare import read_problems
from nemo_gym.errors import ConfigError
from nemo_gym.sandbox import Runner, SandboxError, SandboxLimits
from nemo_gym.sandbox.jail import Jail
from resources_servers.python_code.verification import HiddenTests, modules_in_the_box, verify_solution

RUNS = 400
LEVELS = ("namespaces", "landlock", "none")
GROUPS = (Path("/sys/fs/cgroup/cpuacct"), Path("/sys/fs/cgroup"))


class Meter:
    """Seconds of CPU of this process and all its descendants; None where nobody counts them."""

    def __init__(self, group: Path | None) -> None:
        self._group = group

    def read(self) -> float | None:
        if self._group is None:
            return None
        if (self._group / "cpuacct.usage").exists():
            return int((self._group / "cpuacct.usage").read_text()) / 1e9
        return int((self._group / "cpu.stat").read_text().split()[1]) / 1e6


@contextlib.contextmanager
def metered() -> Iterator[Meter]:
    for parent in GROUPS:
        group = parent / f"bench-sandbox-{os.getpid()}"
        members = "tasks" if (parent / "tasks").exists() else "cgroup.procs"
        try:
            group.mkdir()
            (group / members).write_text(str(os.getpid()))
        except OSError:
            continue
        try:
            yield Meter(group)
        finally:
            (parent / members).write_text(str(os.getpid()))
            time.sleep(0.5)
            group.rmdir()
        return
    yield Meter(None)


def report(what: str, count: int, seconds: float, cpu: float | None) -> None:
    cost = "" if cpu is None else f"   {1000 * cpu / count:6.2f} ms CPU each   {count / cpu:6.0f} a second and core"
    print(f"{what:34} {count / seconds:6.0f} a second{cost}")


async def measure_level(level: str, meter: Meter) -> None:
    jail = Jail(level)
    try:
        await jail.start()
    except SandboxError as error:
        print(f"{level:34} {error}")
        return
    await asyncio.gather(*(jail.run("print(1)") for _ in range(20)))
    before, started = meter.read(), time.perf_counter()
    await asyncio.gather(*(jail.run("print(1)") for _ in range(RUNS)))
    seconds = time.perf_counter() - started
    await asyncio.sleep(0.2)  # what has ended is still being cleared away
    after = meter.read()
    report(level, RUNS, seconds, None if before is None or after is None else after - before)
    await jail.aclose()


def measure_plain(meter: Meter) -> None:
    """The same program in a new interpreter, without any isolation."""
    before, started = meter.read(), time.perf_counter()
    for _ in range(50):
        subprocess.run([sys.executable, "-I", "-c", "print(1)"], check=True, stdout=subprocess.DEVNULL)
    after = meter.read()
    seconds = time.perf_counter() - started
    report("python -I, not isolated", 50, seconds, None if before is None or after is None else after - before)


async def measure_human_eval(meter: Meter) -> None:
    problems = read_problems()
    jail: Runner = Jail("namespaces", modules=modules_in_the_box(), limits=SandboxLimits(cpu_s=5, wall_s=60))
    await jail.start()
    waits: list[float] = []

    async def judge(problem: dict[str, str], code: str) -> int:
        tests = HiddenTests(
            kind="function", entry_point=problem["entry_point"], setup=problem["prompt"], test=problem["test"]
        )
        started = time.perf_counter()
        verdict = await verify_solution(jail, problem["prompt"] + code, tests, limits=jail.limits)
        waits.append(time.perf_counter() - started)
        return verdict.passed

    before, started = meter.read(), time.perf_counter()
    right = sum([await judge(problem, problem["canonical_solution"]) for problem in problems])
    wrong = sum([await judge(problem, "    pass\n") for problem in problems])
    after = meter.read()
    count = 2 * len(problems)
    seconds = time.perf_counter() - started
    report(
        "HumanEval, one after the other", count, seconds, None if before is None or after is None else after - before
    )
    total = "" if before is None or after is None else f"{after - before:.1f} s CPU in all, "
    p95 = statistics.quantiles(waits, n=20)[-1] * 1000
    print(f"    references {right}/164, stubs {wrong}/164, {total}verification p95 {p95:.1f} ms")
    await jail.aclose()


async def measure_worlds(level: str, meter: Meter) -> None:
    """Start, command and end of a world, one after the other; then 64 at once, and how long the event loop waits."""
    jail = Jail(level)
    try:
        await (await jail.open_world()).stop()
    except SandboxError as error:
        print(f"{level:34} {error}")
        return
    worlds = []
    async with timed(f"{level}: start of a world", 50, meter):
        worlds += [await jail.open_world() for _ in range(50)]
    async with timed(f"{level}: command without a shell", 100, meter):
        for world in worlds * 2:
            await world.exec(["true"])
    async with timed(f"{level}: command in the shell", 100, meter):
        for world in worlds * 2:
            await world.exec("true")
    async with timed(f"{level}: end of a world", 50, meter):
        for world in worlds:
            await world.stop()

    async def live() -> None:
        async with jail.world() as world:
            await world.write("a.txt", b"1")
            await world.exec("cat a.txt; sleep 0.2")

    longest = asyncio.create_task(longest_hold())
    async with timed(f"{level}: 64 whole worlds at once", 64, meter):
        await asyncio.gather(*(live() for _ in range(64)))
    longest.cancel()
    print(f"    the event loop's longest step was {1000 * await longest:.1f} ms of CPU")
    await jail.aclose()


@contextlib.asynccontextmanager
async def timed(what: str, count: int, meter: Meter) -> AsyncIterator[None]:
    """Report what the block costs, for each of ``count``."""
    before, started = meter.read(), time.perf_counter()
    yield
    seconds = time.perf_counter() - started
    await asyncio.sleep(0.2)
    after = meter.read()
    report(what, count, seconds, None if before is None or after is None else after - before)


async def longest_hold() -> float:
    """The most CPU time that this thread used between two turns of the event loop, until it is cancelled."""
    longest = 0.0
    try:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - before)
    except asyncio.CancelledError:
        return longest


async def look_for_leftovers(count: int) -> None:
    """Open many worlds with processes and files, and see what they leave behind."""
    for level in ("namespaces", "landlock"):
        jail = Jail(level)
        await (await jail.open_world()).stop()
        before = what_there_is()

        async def live(jail: Jail = jail) -> None:
            async with jail.world() as world:
                await world.exec("sleep 1000 & echo 1 > file")

        for _ in range(count // 16):
            await asyncio.gather(*(live() for _ in range(16)))
        await asyncio.sleep(1)
        left = {name: (number, what_there_is()[name]) for name, number in before.items()}
        await jail.aclose()
        told = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in left.items())
        print(f"{level}: {count} worlds; before -> after: {told}")


def what_there_is() -> dict[str, int]:
    """Processes below this one, mounts that it sees, its open files, and folders of sandboxes."""
    children = subprocess.run(["ps", "-e", "-o", "args="], capture_output=True, text=True, check=True).stdout
    return {
        "sleeping processes": children.count("sleep 1000"),
        "mounts": Path("/proc/self/mountinfo").read_text().count("rollout-gym"),
        "open files": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "folders": len(list(Path(tempfile.gettempdir()).glob("rollout-gym-*/*"))),
    }


def main() -> None:
    if "--worlds" in sys.argv:
        asyncio.run(look_for_leftovers(int(sys.argv[sys.argv.index("--worlds") + 1])))
        return
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {RUNS} runs of print(1)")
    with metered() as meter:
        measure_plain(meter)
        for level in LEVELS:
            asyncio.run(measure_level(level, meter))
        for level in LEVELS[:2]:
            asyncio.run(measure_worlds(level, meter))
        try:
            asyncio.run(measure_human_eval(meter))
        except ConfigError as error:
            print(f"HumanEval: {error}")


if __name__ == "__main__":
    main()
