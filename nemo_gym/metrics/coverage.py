"""How much of a plan the numbers cover: planned, completed, failed and why. Printed beside every mean."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nemo_gym.metrics.table import RowKeys
from nemo_gym.schemas.rows import RolloutKey


@dataclass(frozen=True, slots=True)
class Coverage:
    """Counts of rollouts. A rollout that failed and later succeeded is completed."""

    planned: int
    completed: int
    failed: Mapping[str, int] = field(default_factory=dict)  # by class of the last failure

    @property
    def pending(self) -> int:
        return max(0, self.planned - self.completed - sum(self.failed.values()))

    @property
    def percent(self) -> float:
        return 100.0 * self.completed / self.planned if self.planned else 100.0

    def as_dict(self) -> dict[str, Any]:
        return {
            "planned": self.planned,
            "completed": self.completed,
            "failed": dict(self.failed),
            "pending": self.pending,
            "completed_pct": self.percent,
        }

    def __str__(self) -> str:
        text = f"{self.completed} of {self.planned} rollouts completed ({self.percent:.1f} %)"
        if self.failed:
            classes = ", ".join(f"{name} {count}" for name, count in sorted(self.failed.items()))
            text += f", {sum(self.failed.values())} failed ({classes})"
        return f"{text}, {self.pending} not run" if self.pending else text


def coverage(planned: RowKeys, completed: RowKeys, failures: Iterable[tuple[RolloutKey, str]]) -> Coverage:
    """Coverage of a plan; of several failures of a rollout the last one counts. Keys outside the plan do not."""
    planned, completed = distinct(planned), distinct(completed)
    both = len(planned.task) + len(completed.task) - len(distinct(_joined(planned, completed)).task)
    last = {key: cause for key, cause in failures if _has(planned, key) and not _has(completed, key)}
    return Coverage(len(planned.task), both, dict(sorted(Counter(last.values()).items())))


def distinct(keys: RowKeys) -> RowKeys:
    """The keys in order, each once."""
    order = np.lexsort((keys.rollout, keys.task))
    task, rollout = keys.task[order], keys.rollout[order]
    first = np.r_[True, (task[1:] != task[:-1]) | (rollout[1:] != rollout[:-1])][: len(task)]
    return RowKeys(task[first], rollout[first])


def _joined(a: RowKeys, b: RowKeys) -> RowKeys:
    return RowKeys(np.concatenate([a.task, b.task]), np.concatenate([a.rollout, b.rollout]))


def _has(keys: RowKeys, key: RolloutKey) -> bool:
    """Whether a key is among these, which are in order."""
    low, high = (int(np.searchsorted(keys.task, key.task, side)) for side in ("left", "right"))
    place = low + int(np.searchsorted(keys.rollout[low:high], key.rollout))
    return place < high and int(keys.rollout[place]) == key.rollout
