"""The numbers of the first page. All of them are computed by ``nemo_gym.metrics``; this module only arranges them."""

import math
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from nemo_gym.metrics.difficulty import solve_rates
from nemo_gym.metrics.pass_at_k import attempts
from nemo_gym.metrics.report import Coverage, coverage
from nemo_gym.metrics.statistics import mean_intervals, overall, share_fields
from nemo_gym.metrics.table import Floats, RolloutTable, RowKeys, distinct
from nemo_gym.schemas.record import PASS_THRESHOLD, REWARD
from nemo_gym.schemas.rows import RolloutKey
from nemo_gym.view.library import ViewedRun
from nemo_gym.view.selection import Scored, Selection, count_failures, scored

BINS: Final = 20
RATE_BINS: Final = 10
DIGITS: Final = 10  # of the edges of a histogram
MOST_AGENTS: Final = 50
_LARGEST_METRICS: Final = 64 << 20  # bytes of a metrics file


def overview_numbers(selection: Selection, *, whole: bool, threshold: float = PASS_THRESHOLD) -> dict[str, Any]:
    """The numbers that depend on the rollouts alone. ``whole``: nothing was filtered, so that the plan applies."""
    found = scored(selection)
    table = found.table
    runs = selection.snapshot.runs
    known = _coverage(runs, selection, found) if whole else None
    return {
        "version": selection.snapshot.version,
        "rollouts": len(selection),
        "completed": len(found),
        "failed": dict(known.failed) if known else count_failures(selection),
        "planned": known.planned if known else None,
        "completed_of_plan": known.completed if known else None,
        "coverage": known.percent / 100 if known else None,
        **_mean(table),
        "histogram": _histogram(found.rewards),
        **_attempts(table, threshold),
        "solve_rates": _binned(solve_rates(table, threshold).rate, RATE_BINS, (0.0, 1.0)),
        "agents": _agents(found),
    }


def current_numbers(runs: tuple[ViewedRun, ...], numbers: Mapping[str, Any], *, whole: bool) -> dict[str, Any]:
    """The numbers that can change while the rollouts stay the same: progress, and the content of the metrics file."""
    if not whole:
        return {"progress": None, "metrics": None}
    return {"progress": _progress(runs, numbers["completed_of_plan"], numbers["planned"]), "metrics": _metrics(runs)}


def _mean(table: RolloutTable) -> dict[str, Any]:
    mean = overall(table).get(f"mean/{REWARD}")
    fields = table.metrics()
    interval = mean_intervals(fields, table.task_starts(), shares=share_fields(fields)).get(REWARD)
    return {"mean_reward": mean, "interval": [interval.low, interval.high] if interval else None}


def _agents(found: Scored) -> list[dict[str, Any]]:
    codes, names = found.agents.codes, found.agents.vocabulary
    if codes is None:
        return [{"agent": None, "rollouts": len(found), **_mean(found.table)}] if len(found) else []
    counted = np.bincount(codes + 1, minlength=len(names) + 1)  # the code -1 (no agent) is counted at 0
    entries = []
    for code in np.argsort(-counted, kind="stable")[:MOST_AGENTS].tolist():
        if counted[code]:
            mine = found.take(codes == code - 1)
            name = names[code - 1] if code else None
            entries.append({"agent": name, "rollouts": int(counted[code]), **_mean(mine.table)})
    return sorted(entries, key=lambda entry: (entry["agent"] is None, entry["agent"]))


def _histogram(rewards: Floats) -> dict[str, Any]:
    finite = rewards[np.isfinite(rewards)]
    if not len(finite):
        return {"edges": [], "counts": []}
    low, high = float(finite.min()), float(finite.max())
    if low >= 0 and high <= 1:  # the usual range of rewards; a common scale makes runs comparable
        low, high = 0.0, 1.0
    elif low == high:
        low, high = low - 0.5, high + 0.5
    return _binned(finite, BINS, (low, high))


