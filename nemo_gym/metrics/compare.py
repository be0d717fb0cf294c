"""Two runs over the same tasks: is one better, by how much, and on which tasks.

Only tasks that both runs have are compared, each with the mean of its rollouts, so that neither the number of repeats
nor a task that one run lacks favours a side. The interval is over tasks.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from nemo_gym.metrics.difficulty import SOLVED
from nemo_gym.metrics.fields import REWARD
from nemo_gym.metrics.intervals import bootstrap_means
from nemo_gym.metrics.statistics import describe
from nemo_gym.metrics.table import Floats, Ints, RolloutTable

_HALF: Final = 0.5


@dataclass(frozen=True, slots=True)
class Comparison:
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
    a: RolloutTable, b: RolloutTable, *, field: str = REWARD, threshold: float = SOLVED, seed: int = 0
) -> Comparison:
    """Compare one field of two runs. A task counts as solved if at least half of its rollouts reach the threshold."""
    tasks_a, means_a, solved_a = _per_task(a, field, threshold)
    tasks_b, means_b, solved_b = _per_task(b, field, threshold)
    both, in_a, in_b = np.intersect1d(tasks_a, tasks_b, assume_unique=True, return_indices=True)
    first, second = means_a[in_a], means_b[in_b]
    difference = second - first
    low, high = bootstrap_means(difference[:, None], np.ones((len(both), 1)), seed=seed)[:, 0].tolist()
    gained, lost = ~solved_a[in_a] & solved_b[in_b], solved_a[in_a] & ~solved_b[in_b]
    return Comparison(
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
