#!/usr/bin/env python3
"""What the viewer costs, compared with its goals: first index, next start, and every kind of request.

    python benchmarks_perf/bench_viewer.py [--rollouts 100000] [--bytes 5000] [--large] [--keep FOLDER]

The viewer runs in a process of its own and is queried over HTTP, as a browser would. Each query is sent several
times, with other words and limits each time so that nothing is remembered; the median counts, and the slowest is shown.
``parse only`` is the floor: the same file read and parsed line by line with orjson. ``columns`` is the first index as
the reader meets it: everything but searching works. ``text`` follows in the background. ``--large`` adds a million
rollouts, whose goals are three times as long.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

from make_rollouts import write_rollouts
from processes import ENVIRONMENT, ROOT, cpu_of, memory_mb, run

FLOOR = """
import orjson, sys, time
started, cpu = time.perf_counter(), time.process_time()
with open(sys.argv[1], "rb") as file:
    for line in file:
        orjson.loads(line)
print(time.perf_counter() - started, time.process_time() - cpu)
"""
OPENER = build_opener(ProxyHandler({}))
ROUNDS = 7


class Row(NamedTuple):
    """A line of the report."""

    name: str
    measured: str
    goal: str = ""
    good: bool = True


class Viewer:
    """A running viewer."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url

    def get(self, path: str, **query: Any) -> Any:
        with OPENER.open(f"{self.url}api/{path}?{urlencode(query)}", timeout=600) as reply:
            return json.loads(reply.read())

    def file(self) -> dict[str, Any]:
        return dict(self.get("state")["files"][0])

    def wait(self, done: Callable[[dict[str, Any]], bool]) -> None:
        while not done(self.file()):
            time.sleep(0.05)

    @property
    def memory(self) -> float:
        return memory_mb(self.process.pid)


@contextmanager
def viewer(path: Path) -> Iterator[Viewer]:
    """Start a viewer and wait until it replies."""
    command = [sys.executable, "-m", "nemo_gym.cli", "viewer", f"+jsonl_fpath={path}", "+server_port=17860"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, text=True, **pipes) as process:
        assert process.stdout is not None
        try:
            yield Viewer(process, process.stdout.readline().strip())
        finally:
            process.send_signal(2)
            process.wait(30)


def measure(path: Path, rollouts: int, *, factor: int) -> list[Row]:
    for index in path.parent.glob("*.view.sqlite*"):
        index.unlink()
    megabytes = path.stat().st_size / 1e6
    wall, cpu = map(float, run([sys.executable, "-c", FLOOR, str(path)]).output.split())
    rows = [Row("parse only (orjson, the floor)", f"{megabytes / wall:.0f} MB/s, {cpu:.2f} s CPU")]
    rows += first_index(path, megabytes, factor)
    rows += next_start(path, rollouts, factor)
    return rows


def first_index(path: Path, megabytes: float, factor: int) -> list[Row]:
    began = time.perf_counter()
    with viewer(path) as found:
        served, busy = time.perf_counter() - began, cpu_of(found.process.pid)
        found.wait(lambda file: file["bytes"] and file["indexed_bytes"] == file["bytes"])
        columns = time.perf_counter() - began
        time.sleep(0.5)  # processes that helped are counted when they are gone
        busy = cpu_of(found.process.pid) - busy
        found.wait(lambda file: file["attempts"] == file["rollouts"])
        steps = time.perf_counter() - began
        found.wait(lambda file: file["searchable"] == file["rollouts"])
        text = time.perf_counter() - began
        memory = found.memory
    size = sum(file.stat().st_size for file in path.parent.glob(f"{path.name}.view.sqlite*")) / 1e6
    speed, goal = megabytes / (columns - served), 150 / factor
    return [
        Row("start until it replies", f"{served:.2f} s"),
        Row(
            "first index: columns", f"{speed:.0f} MB/s ({columns - served:.2f} s)", f">= {goal:.0f} MB/s", speed >= goal
        ),
        Row("first index: columns, CPU of all processes", f"{busy:.2f} s"),
        Row("steps, after the columns", f"{steps - columns:.1f} s"),
        Row(
            "first index: text, in the background", f"{megabytes / (text - columns):.0f} MB/s ({text - columns:.1f} s)"
        ),
        Row("size of the index", f"{size:.0f} MB, {100 * size / megabytes:.0f} % of the file"),
        Row("memory after the first index", f"{memory:.0f} MB", f"< {250 * factor} MB", memory < 250 * factor),
    ]


