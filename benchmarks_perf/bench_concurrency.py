#!/usr/bin/env python3
"""What ``num_samples_in_parallel=auto`` finds, beside the best of several fixed settings.

    python benchmarks_perf/bench_concurrency.py [--seconds 15] [--auto-seconds 45] [--only ENDPOINT …]

Three endpoints, each with its own reason not to be sent more: one serves a fixed number of calls at once, one answers
429 above so many a second, one becomes slower beyond a point. Every setting collects for a while and is then stopped;
its throughput is that of the second half of that time, so that what ``auto`` needs to find its way does not count.
"""

import argparse
import re
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench import CONFIGS, collect, many_tasks, policy
from processes import ENVIRONMENT, ROOT, mock_model, raise_open_files_limit

LATENCY_MS = 100
ENDPOINTS: dict[str, dict[str, str]] = {
    "slots": {"slots": "32"},
    "rate": {"rps": "200"},
    "knee": {"knee": "64"},
}
FIXED = (8, 16, 32, 64, 128, 256)
ROLLOUTS = 100_000  # more than can run in the time
GOAL = 0.85
NOTE_S = 0.05


@dataclass(frozen=True)
class Stretch:
    """What a collection had saved at the beginning and at the end of a stretch of time."""

    seconds: float
    rollouts: int
    limit: int  # the last one that was shown

    @property
    def rate(self) -> float:
        return self.rollouts / self.seconds


def lines_in(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for_first(path: Path, process: "subprocess.Popen[str]") -> None:
    while not lines_in(path):
        if process.poll() is not None:
            raise SystemExit(f"the collection ended early:\n{process.communicate()[0][-3000:]}")
        time.sleep(NOTE_S)


def gather(folder: Path, tasks: Path, base_url: str, parallel: str, seconds: float) -> Stretch:
    """Collect for so many seconds; look at the second half."""
    output = folder / f"{parallel}.jsonl"
    command = collect(output, tasks, 0, f"+config_paths=[{CONFIGS}]", *policy(base_url), "+disable_aggregation=true")
    command = [
        re.sub(r"^\+num_samples_in_parallel=.*", f"+num_samples_in_parallel={parallel}", word) for word in command
    ]
    with subprocess.Popen(
        [*command, "+drain_timeout_s=0"],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        wait_for_first(output, process)
        time.sleep(seconds / 2)
        since, before = time.perf_counter(), lines_in(output)
        time.sleep(seconds / 2)
        stretch, rollouts = time.perf_counter() - since, lines_in(output) - before
        process.send_signal(2)
        text = process.communicate(timeout=60)[0]
    shown = re.findall(r"running=\d+/(\d+)", text)
    output.unlink()
    return Stretch(stretch, rollouts, int(shown[-1]) if shown else 0)


def compare(folder: Path, tasks: Path, name: str, seconds: float, auto_seconds: float) -> None:
    """Print the throughput of each fixed setting, then that of ``auto``, against one endpoint."""
    settings = " ".join(f"{key}={value}" for key, value in ENDPOINTS[name].items())
    print(f"{name}: latency {LATENCY_MS} ms, {settings}", flush=True)
    fixed: dict[int, float] = {}
    with mock_model(latency=str(LATENCY_MS), **ENDPOINTS[name]) as base_url:
        for number in FIXED:
            fixed[number] = gather(folder, tasks, base_url, str(number), seconds).rate
            print(f"  {number:>8} at once {fixed[number]:>10.1f} rollouts/s", flush=True)
        auto = gather(folder, tasks, base_url, "auto", auto_seconds)
    best = max(fixed, key=lambda number: fixed[number])
    share = auto.rate / fixed[best]
    verdict = f"{share:.0%} of the best, {best} (at least {GOAL:.0%}){'' if share >= GOAL else ' MISSED'}"
    print(f"  {'auto':>8}         {auto.rate:>10.1f} rollouts/s, {auto.limit} at the end: {verdict}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15, help="for each fixed setting")
    parser.add_argument("--auto-seconds", type=float, default=45, help="for auto")
    parser.add_argument("--only", nargs="+", choices=list(ENDPOINTS))
    args = parser.parse_args()
    raise_open_files_limit()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tasks = many_tasks(folder, ROLLOUTS)
        for endpoint in args.only or ENDPOINTS:
            compare(folder, tasks, endpoint, args.seconds, args.auto_seconds)


if __name__ == "__main__":
    main()
