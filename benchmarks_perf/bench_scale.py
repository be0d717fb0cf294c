#!/usr/bin/env python3
"""How far it scales, compared with the goals: concurrent rollouts, rows, finished rollouts, worker processes.

    python benchmarks_perf/bench_scale.py [--rows 1000000] [--in-flight 10000] [--only PART …] [--folder DIR]

Parts: concurrent, plan, resume, workers. Throughput against the mock endpoint counts from the first call until the
last rollout is saved, without start-up; the mock shares the cores with what is measured, and its CPU time is printed
too. Planning and resuming have a process of their own each. If the disk has no room for
so many rows, fewer are used.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import orjson
from bench import CONFIGS, collect, many_tasks, policy
from bench_metrics import prose, write_rollouts
from processes import HERE, background, cpu_of, free_port, raise_open_files_limit, run, wait_for

ROW_BYTES, ROLLOUT_BYTES = 1000, 5000
LATENCY_S = 2.0
PREPARE = """
import json, resource, sys, time
from pathlib import Path
from nemo_gym.rollouts.store.rollout_store import open_plan
from nemo_gym.rollouts.plan import PlanSpec
from nemo_gym.rollouts.plan import PlanSource
from nemo_gym.rollouts.store.history import AttemptPolicy
from nemo_gym.rollouts.store.rollout_store import open_store
tasks, output = sys.argv[1:]
source = PlanSource(tasks, None, PlanSpec(agent="agent"))
wall, cpu = time.perf_counter(), time.process_time()
with open_store(Path(output)) as store:
    plan = open_plan(store, source.rows, source.request, resume=True, policy=AttemptPolicy())
