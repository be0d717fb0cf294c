"""Entry points for the golden suites whose call is not fixed by the interface."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).absolute().parents[2] / "scripts" / "print_aggregate_results.py"


def print_aggregate(case: dict[str, Any]) -> dict[str, Any]:
    """Run the script on ``rollouts.jsonl`` in the current directory and read what it prints."""
    run = subprocess.run(
        [sys.executable, str(SCRIPT), "+jsonl_fpath=rollouts.jsonl"], capture_output=True, text=True, check=True
    )
    agents = {}
    decoder = json.JSONDecoder()
    text = run.stdout
    while text.strip():
        head, _, rest = text.lstrip().partition("\n")
        name, _, count = head.removesuffix(" rollouts").rpartition(": ")
        averages, end = decoder.raw_decode(rest)
        agents[name] = {"count": int(count), "averages": averages}
        text = rest[end:]
    return {"agents": agents}
