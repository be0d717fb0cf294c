"""What we add to the interface's metrics: intervals, coverage, tool use and difficulty, in a file of its own.

The metrics file keeps exactly the keys that its readers expect; this one lies beside it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from nemo_gym.metrics.coverage import Coverage
from nemo_gym.metrics.difficulty import SOLVED, solve_rates
from nemo_gym.metrics.files import replacing
from nemo_gym.metrics.intervals import LEVEL, RESAMPLES, Interval, mean_intervals
from nemo_gym.metrics.json_text import to_json
from nemo_gym.metrics.table import RolloutTable
from nemo_gym.metrics.transcript import TOOL_CALLS, TURNS
from nemo_gym.schemas.prices import Prices
from nemo_gym.schemas.rows import AGENT_REF_KEY_NAME

AVERAGE_NAMES: Final = {TOOL_CALLS: "avg_tool_calls", TURNS: "avg_turns"}


def details(
    table: RolloutTable,
    *,
    coverage: Coverage | None = None,
    prices: Prices | None = None,
    threshold: float = SOLVED,
    seed: int = 0,
) -> dict[str, Any]:
    """The details of one agent's rollouts, as written beside the metrics file."""
    starts = table.task_starts()
    fields = {f"mean/{name}": column for name, column in table.metrics().items()}
    fields |= {AVERAGE_NAMES[name]: column for name, column in table.transcript.items()}
    amounts = {*AVERAGE_NAMES.values(), *(f"mean/{name}" for name in table.usage)}
    intervals = mean_intervals(fields, starts, amounts=amounts, seed=seed)
    averages = {name: intervals[name].mean for name in AVERAGE_NAMES.values() if name in intervals}
    return {
        "rollouts": len(table),
        "tasks": len(starts),
        "coverage": coverage.as_dict() if coverage is not None else None,
        "confidence": {"level": LEVEL, "resamples": RESAMPLES, "seed": seed},
        "intervals": {name: _as_dict(interval) for name, interval in intervals.items()},
        **averages,
        **({"cost": cost(table, prices)} if prices is not None else {}),
        "solve_threshold": threshold,
        "tasks_by_difficulty": solve_rates(table, threshold).counts(),
    }


def cost(table: RolloutTable, prices: Prices) -> dict[str, float]:
    """What the rollouts cost in USD, had the endpoint cached nothing."""
    used = table.metrics()
    per_token = {"input_tokens": prices.input / 1e6, "output_tokens": prices.output / 1e6}
    known = {name: used[name] for name in per_token if name in used}
    usd = sum(
        float(np.where(column.known, column.values, 0.0).sum()) * per_token[name] for name, column in known.items()
    )
    return {"usd": usd, "usd_per_rollout": usd / len(table) if len(table) else 0.0}


def details_path(rollouts: Path) -> Path:
    """Where the details of a rollout file are."""
    return rollouts.with_name(f"{rollouts.stem}_aggregate_details.json")


def write_details(path: Path, agents: Mapping[str, Mapping[str, Any]]) -> None:
    """Replace the file by the details of these agents, sorted by name."""
    entries = [{AGENT_REF_KEY_NAME: {"name": name}, **agents[name]} for name in sorted(agents)]
    with replacing(path) as file:
        file.write(to_json(entries, indent=True) + b"\n")


def _as_dict(interval: Interval) -> dict[str, Any]:
    return {"mean": interval.mean, "low": interval.low, "high": interval.high, "method": interval.method}
