#!/usr/bin/env python3
"""What a rollout costs in instructions, beside a bare HTTP client that makes the same upstream calls.

    python benchmarks_perf/bench_instructions.py [--n 300] [--python] [--https] [--http] [--compare +steps=true]

Instructions do not depend on what else the machine does, so two of these figures can be compared where two CPU times
can't. valgrind counts them in user mode, all threads together; the mock model endpoint runs in a process of its own and
is not counted. A figure is the difference between 2N and N rollouts, so that start-up and everything else that happens
once cancels out. ``--python`` also measures ``nemo_gym.collect``, and what importing the package costs; ``--http``,
``ng_run`` and a collector that calls its servers over HTTP, both together. ``--profile FILE`` writes where they were
spent, for ``callgrind_annotate``; that takes longer.
"""

import argparse
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench import AGENT, CONFIGS, TASKS, collect, many_tasks, policy, wait_for_line
from processes import HERE, background, behind_tls, free_port, mock_model, run

PARALLEL = 64
# Under valgrind everything takes fifty times as long, so what happens every so often would count fifty-fold.
QUIET = """
import asyncio
import sys
import uvicorn
from nemo_gym.rollouts import run
from nemo_gym.servers import event_loop
from nemo_gym.steps import facts
run.TICK_S = run.SYNC_INTERVAL_S = event_loop.HEARTBEAT_S = facts.BEAT_S = 3600
event_loop.LagWatch.watch = lambda self: None
tick = uvicorn.Server.on_tick
async def seldom(self, counter):
    await asyncio.sleep(2 if counter else 0)
    return await tick(self, counter)
uvicorn.Server.on_tick = seldom
"""
LAUNCH = f"""{QUIET}
sys.argv[:2] = sys.argv[1:2]
from nemo_gym.cli.main import main
main()
"""
COLLECT = f"""{QUIET}
import logging
import nemo_gym
logging.basicConfig(level=logging.INFO, format="%(message)s")
environment, base_url, agent, tasks, output, parallel = sys.argv[1:]
nemo_gym.collect(
    environment, model="openai:mock", base_url=base_url, api_key="none", agent=agent, tasks=tasks, output=output,
    num_samples_in_parallel=int(parallel), overwrite=True,
)
"""
# The same hashes in every run, so that dictionaries collide alike.
FIXED = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
TOTAL = re.compile(r"^(?:totals|summary): (\d+)", re.MULTILINE)


def counting(command: list[str], counts: Path, *, profile: bool = False) -> list[str]:
    """A command that counts its instructions, which are written to a file when it ends."""
    tool = "callgrind" if profile else "cachegrind"
    options = [] if profile else ["--cache-sim=no"]
    return ["valgrind", "-q", f"--tool={tool}", *options, f"--{tool}-out-file={counts}", *command]


def instructions(command: list[str], counts: Path, environment: dict[str, str], *, profile: bool = False) -> int:
    """What a command costs from beginning to end."""
    run(counting(command, counts, profile=profile), environment=FIXED | environment)
    return total(counts)


def total(counts: Path) -> int:
    """All instructions of a file."""
    found = TOTAL.search(counts.read_text())
    if found is None:
        raise SystemExit(f"{counts} has no total")
    return int(found[1])


class Parts(NamedTuple):
    """What two processes cost."""

    collector: float
    gym: float


def bare(folder: Path, base_url: str, n: int) -> float:
    """Instructions of the bare client for a rollout."""
    command = [sys.executable, str(HERE / "bare_client.py"), base_url, str(TASKS), "--parallel", str(PARALLEL)]
    run([*command, "--n", "1"])  # whatever is compiled is compiled now
    few, many = (instructions([*command, "--n", str(count)], folder / "bare.out", {}) for count in (n, 2 * n))
    return (many - few) / n


def launched(command: list[str]) -> list[str]:
    """One of our commands with its parameters, started by LAUNCH."""
    return [sys.executable, "-c", LAUNCH, Path(command[0]).name, *command[1:]]


