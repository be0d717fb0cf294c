#!/usr/bin/env python3
"""How long ``ng_profile`` takes for a long run, against parsing its steps with orjson.

    python benchmarks_perf/bench_profile.py [--rollouts 100000]

Five steps a rollout. Processor time in both cases, the better of three; a process of its own tells the peak of memory.
"""

import argparse
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import orjson

from nemo_gym.io.files import RunFiles
from nemo_gym.steps.rollout_steps import RolloutSteps, Step, to_line
from nemo_gym.steps.screen import profile_of, screen_lines

CALLS = (
    ("seed", "weather", "/seed_session", ""),
    ("model", "policy_model", "/v1/responses", ""),
    ("tool", "weather", "/get_weather", "get_weather"),
    ("model", "policy_model", "/v1/responses", ""),
    ("verify", "weather", "/verify", ""),
)


def write(path: Path, rollouts: int) -> None:
    """Write a steps file as a collection does."""
    chance = random.Random(1)
    with path.open("wb") as file:
        for number in range(rollouts):
            now, steps = 0.0, []
            for call in CALLS:
                step = Step(*call, now + chance.randrange(1000) / 1e6, status=200)
                is_model = step.kind == "model"
                step.duration = chance.randrange(1_500_000 if is_model else 10_000) / 1e6
                step.bytes_out, step.bytes_in = chance.randrange(2000), chance.randrange(3000)
                if is_model:
                    step.tokens_in, step.tokens_out = chance.randrange(2000), chance.randrange(500)
                    step.finish = "completed"
                steps.append(step)
                now = step.end
            record = RolloutSteps(
                task=number // 4,
                rollout=number % 4,
                attempt=1,
                agent="weather_simple_agent",
                started_at=1794870065.055833 + number * 0.01,
                duration=now,
                outcome="completed",
                steps=steps,
            )
            file.write(to_line(record) + b"\n")


def parse(path: Path) -> None:
    with path.open("rb") as file:
        for line in file:
            orjson.loads(line)


def profile(path: Path) -> None:
    files = RunFiles.of(path)
    list(screen_lines(profile_of(files), files))


def seconds(work: Callable[[Path], Any], path: Path) -> float:
    taken = []
    for _ in range(3):
        before = process_time()
        work(path)
        taken.append(process_time() - before)
    return min(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--only", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        profile(args.only)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    with tempfile.TemporaryDirectory() as name:
        rollouts = Path(name) / "rollouts.jsonl"
        steps = RunFiles.of(rollouts).steps
        write(steps, args.rollouts)
        floor, taken = seconds(parse, steps), seconds(profile, rollouts)
        alone = subprocess.run(
            [sys.executable, __file__, "--only", str(rollouts)], check=True, capture_output=True, text=True
        )
        print(f"{steps.stat().st_size / 1e6:.0f} MB; orjson {floor:.3f} s")
        print(f"ng_profile {taken:.3f} s, {taken / floor:.2f} x; {float(alone.stdout):.0f} MB")


if __name__ == "__main__":
    main()
