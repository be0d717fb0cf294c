"""The older form of a reward profile: each task with the average of its rewards, and how many passed a threshold.

Tasks are matched by index: the one a row carries, else the number of the row among the distinct rows of the file, which
is how rollouts were numbered when they were planned.
"""

from collections.abc import Iterator
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

from nemo_gym.io.files import replacing
from nemo_gym.io.json import to_json
from nemo_gym.metrics.aggregate import Entry
from nemo_gym.metrics.fields import REWARD
from nemo_gym.metrics.profile import read_records, read_table
from nemo_gym.metrics.statistics import describe, passing
from nemo_gym.metrics.table import Column, RolloutTable
from nemo_gym.schemas.rows import TASK_INDEX_KEY_NAME


class TaskProfile(NamedTuple):
    """How many tasks were written, and the numbers of the rollouts."""

    tasks: int
    table: RolloutTable


def profile_tasks(tasks: Path, rollouts: Path, output: Path, *, pass_threshold: float | None = None) -> TaskProfile:
    """Write every task that has rewards, with their statistics."""
    table = read_table(rollouts)
    rewards = task_rewards(table, pass_threshold)
    written = 0
    with replacing(output) as file:
        for index, row in _numbered(tasks):
            if index in rewards:
                file.write(to_json({**row, **rewards[index]}) + b"\n")
                written += 1
    return TaskProfile(written, table)


def task_rewards(table: RolloutTable, pass_threshold: float | None = None) -> dict[int, Entry]:
    """The statistics of the rewards of each task that has any."""
    reward = table.top.get(REWARD)
    starts = table.task_starts()
    if reward is None:
        return {}
    known = reward.known
    # Without a threshold only the counts are used, which do not depend on it.
    count, passed = passing(reward, starts, 0.0 if pass_threshold is None else pass_threshold)
    stats = describe(Column(reward.values, known), starts)
    entries = {
        task: {"avg_reward": mean, "std_reward": 0.0 if isnan(std) else std, "min_reward": low, "max_reward": high}
        | {"total_samples": total}
        for task, mean, std, low, high, total in zip(
            *(part.tolist() for part in (table.task[starts], stats.mean, stats.std, stats.min, stats.max, count)),
            strict=True,
        )
        if total
    }
    if pass_threshold is not None:
        for task, number in zip(table.task[starts].tolist(), passed.tolist(), strict=True):
            if task in entries:
                entries[task] |= _pass_rate(number, entries[task]["total_samples"], pass_threshold)
    return entries


def _pass_rate(passed: int, total: int, threshold: float) -> Entry:
    return {
        "pass_rate": passed / total,
        "pass_rate_total": total,
        "pass_rate_passed": passed,
        "pass_threshold": threshold,
    }


def _numbered(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each distinct task once, with its index."""
    numbers: dict[bytes, int] = {}
    seen: set[int] = set()
    for _, text, row in read_records(path, "inputs"):
        index = row.get(TASK_INDEX_KEY_NAME)
        if not isinstance(index, int):
            index = numbers.setdefault(text, len(numbers))
        if index not in seen:
            seen.add(index)
            yield index, row