figures = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu, "owed": len(plan)}
print(json.dumps(figures | {"peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""
Figures = dict[str, float]


@dataclass(frozen=True)
class Mock:
    """A running mock endpoint."""

    base_url: str
    pid: int

    def stats(self) -> dict[str, Any]:
        return dict(self._get("stats")["stats"])

    def reset(self) -> None:
        self._get("reset")

    def _get(self, path: str) -> Any:
        with build_opener(ProxyHandler({})).open(f"{self.base_url.removesuffix('v1')}{path}", timeout=60) as reply:
            return json.loads(reply.read())


@contextmanager
def mock(**settings: object) -> Iterator[Mock]:
    """The mock endpoint; its settings are the MOCK_… variables in lower case."""
    port = free_port()
    environment = {"MOCK_PORT": str(port)} | {f"MOCK_{key.upper()}": str(value) for key, value in settings.items()}
    with background([sys.executable, str(HERE / "mock_model.py")], environment=environment) as process:
        wait_for(f"http://127.0.0.1:{port}/stats")
        yield Mock(f"http://127.0.0.1:{port}/v1", process.pid)


def gather(model: Mock, folder: Path, tasks: Path, parallel: int, *extra: str) -> Figures:
    """Collect every task once; the time is that from the first call until the last rollout is saved."""
    model.reset()
    before, output = cpu_of(model.pid), folder / "rollouts.jsonl"
    command = collect(output, tasks, parallel, f"+config_paths=[{CONFIGS}]")
    cost = run([*command, *policy(model.base_url), "+disable_aggregation=true", *extra])
    stats, count = model.stats(), sum(1 for _ in output.open("rb"))
    seconds = output.stat().st_mtime - stats["t_first"]
    return {
        "rollouts": count,
        "calls_per_s": stats["model_calls"] / seconds,
        "rollouts_per_s": count / seconds,
        "most_in_flight": stats["max_inflight"],
        "peak_mb": cost.peak_mb,
        "cpu_s": cost.cpu_s,
        "mock_cpu_s": cpu_of(model.pid) - before,
    }


# ---- many at once ----------------------------------------------------------------------------------------------------
def concurrent(folder: Path, in_flight: int) -> list[str]:
    """So many rollouts at once, twice over: an endpoint with fewer slots than that, and one without a limit."""
    tasks = many_tasks(folder, 2 * in_flight)
    lines = []
    for slots, goal in ((in_flight // 5, "(at least 80 %)"), (in_flight, "(what this machine's cores can do)")):
        with mock(latency=1000 * LATENCY_S, slots=slots) as model:
            f = gather(model, folder, tasks, in_flight)
        share = f["calls_per_s"] / (slots / LATENCY_S)
        what = f"{in_flight:,} at once, {slots:,} slots"
        lines += [
            line(f"{what}: completed", f"{f['rollouts']:,.0f}", f"(all {2 * in_flight:,})"),
            line(f"{what}: calls/s", f"{f['calls_per_s']:,.0f}", f"{share:.0%} of slots/latency {goal}"),
            line(f"{what}: peak memory", f"{f['peak_mb']:,.0f} MB", "(under 1,500)"),
            line(f"{what}: CPU", f"{f['cpu_s']:.1f} s", f"and {f['mock_cpu_s']:.1f} s of the mock"),
        ]
    return lines


# ---- many rows -------------------------------------------------------------------------------------------------------
def write_tasks(path: Path, rows: int) -> None:
    """Tasks of about a kilobyte each, no two the same."""
    question = prose(random.Random(0), 200)[: ROW_BYTES - 200]
    with path.open("wb", buffering=1 << 20) as file:
        for number in range(rows):
            params = {"input": [{"role": "user", "content": question}], "tools": [], "temperature": 1.0}
            file.write(orjson.dumps({"responses_create_params": params, "answer": number, "level": 0.5}) + b"\n")


def prepare(tasks: Path, output: Path) -> Figures:
    """Plan, or resume if there is something to resume, in a process of its own."""
    figures: Figures = json.loads(run([sys.executable, "-c", PREPARE, str(tasks), str(output)]).output.splitlines()[-1])
    return figures


def plan(folder: Path, rows: int) -> list[str]:
    """Read, plan and write rows."""
    tasks = folder / "tasks.jsonl"
    write_tasks(tasks, rows)
    f = prepare(tasks, folder / "planned.jsonl")
    assert f["owed"] == rows
    what, most = f"plan {rows:,} rows of 1 KB", 500 * rows / 1e6 + 100
    return [
        line(what, f"{rows / f['wall_s']:,.0f} rows/s", "(at least 50,000)"),
        line(f"{what}: CPU", f"{rows / f['cpu_s']:,.0f} rows/s CPU", ""),
        line(f"{what}: peak memory", f"{f['peak_mb']:,.0f} MB", f"(under {most:,.0f})"),
    ]


def resume(folder: Path, rows: int) -> list[str]:
    """Go on where everything is collected already."""
    tasks, output = folder / "tasks.jsonl", folder / "done.jsonl"
    if not tasks.exists():
        write_tasks(tasks, rows)
    prepare(tasks, output)
    write_rollouts(output, rows, rows, ROLLOUT_BYTES)
    size = output.stat().st_size / 1e6
    f = prepare(tasks, output)
    assert f["owed"] == 0
    what = f"resume with {rows:,} rollouts of 5 KB"
    return [
        line(what, f"{size / f['wall_s']:,.0f} MB/s", f"(at least 300); {size:,.0f} MB"),
        line(f"{what}: CPU", f"{size / f['cpu_s']:,.0f} MB/s CPU", ""),
        line(f"{what}: peak memory", f"{f['peak_mb']:,.0f} MB", "(under 300)"),
    ]


def rows_that_fit(folder: Path, rows: int) -> int:
    """As many rows as there is room for: tasks, two plans and rollouts, with as much again left over."""
    room = shutil.disk_usage(folder).free // (2 * (3 * ROW_BYTES + ROLLOUT_BYTES))
    if room < rows:
        print(f"the disk has room for {room:,} rows only", file=sys.stderr)
    return int(min(rows, room))


# ---- several processes -----------------------------------------------------------------------------------------------
def workers(folder: Path, count: int, rounds: int) -> list[str]:
    """One process against two, which share the cores with the mock; and against more than there are cores."""
    tasks = many_tasks(folder, count)
    seen: dict[int, list[Figures]] = {1: [], 2: [], 8: []}
    with mock(latency=50) as model:
        for _ in range(rounds):
            for number, figures in seen.items():
                figures.append(gather(model, folder, tasks, 512, f"+workers={number}"))
    rates = {number: statistics.median(f["rollouts_per_s"] for f in figures) for number, figures in seen.items()}
    lines = []
    for number, figures in seen.items():
        cpu, mock_cpu = (statistics.median(f[key] for f in figures) for key in ("cpu_s", "mock_cpu_s"))
        note = f"{cpu:.1f} s of CPU, start included, and {mock_cpu:.1f} s of the mock"
        lines.append(line(f"{count:,} rollouts, 50 ms, workers={number}", f"{rates[number]:,.0f} /s", note))
    left = {number: statistics.median(map(per_free_second, figures)) for number, figures in seen.items()}
    return [
        *lines,
        line("two workers over one", f"{rates[2] / rates[1]:.2f} x", "as measured, with the mock on the same cores"),
        line("two workers over one, without the mock", f"{left[2] / left[1]:.2f} x", "(at least 1.6)"),
        line("eight workers over two", f"{rates[8] / rates[2]:.2f} x", "(at least 1)"),
    ]


def per_free_second(figures: Figures) -> float:
    """Rollouts for each second of CPU time that the mock left: what they would be if it had a machine of its own."""
    seconds, cores = figures["rollouts"] / figures["rollouts_per_s"], len(os.sched_getaffinity(0))
    return figures["rollouts"] / (seconds - figures["mock_cpu_s"] / cores)


def line(name: str, value: str, note: str) -> str:
    return f"{name:<54}{value:>20}  {note}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows to plan, and rollouts to resume after")
    parser.add_argument("--in-flight", type=int, default=10_000, help="rollouts at once")
    parser.add_argument("--rollouts", type=int, default=8000, help="rollouts for one and for two workers")
    parser.add_argument("--rounds", type=int, default=3, help="rounds for one and for two workers, in turn")
    parser.add_argument("--folder", type=Path, help="where there is room for the files; they are removed")
    parser.add_argument("--only", nargs="+", choices=["concurrent", "plan", "resume", "workers"])
    args = parser.parse_args()
    raise_open_files_limit()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        rows = rows_that_fit(folder, args.rows)
        parts: dict[str, Callable[[], list[str]]] = {
            "concurrent": lambda: concurrent(folder, args.in_flight),
            "plan": lambda: plan(folder, rows),
            "resume": lambda: resume(folder, rows),
            "workers": lambda: workers(folder, args.rollouts, args.rounds),
        }
        for part in args.only or parts:
            started = time.perf_counter()
            print("\n".join(parts[part]()), flush=True)
            print(f"  ({part}: {time.perf_counter() - started:.0f} s)", file=sys.stderr)


if __name__ == "__main__":
    main()