def in_process(
    folder: Path,
    base_url: str,
    n: int,
    *,
    certificate: Path | None = None,
    profile: Path | None = None,
    settings: Sequence[str] = (),
    parallel: int = PARALLEL,
    python: bool = False,
) -> float:
    """Instructions of a collection that hosts the Gym in its own process, for a rollout; ``python``: by a script."""
    host = [f"+config_paths=[{CONFIGS}]", *policy(base_url), *settings]
    trust = {"SSL_CERT_FILE": str(certificate)} if certificate else {}

    def command(count: int) -> list[str]:
        tasks = many_tasks(folder, count)
        if python:
            given = (CONFIGS.split(",")[0], base_url, AGENT, tasks, output(count), parallel)
            return [sys.executable, "-c", COLLECT, *map(str, given)]
        return launched(collect(output(count), tasks, parallel, *host))

    def output(count: int) -> Path:
        return folder / f"{count}_{'tls' if certificate else 'plain'}.jsonl"

    # Whatever is compiled is compiled now. Some of it is needed only if there are several tasks.
    run(command(n // 4 + 2), environment=trust)
    counts = profile or folder / "gym.out"
    few, many = (instructions(command(count), counts, trust, profile=profile is not None) for count in (n, 2 * n))
    assert len(output(2 * n).read_text().splitlines()) == 2 * n
    return (many - few) / n


def importing(folder: Path) -> float:
    """Instructions of ``import nemo_gym``, without those of the interpreter."""
    commands = [[sys.executable, "-c", f"import pathlib, typing, importlib{more}"] for more in ("", ", nemo_gym")]
    run(commands[1])
    nothing, package = (instructions(command, folder / "import.out", {}) for command in commands)
    return package - nothing


def over_http(folder: Path, base_url: str, n: int, *, profile: Path | None = None, parallel: int = PARALLEL) -> Parts:
    """Instructions of a collector and of the Gym that it calls over HTTP, for a rollout."""
    output, counts = folder / "http.jsonl", profile or folder / "http"
    outside, inside = counts.with_suffix(".collector"), counts.with_suffix(".gym")

    def count(rollouts: int) -> Parts:
        gym, collector = commands(rollouts)
        command = counting(gym, inside, profile=profile is not None)
        with background(command, environment=FIXED, patience_s=120) as process:
            wait_for_line(process, "servers ready")
            collecting = instructions(collector, outside, {}, profile=profile is not None)
        return Parts(collecting, total(inside))

    def commands(rollouts: int) -> tuple[list[str], list[str]]:
        head = f"+head_server={{host: 127.0.0.1, port: {free_port()}}}"
        gym = launched(["ng_run", f"+config_paths=[{CONFIGS}]", head, *policy(base_url)])
        return gym, launched(collect(output, many_tasks(folder, rollouts), parallel, head))

    gym, collector = commands(n // 4 + 2)
    with background(gym) as process:  # whatever is compiled is compiled now
        wait_for_line(process, "servers ready")
        run(collector)
    few, many = count(n), count(2 * n)
    assert len(output.read_text().splitlines()) == 2 * n
    return Parts((many.collector - few.collector) / n, (many.gym - few.gym) / n)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=300, help="the difference in rollouts between the two runs")
    parser.add_argument("--python", action="store_true", help="also measure nemo_gym.collect and import nemo_gym")
    parser.add_argument("--https", action="store_true", help="also measure a model at https://")
    parser.add_argument("--http", action="store_true", help="also measure ng_run and HTTP")
    parser.add_argument("--no-bare", action="store_true", help="leave the bare client out")
    parser.add_argument("--parallel", type=int, default=PARALLEL, help="rollouts at once; 1 repeats most exactly")
    parser.add_argument("--compare", action="append", default=[], help="a setting to measure, too, e.g. +steps=false")
    parser.add_argument("--profile", type=Path, help="file for callgrind's counts of the longer run")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, mock_model() as base_url:
        folder = Path(name)
        floor = None if args.no_bare else bare(folder, base_url, args.n)
        if floor is not None:
            print(f"bare client              {floor / 1e6:6.3f} M instructions a rollout", flush=True)
        figures = {"in one process": in_process(folder, base_url, args.n, profile=args.profile, parallel=args.parallel)}
        for setting in args.compare:
            figures[setting] = in_process(folder, base_url, args.n, settings=setting.split(), parallel=args.parallel)
        if args.python:
            figures["nemo_gym.collect"] = in_process(folder, base_url, args.n, parallel=args.parallel, python=True)
            ratio = figures["nemo_gym.collect"] / figures["in one process"]
            print(f"nemo_gym.collect costs {100 * (ratio - 1):+.1f} % of the command", flush=True)
            print(f"import nemo_gym          {importing(folder) / 1e6:6.3f} M instructions, once", flush=True)
        if args.https:
            with behind_tls(base_url, folder) as (address, certificate):
                figures["model at https://"] = in_process(folder, address, args.n, certificate=certificate)
        if args.http:
            parts = over_http(folder, base_url, args.n, profile=args.profile, parallel=args.parallel)
            figures["ng_run and HTTP"] = sum(parts)
            print(
                f"of ng_run and HTTP: {parts.collector / 1e6:.3f} M in the collector, {parts.gym / 1e6:.3f} M in ng_run"
            )
        for label, cost in figures.items():
            ratio = f"  {cost / floor:.2f} x the bare client" if floor is not None else ""
            print(f"{label:<25}{cost / 1e6:6.3f} M instructions a rollout{ratio}")


if __name__ == "__main__":
    main()
