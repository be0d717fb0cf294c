"""How the rewards of the same rollouts changed from one file to another. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from nemo_gym.metrics.fields import REWARD
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