def next_start(path: Path, rollouts: int, factor: int) -> list[Row]:
    began = time.perf_counter()
    with viewer(path) as found:
        found.wait(lambda file: file["rollouts"] == rollouts)
        started = time.perf_counter() - began
        rows = [Row("next start, process included", f"{started:.2f} s", f"< {factor} s", started < factor)]
        began = time.perf_counter()
        found.get("rollouts", limit=100)
        first = time.perf_counter() - began
        rows.append(Row("first page", f"{first * 1e3:.0f} ms", f"< {200 * factor} ms", first < 0.2 * factor))
        rows += questions(found, rollouts, factor)
        memory = found.memory
    rows.append(Row("memory after all of this", f"{memory:.0f} MB", f"< {250 * factor} MB", memory < 250 * factor))
    return rows


def questions(found: Viewer, rollouts: int, factor: int) -> list[Row]:
    words = ["bacer", "dora wino", '"first"', "result", "gofan", "naïve", "sisi lu"]
    columns = ["tokens", "judge.score", "bytes", "extracted_answer", "input_tokens", "output_tokens", "reward"]
    queries: list[tuple[str, int | None, Callable[[int], Any]]] = [
        (
            "filter + sort",
            300,
            lambda n: found.get(
                "rollouts", filter=f"reward < {n + 1} and tool_calls > {n % 3}", sort=f"-{columns[n]},task"
            ),
        ),
        ("deep page of the same table", 200, lambda n: found.get("rollouts", offset=rollouts // 8 * n, limit=100)),
        ("search", 500, lambda n: found.get("rollouts", search=words[n])),
        (
            "search + filter + sort",
            None,
            lambda n: found.get("rollouts", search=words[n], filter="reward == 1", sort="-tokens"),
        ),
        ("open a rollout", 100, lambda n: found.get(f"rollout/0.{rollouts // 9 * n + 1}")),
        ("groups by task", None, lambda n: found.get("groups", sort="-mean", filter=f"tokens > {n}")),
        ("overview", None, lambda n: found.get("overview", filter=f"tokens > {n}")),
        ("where the time went", None, lambda n: found.get("timing", filter=f"task < {rollouts // 80 + n}")),
        ("scatter", None, lambda n: found.get("scatter", x=columns[n])),
    ]
    return [timed(name, goal, factor, ask) for name, goal, ask in queries]


def timed(name: str, goal: int | None, factor: int, ask: Callable[[int], Any]) -> Row:
    times = []
    for number in range(ROUNDS):
        began = time.perf_counter()
        ask(number)
        times.append((time.perf_counter() - began) * 1e3)
    middle = statistics.median(times)
    measured = f"{middle:.0f} ms (slowest {max(times):.0f})"
    return Row(name, measured) if goal is None else Row(name, measured, f"< {goal * factor} ms", middle < goal * factor)


def report(title: str, rows: list[Row]) -> None:
    print(f"\n{title}")
    for row in rows:
        print(f"  {row.name:44} {row.measured:28} {row.goal:14} {'' if row.good else 'MISSED'}".rstrip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--bytes", type=int, default=5000)
    parser.add_argument("--large", action="store_true", help="add a million rollouts of 1 KB")
    parser.add_argument("--keep", type=Path, help="folder for the files, which are kept and used again")
    options = parser.parse_args()
    cases = [(options.rollouts, options.bytes, 1), *([(1_000_000, 1000, 3)] if options.large else [])]
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for rollouts, size, factor in cases:
            path = folder / f"rollouts_{rollouts}_{size}.jsonl"
            if not path.exists():
                write_rollouts(path, rollouts, size=size, steps=True)
            title = f"{rollouts} rollouts, {path.stat().st_size / 1e6:.0f} MB; load {os.getloadavg()[0]:.1f}"
            report(title, measure(path, rollouts, factor=factor))


if __name__ == "__main__":
    main()
