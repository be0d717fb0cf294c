"""Two runs over the same tasks: is one better, by how much, and on which tasks; and how rewards changed.

``compare`` pairs tasks by what they ask, because the same index may be another task in another run. Of tasks that ask
the same, the first is paired with the first, the second with the second. Only paired tasks are compared, each with the
mean of its rollouts, so that neither the number of repeats nor a task that one run lacks favours a side. The interval
is over pairs.

``reward_changes`` compares two scorings of the same rollouts, and pairs them by key.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nemo_gym.errors import counted
from nemo_gym.io.json import read_blocks
from nemo_gym.metrics.statistics import bootstrap_means, describe, passing
from nemo_gym.metrics.table import Floats, Ints, Mask, RolloutTable
from nemo_gym.schemas.call_tokens import RolloutFormatError
from nemo_gym.schemas.record import PASS_THRESHOLD, REWARD, Record, outline_of

SHOWN: Final = 10
_MATCHED: Final = {"content": ", matched by what they ask", "index": ", matched by index"}


class RewardChange(NamedTuple):
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
    changes: Sequence[RewardChange]  # the most frequent first

    def text(self) -> str:
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
        RewardChange(old_reward, new_reward, count)
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
    return np.where(column.known, column.values, np.nan)


# ---- two runs --------------------------------------------------------------------------------------------------------

PairBy = Literal["content", "index"]
_HALF: Final = 0.5
_BY_INDEX: Final = -1  # stands for the content of a task that was not recorded
_LABEL: Final = np.dtype([("content", np.int64), ("place", np.int64)])


class Pairs(NamedTuple):
    """The tasks that were paired, in the order of the first run, with the mean of each side."""

    task_a: Ints
    task_b: Ints
    mean_a: Floats
    mean_b: Floats

    @property
    def change(self) -> Floats:
        """How much better the second run is at each task."""
        with np.errstate(invalid="ignore"):  # infinite rewards on both sides
            change: Floats = self.mean_b - self.mean_a
        return change


@dataclass(frozen=True, slots=True, repr=False)
class RunComparison:
    """The difference b - a. The interval is None with fewer than two pairs."""

    field: str
    pairs: Pairs
    only_a: int
    only_b: int
    mean_a: float
    mean_b: float
    difference: float
    interval: tuple[float, float] | None
    gained: list[int]  # tasks (by their index in a) that b solves and a does not
    lost: list[int]  # the other way round
    paired_by: PairBy

    @property
    def tasks(self) -> int:
        return len(self.pairs.task_a)

    @property
    def significant(self) -> bool:
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]

    def as_dict(self) -> dict[str, Any]:
        """The summary as ``ng_compare`` prints it with ``+json=true``."""
        low, high = self.interval or (None, None)
        return {
            "field": self.field,
            "paired_by": self.paired_by,
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

    def __repr__(self) -> str:
        return self.text()

    def text(self) -> str:
        """The outcome in a few lines."""
        if not self.tasks:
            return f"no task has a {self.field} in both runs{_MATCHED[self.paired_by]}"
        interval = "too few tasks to say"
        if self.interval:
            interval = f"95 % interval [{self.interval[0]:+.4g}, {self.interval[1]:+.4g}]"
        verdict = "significant" if self.significant else "could be chance"
        others = f"({self.only_a} only in a, {self.only_b} only in b)"
        means = f"a {self.mean_a:.4g}, b {self.mean_b:.4g}, difference {self.difference:+.4g}"
        lines = [
            f"{counted(self.tasks, 'task')} in both runs{_MATCHED[self.paired_by]} {others}",
            f"{self.field}: {means}, {interval}: {verdict}",
            f"newly solved: {len(self.gained)}{_some(self.gained)}",
            f"no longer solved: {len(self.lost)}{_some(self.lost)}",
        ]
        return "\n".join(lines)


def _some(tasks: Sequence[int]) -> str:
    if not tasks:
        return ""
    more = ", …" if len(tasks) > SHOWN else ""
    return f" (tasks {', '.join(map(str, tasks[:SHOWN]))}{more})"


class ComparedRun(NamedTuple):
    """A run to compare. ``contents``: what each task asks (``prompt_number``) by index; None pairs by index."""

    table: RolloutTable
    contents: Mapping[int, int | None] | None = None


class _PerTask(NamedTuple):
    task: Ints
    label: NDArray[Any]
    mean: Floats
    solved: Mask


def compare_runs(
    a: ComparedRun, b: ComparedRun, *, field: str = REWARD, threshold: float = PASS_THRESHOLD
) -> RunComparison:
    """Compare one field of two runs. A task counts as solved if at least half of its rollouts reach the threshold."""
    first, second = _per_task(a, field, threshold), _per_task(b, field, threshold)
    _, in_a, in_b = np.intersect1d(first.label, second.label, assume_unique=True, return_indices=True)
    # The intersection is sorted by label; readers expect the order of the first run.
    order = np.argsort(first.task[in_a], kind="stable")
    in_a, in_b = in_a[order], in_b[order]
    pairs = Pairs(first.task[in_a], second.task[in_b], first.mean[in_a], second.mean[in_b])
    difference = pairs.change
    low, high = bootstrap_means(difference[:, None], np.ones((len(difference), 1)))[:, 0].tolist()
    before, after = first.solved[in_a], second.solved[in_b]
    return RunComparison(
        field=field,
        pairs=pairs,
        only_a=len(first.task) - len(difference),
        only_b=len(second.task) - len(difference),
        mean_a=_mean(pairs.mean_a),
        mean_b=_mean(pairs.mean_b),
        difference=_mean(difference),
        interval=(low, high) if np.isfinite([low, high]).all() else None,
        gained=pairs.task_a[~before & after].tolist(),
        lost=pairs.task_a[before & ~after].tolist(),
        paired_by="index" if a.contents is None or b.contents is None else "content",
    )


def _per_task(run: ComparedRun, field: str, threshold: float) -> _PerTask:
    column = run.table.metrics().get(field)
    starts = run.table.task_starts()
    if column is None or not len(starts):
        return _PerTask(np.zeros(0, np.int64), np.zeros(0, _LABEL), np.zeros(0), np.zeros(0, np.bool_))
    count, passed = passing(column, starts, threshold)
    scored = count > 0
    solved = passed >= _HALF * count
    task = run.table.task[starts]
    labels = _labels(task, run.contents)
    return _PerTask(task[scored], labels[scored], describe(column, starts).mean[scored], solved[scored])


def _labels(task: Ints, contents: Mapping[int, int | None] | None) -> NDArray[Any]:
    """What tasks are paired by: their content and, of tasks with equal content, which of them it is."""
    labels = np.empty(len(task), _LABEL)
    seen: Counter[int] = Counter()
    for row, index in enumerate(task.tolist()):
        content = None if contents is None else contents.get(index)
        labels[row] = (_BY_INDEX, index) if content is None else (content, seen[content])
        if content is not None:
            seen[content] += 1
    return labels


def read_contents(path: Path) -> dict[int, int | None]:
    """What each task of a rollout file asks, by index. Lines that cannot be read are skipped."""
    contents: dict[int, int | None] = {}
    for block in read_blocks(path):
        for line in bytes(block).split(b"\n"):
            with suppress(RolloutFormatError):
                # Only the first line of a task is parsed as a whole.
                task = Record(outline_of(line)).task or 0
                if task not in contents:
                    contents[task] = Record.parse(line).prompt_number
    return contents


def _mean(values: Floats) -> float:
    with np.errstate(invalid="ignore"):  # infinite rewards of both signs
        return float(np.mean(values)) if len(values) else float("nan")
