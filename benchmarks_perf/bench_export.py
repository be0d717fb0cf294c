#!/usr/bin/env python3
"""What an export costs, beside the floor: parsing every line of the same file with orjson and writing it again.

    python benchmarks_perf/bench_export.py [--rollouts 100000] [--bytes 5000] [--rounds 3] [--only sft,parquet]

We aim for at most 2 times the floor for conversations as JSON lines, at most 3 times for Parquet, and less than 300 MB
of memory for both. Each measurement has a process of its own, whose start counts; rounds are interleaved, because
machines are shared and noisy, and the cheapest counts.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from make_rollouts import write_rollouts
from processes import BIN, Cost, run

FLOOR = """
import sys, orjson
with open(sys.argv[1], "rb") as file, open(sys.argv[2], "wb") as output:
    for line in file:
        output.write(orjson.dumps(orjson.loads(line)) + b"\\n")
"""
# The output and the parameters of each export.
EXPORTS = {
    "sft": ["+output=sft.jsonl", "+format=sft"],
    "parquet": ["+output=sft.parquet", "+format=parquet"],
    "by task": ["+output=best.jsonl", "+format=sft", "+mixed_rewards=true", "+best_per_task=2"],
    "dpo": ["+output=pairs.jsonl", "+format=dpo", "+pairs_per_task=2"],
    "unique": ["+output=unique.jsonl", "+format=sft", "+unique=true"],
}


def floor(folder: Path) -> Cost:
    return run([sys.executable, "-c", FLOOR, "rollouts.jsonl", "copy.jsonl"], cwd=folder)


def export(folder: Path, parameters: list[str]) -> Cost:
    command = [str(BIN / "ng_export"), "+input=rollouts.jsonl", *parameters, "+overwrite=true"]
    return run(command, cwd=folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--bytes", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help=f"some of {', '.join(EXPORTS)}, separated by commas")
    options = parser.parse_args()
    chosen = options.only.split(",") if options.only else list(EXPORTS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "rollouts.jsonl"
        write_rollouts(path, options.rollouts, size=options.bytes)
        print(f"{options.rollouts} rollouts, {path.stat().st_size / 1e6:.0f} MB")
        costs: dict[str, list[Cost]] = {}
        for _ in range(options.rounds):
            costs.setdefault("orjson", []).append(floor(folder))
            for kind in chosen:
                costs.setdefault(kind, []).append(export(folder, EXPORTS[kind]))
    cheapest = {kind: min(measured, key=lambda cost: cost.cpu_s) for kind, measured in costs.items()}
    base = cheapest["orjson"].cpu_s
    print(f"{'':10}{'CPU s':>8}{'ratio':>8}{'wall s':>8}{'peak MB':>9}")
    for kind, cost in cheapest.items():
        print(f"{kind:10}{cost.cpu_s:8.2f}{cost.cpu_s / base:8.2f}{cost.wall_s:8.2f}{cost.peak_mb:9.0f}")


if __name__ == "__main__":
    main()
