"""Entry points for the golden suites whose call is not fixed by the interface."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from nemo_gym.errors import ConfigError
from nemo_gym.exporting.pipeline import export_rollouts
from nemo_gym.exporting.recipe import Recipe
from nemo_gym.exporting.sft import UnfitError, nemo_row
from nemo_gym.exporting.tokens import only_span
from nemo_gym.metrics.continuity import check_continuity

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


def offline(case: dict[str, Any]) -> dict[str, Any]:
    """Run an export with the preset ``nemo``, or what it is made of."""
    rollouts, given = case["rollouts"], case["params"]
    match case["operation"]:
        case "filter":
            # Rows carry no number of their own; the type of a task comes through unchanged.
            marked = [one | {"metadata": {"task_type": str(number)}} for number, one in enumerate(rollouts)]
            kept = [int(row["task_type"]) for row in exported(marked, format="sft", **given)]
            return {"kept_indices": kept, "total": len(rollouts)}
        case "sft":
            return {"rows": [nemo_row(one) for one in rollouts]}
        case "dpo_two":
            # Two rollouts of a group may be the same in all that they say; an id makes them two lines.
            marked = [one | {"id": number} for number, one in enumerate(rollouts)]
            return {"pairs": exported(marked, format="dpo", **given)}
        case _:
            return {"results": [token_log(one) for one in rollouts]}


def exported(rollouts: list[dict[str, Any]], **recipe: Any) -> list[dict[str, Any]]:
    """The rows that the whole exporter makes of rollouts."""
    Path("rollouts.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rollouts))
    try:
        export_rollouts(Recipe(input="rollouts.jsonl", output="rows.jsonl", preset="nemo", **recipe))
    except ConfigError:  # no row is left
        return []
    return [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]


def token_log(rollout: dict[str, Any]) -> dict[str, Any]:
    """The tokens of a rollout in segments, or why there are none."""
    output = rollout["response"]["output"]
    found = check_continuity(output)
    if not found.ok:
        return {"status": "discontinuity", "turn": found.breaks[0].turn - 1}
    try:
        log = only_span(output).message_log()
    except UnfitError:
        return {"status": "no_trainable_turns"}
    segments = [{"trainable": part.pop("role") == "assistant", **part} for part in log]
    return {"status": "ok", "num_turns": found.calls, "message_log": segments, "reward": rollout["reward"]}
