"""How the rewards of the same rollouts changed from one file to another. Pure.

Two runs over the same tasks: is one better, by how much, and on which tasks.

Only tasks that both runs have are compared, each with the mean of its rollouts, so that neither the number of repeats
nor a task that one run lacks favours a side. The interval is over tasks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from nemo_gym.metrics.fields import PASS_THRESHOLD, REWARD
from nemo_gym.metrics.intervals import bootstrap_means
from nemo_gym.metrics.statistics import describe
from nemo_gym.metrics.table import Floats, Ints, RolloutTable

SHOWN: Final = 10


class Change(NamedTuple):
    """A reward that became another one, and how often."""

    old: float
    new: float
    rollouts: int


@dataclass(frozen=True, slots=True)
class RewardChanges:
    """The rewards that both files have, compared."""

    rollouts: int
    changed: int
    mean_old: float
    mean_new: float
    changes: Sequence[Change]  # the most frequent first

    def as_dict(self) -> dict[str, Any]:
        """For a report."""
        return {
            "rollouts": self.rollouts,
            "changed": self.changed,
            "mean_old": self.mean_old,
            "mean_new": self.mean_new,
            "changes": [change._asdict() for change in self.changes],
        }

    def text(self) -> str:
        """A table for the eye."""
        if not self.rollouts:
            return "no rollout has a reward in both files"
        rows = [(f"{c.old:g}", f"{c.new:g}", str(c.rollouts)) for c in self.changes[:SHOWN]]
        rest = sum(change.rollouts for change in self.changes[SHOWN:])
        if rest:
            rows.append(("other", "other", str(rest)))
        lines = [f"{self.changed} of {self.rollouts} rewards changed; mean {self.mean_old:.4g} → {self.mean_new:.4g}"]
        if rows:
            table = [("old", "new", "rollouts"), *rows]
            widths = [max(len(row[column]) for row in table) for column in range(3)]
            lines += [f"  {a:>{widths[0]}} → {b:<{widths[1]}}  {n:>{widths[2]}}" for a, b, n in table]
        return "\n".join(lines)


def reward_changes(old: RolloutTable, new: RolloutTable) -> RewardChanges:
    """Compare the rewards of the rollouts that both have."""
    _, in_old, in_new = np.intersect1d(_keys(old), _keys(new), assume_unique=True, return_indices=True)
    before, after = _rewards(old)[in_old], _rewards(new)[in_new]
    known = ~(np.isnan(before) | np.isnan(after))
    before, after = before[known], after[known]
    pairs, counts = np.unique(
        np.column_stack([before, after])[before != after].reshape(-1, 2), axis=0, return_counts=True
    )
    found = [
        Change(old_reward, new_reward, count)
        for (old_reward, new_reward), count in zip(pairs.tolist(), counts.tolist(), strict=True)
    ]
    return RewardChanges(
        rollouts=len(before),
        changed=int((before != after).sum()),
        mean_old=float(before.mean()) if len(before) else float("nan"),
        mean_new=float(after.mean()) if len(after) else float("nan"),
        changes=sorted(found, key=lambda change: (-change.rollouts, change.old, change.new)),
    )


def _keys(table: RolloutTable) -> Any:
    """The keys as one sortable column."""
    keys = np.empty(len(table), [("task", np.int64), ("rollout", np.int64)])
    keys["task"], keys["rollout"] = table.task, table.rollout
    return keys


def _rewards(table: RolloutTable) -> Floats:
    column = table.top.get(REWARD)
    if column is None:
        return np.full(len(table), np.nan)
    rows: Ints = np.arange(len(table))
    return np.where(column.known[rows], column.values[rows], np.nan)


_HALF: Final = 0.5


@dataclass(frozen=True, slots=True)
class RunComparison:
    """The difference b - a. The interval is None with fewer than two tasks in common."""

    field: str
    tasks: int
    only_a: int
    only_b: int
    mean_a: float
    mean_b: float
    difference: float
    interval: tuple[float, float] | None
    gained: list[int]  # tasks that b solves and a does not
    lost: list[int]  # the other way round

    @property
    def significant(self) -> bool:
        """Whether the interval excludes no difference."""
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]

    def as_dict(self) -> dict[str, Any]:
        """For a report."""
        low, high = self.interval or (None, None)
        return {
            "field": self.field,
            "paired_tasks": self.tasks,
            "only_in_a": self.only_a,
            "only_in_b": self.only_b,
            "mean_a": self.mean_a,
            "mean_b": self.mean_b,
            "difference": self.difference,
            "difference_low": low,
            "difference_high": high,
            "significant": self.significant,
            "gained_tasks": self.gained,
            "lost_tasks": self.lost,
        }


def compare(
    a: RolloutTable, b: RolloutTable, *, field: str = REWARD, threshold: float = PASS_THRESHOLD, seed: int = 0
) -> RunComparison:
    """Compare one field of two runs. A task counts as solved if at least half of its rollouts reach the threshold."""
    tasks_a, means_a, solved_a = _per_task(a, field, threshold)
    tasks_b, means_b, solved_b = _per_task(b, field, threshold)
    both, in_a, in_b = np.intersect1d(tasks_a, tasks_b, assume_unique=True, return_indices=True)
    first, second = means_a[in_a], means_b[in_b]
    difference = second - first
    low, high = bootstrap_means(difference[:, None], np.ones((len(both), 1)), seed=seed)[:, 0].tolist()
    gained, lost = ~solved_a[in_a] & solved_b[in_b], solved_a[in_a] & ~solved_b[in_b]
    return RunComparison(
        field=field,
        tasks=len(both),
        only_a=len(tasks_a) - len(both),
        only_b=len(tasks_b) - len(both),
        mean_a=_mean(first),
        mean_b=_mean(second),
        difference=_mean(difference),
        interval=(low, high) if np.isfinite([low, high]).all() else None,
        gained=both[gained].tolist(),
        lost=both[lost].tolist(),
    )


def _per_task(table: RolloutTable, field: str, threshold: float) -> tuple[Ints, Floats, Any]:
    column = table.metrics().get(field)
    starts = table.task_starts()
    if column is None or not len(starts):
        return np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.bool_)
    known = column.known
    count = np.add.reduceat(known, starts, dtype=np.float64)
    reached = np.add.reduceat(known & (np.where(known, column.values, 0.0) >= threshold), starts, dtype=np.float64)
    kept = count > 0
    return (
        table.task[starts][kept],
        describe(column, starts).mean[kept],
        (reached / np.maximum(count, 1) >= _HALF)[kept],
    )


def _mean(values: Floats) -> float:
    return float(np.mean(values)) if len(values) else float("nan")
