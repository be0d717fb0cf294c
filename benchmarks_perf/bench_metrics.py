#!/usr/bin/env python3
"""What metrics cost, beside the floor: reading the same file and parsing every line with orjson.

    python benchmarks_perf/bench_metrics.py [--rollouts 100000] [--tasks 10000] [--bytes 5000] [--rounds 3] [--large]

Each measurement has a process of its own, whose start is not counted; rounds are interleaved, because machines are
shared and noisy, and the cheapest counts. ``--large`` adds a million rollouts in 100,000 tasks, and pass@k for
100,000 x 64.
"""

import argparse
import random
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import orjson
from processes import run

FLOOR = """
import orjson
def work(path):
    with open(path, "rb") as file:
        for line in file:
            orjson.loads(line)
"""
AGGREGATE = """
import asyncio
from pathlib import Path
from nemo_gym.rollouts.run_metrics import aggregate_run
from nemo_gym.io.files import RunFiles
def work(path):
    asyncio.run(aggregate_run(RunFiles.of(Path(path)), None))
"""
MEASURE = """
import sys, time
wall, cpu = time.perf_counter(), time.process_time()
work(sys.argv[1])
print(time.perf_counter() - wall, time.process_time() - cpu)
"""
PASS_AT_K = """
import random, sys, time
from nemo_gym.metrics.pass_at_k import compute_pass_majority_metrics
draw = random.Random(0)
tasks = [[{"reward": float(draw.random() < 0.4)} for _ in range(64)] for _ in range(int(sys.argv[1]))]
started = time.process_time()
compute_pass_majority_metrics(tasks)
print(time.process_time() - started)
"""


def write_rollouts(path: Path, rollouts: int, tasks: int, size: int) -> None:
    """Rollouts as the collector writes them, in the order of completion, each of about the size given."""
    draw = random.Random(0)
    repeats = rollouts // tasks
    order = list(range(rollouts))
    draw.shuffle(order)
    texts = [prose(draw, 200) for _ in range(50)]
    with path.open("wb") as file:
        for number in order:
            file.write(orjson.dumps(rollout(number // repeats, number % repeats, draw, texts, size)) + b"\n")


def prose(draw: random.Random, words: int) -> str:
    """Text as models write it: line breaks, a quotation here and there, hardly anything beyond ASCII."""
    common = ["the", "answer", "is", "therefore", "because", "we", "multiply", "first", "number", "of", "and", "result"]
    rare = ["however,\n", "so,\n", "then.\n\n", '"quoted"', "3 \u00d7 4 = 12", "caf\u00e9"]
    return " ".join(draw.choice(rare if draw.random() < 0.06 else common) for _ in range(words))


def rollout(task: int, repeat: int, draw: random.Random, texts: list[str], size: int) -> dict[str, object]:
    """One record with a transcript of several turns."""
    call = {
        "type": "function_call",
        "call_id": "c",
        "name": "f",
        "arguments": '{"x": 1}',
        "id": "i",
        "status": "completed",
    }
    result = {"type": "function_call_output", "call_id": "c", "output": '{"y": 2}'}
    text = draw.choice(texts)
    part = {"type": "output_text", "text": (text * (size // len(text) + 1))[: max(size - 1400, 10)], "annotations": []}
    message = {"type": "message", "role": "assistant", "id": "m", "status": "completed", "content": [part]}
    return {
        "_ng_task_index": task,
        "responses_create_params": {
            "input": [{"role": "user", "content": text[:300]}],
            "tools": [],
            "temperature": 1.0,
        },
        "response": {
            "id": "resp",
            "created_at": 1.0,
            "output": [call, result, message],
            "usage": {"input_tokens": draw.randrange(1000), "output_tokens": draw.randrange(500), "total_tokens": 9},
        },
        "reward": float(draw.random() < 0.4),
        "accuracy": draw.random() < 0.5,
        "expected_answer": "42",
        "agent_ref": {"type": "responses_api_agents", "name": "agent"},
        "_ng_rollout_index": repeat,
    }


class Measured(NamedTuple):
    """What some work cost."""

    wall_s: float
    cpu_s: float
    peak_mb: float  # of the whole process


def measure(program: str, path: Path) -> Measured:
    cost = run([sys.executable, "-c", program + MEASURE, str(path)])
    wall, cpu = map(float, cost.output.split()[-2:])
    return Measured(wall, cpu, cost.peak_mb)


def compare(folder: Path, rollouts: int, tasks: int, size: int, rounds: int) -> None:
    path = folder / f"rollouts_{rollouts}.jsonl"
    write_rollouts(path, rollouts, tasks, size)
    megabytes = path.stat().st_size / 2**20
    pairs = [(measure(FLOOR, path), measure(AGGREGATE, path)) for _ in range(rounds)]
    floor, ours = (min(costs, key=lambda cost: cost.cpu_s) for costs in zip(*pairs, strict=True))
    print(f"\n{rollouts} rollouts in {tasks} tasks, {megabytes:.0f} MB")
    print(f"  read and parse with orjson  {floor.wall_s:6.2f} s  {floor.cpu_s:6.2f} s CPU  {floor.peak_mb:6.0f} MB")
    print(f"  aggregate to metrics file   {ours.wall_s:6.2f} s  {ours.cpu_s:6.2f} s CPU  {ours.peak_mb:6.0f} MB")
    print(f"  ratio                       {ours.wall_s / floor.wall_s:6.2f}    {ours.cpu_s / floor.cpu_s:6.2f}")
    path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--bytes", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--large", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(folder), options.rollouts, options.tasks, options.bytes, options.rounds)
        if options.large:
            compare(Path(folder), 1_000_000, 100_000, 2000, 1)
            cost = run([sys.executable, "-c", PASS_AT_K, "100000"])
            print(
                f"\npass@k of 100000 tasks x 64: {float(cost.output):.2f} s CPU, {cost.peak_mb:.0f} MB with the records"
            )


if __name__ == "__main__":
    main()