def _binned(values: Floats, bins: int, limits: tuple[float, float]) -> dict[str, Any]:
    """Counts between edges that a filter can name: short numbers, the outer ones exact."""
    low, high = limits
    edges = np.array([low, *(round(low + (high - low) * i / bins, DIGITS) for i in range(1, bins)), high])
    if not (np.diff(edges) > 0).all():  # values that differ less than the digits show
        edges = np.array([low + (high - low) * i / bins for i in range(bins + 1)])
    counts, _ = np.histogram(values, bins=edges)
    return {"edges": edges.tolist(), "counts": counts.tolist()}


def _attempts(table: RolloutTable, threshold: float) -> dict[str, Any]:
    found = attempts(table, threshold)
    return {
        "pass_threshold": found.threshold,
        "pass_tasks": found.tasks,
        "pass_tasks_left_out": found.left_out,
        "pass_at_k": _points(found.pass_at_k),
        "reward_at_k": _points(found.reward_at_k),
    }


def _points(values: list[float]) -> list[dict[str, Any]]:
    return [{"k": k, "value": value} for k, value in enumerate(values, 1) if math.isfinite(value)]


# ---- plan and progress -----------------------------------------------------------------------------------------------
def _coverage(runs: tuple[ViewedRun, ...], selection: Selection, found: Scored) -> Coverage | None:
    """How much of the plans is done; None if any run has no plan."""
    total = Coverage(0, 0, {})
    for run in runs:
        if run.plan.keys is None:
            return None
        mine = found.run == run.number
        done = distinct(RowKeys(found.index[mine], found.rollout[mine]))
        keys = selection.snapshot.tasks
        unmeasured = keys.masked & (keys.run == run.number)
        masked = RowKeys(keys.index[unmeasured], keys.rollout[unmeasured])
        part = coverage(run.plan.keys, done, _failed_keys(selection, run), masked)
        failed = Counter(total.failed) + Counter(part.failed)
        total = Coverage(total.planned + part.planned, total.completed + part.completed, dict(sorted(failed.items())))
    return total


def _failed_keys(selection: Selection, run: ViewedRun) -> list[tuple[RolloutKey, str]]:
    place = selection.snapshot.part(run.number, "failures")
    if place is None:
        return []
    part = place[1]
    task, rollout, kind = part.values("task").numbers, part.values("rollout").numbers, part.values("failure")
    if kind.codes is None:
        return []
    return [
        (RolloutKey(int(key), int(repeat)), kind.vocabulary[code])
        for key, repeat, code in zip(task.tolist(), rollout.tolist(), kind.codes.tolist(), strict=True)
        if code >= 0 and not math.isnan(repeat)
    ]


def _progress(runs: tuple[ViewedRun, ...], done: int | None, planned: int | None) -> dict[str, Any] | None:
    if done is None or planned is None or not any(run.live for run in runs):
        return None
    rate = sum(run.rollouts.rate for run in runs)
    left = max(0, planned - done)
    return {"rate_per_s": rate, "eta_s": left / rate if rate > 0 else None, "done": done, "planned": planned}


# ---- the metrics file ------------------------------------------------------------------------------------------------
def _metrics(runs: tuple[ViewedRun, ...]) -> Any:
    """What the metrics file of a run says about its agents, without the long list of tasks."""
    if len(runs) != 1:
        return None
    path = runs[0].files.metrics
    try:
        status = path.stat()
    except OSError:
        return None
    return _read_metrics(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=4)
def _read_metrics(path: Path, _changed: int, size: int) -> Any:
    """Cached by the time and size of the file."""
    try:
        entries = orjson.loads(path.read_bytes()) if size <= _LARGEST_METRICS else None
    except (OSError, ValueError):
        return None
    if not isinstance(entries, list):
        return None
    return [
        {name: value for name, value in entry.items() if name != "group_level_metrics"}
        for entry in entries
        if isinstance(entry, Mapping)
    ]
