"""What a run in the sandbox costs: CPU and rate at each level, HumanEval's verdicts, and how long a verification takes.

CPU is that of everything involved (host, fork server, supervisors, programs), as a control group counts it. That needs
root and a writable hierarchy; without, only the rate is printed.

    python benchmarks_perf/bench_sandbox.py
"""

import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
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


def main() -> None:
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {RUNS} runs of print(1)")
    with metered() as meter:
        measure_plain(meter)
        for level in LEVELS:
            asyncio.run(measure_level(level, meter))
        try:
            asyncio.run(measure_human_eval(meter))
        except ConfigError as error:
            print(f"HumanEval: {error}")


if __name__ == "__main__":
    main()
