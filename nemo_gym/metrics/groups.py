"""The entry of each task in ``group_level_metrics``: its statistics, counts and rollouts.

Entries are made one after the other, so that a file of any size can be written without holding them all.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np

from nemo_gym.metrics.fields import REWARD
from nemo_gym.metrics.statistics import defined, table_statistics
from nemo_gym.metrics.table import Column, Floats, RolloutTable
from nemo_gym.schemas.rows import ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME

ROLLOUT_INFOS: Final = "rollout_infos"
_SLAB: Final = 2048  # tasks turned into Python objects at a time

Entry = dict[str, Any]
SampleOf = Callable[[int], Any]


def anonymous_sample(_task: int) -> Entry:
    """The sample where only results are known: a constant of the interface."""
    return {"agent_ref": {"name": "agent"}}


class Slab(NamedTuple):
    """Some tasks that follow each other, with their statistics (NaN where undefined)."""

    start: int  # the range of their rows
    stop: int
    tasks: list[int]
    sizes: list[int]
    names: list[str]
    statistics: Floats


def task_slabs(table: RolloutTable) -> Iterator[Slab]:
    """All tasks in order, a few thousand at a time."""
    starts = table.task_starts()
    names, statistics = table_statistics(table.metrics(), starts)
    ends = np.r_[starts[1:], len(table)]
    for first in range(0, len(starts), _SLAB):
        part = slice(first, first + _SLAB)
        tasks, sizes = table.task[starts[part]].tolist(), (ends - starts)[part].tolist()
        yield Slab(int(starts[first]), int(ends[part][-1]), tasks, sizes, names, statistics[part])


def task_entries(
    table: RolloutTable, *, sample_of: SampleOf = anonymous_sample, expected: Mapping[int, int] | None = None
) -> Iterator[Entry]:
    """One entry per task in order. ``expected``: how many rollouts of a task were planned; default: as many as are."""
    for slab in task_slabs(table):
        infos = iter(rollout_infos(table, slab.start, slab.stop))
        for task, size, row in zip(slab.tasks, slab.sizes, slab.statistics.tolist(), strict=True):
            planned = size if expected is None else expected.get(task, size)
            head = entry_head(task, defined(slab.names, row), sample_of(task), completion(size, planned))
            yield head | {ROLLOUT_INFOS: list(islice(infos, size))}


def entry_head(task: int, statistics: Mapping[str, float], sample: Any, counts: Mapping[str, Any]) -> Entry:
    """An entry, still without its rollouts."""
    return {TASK_INDEX_KEY_NAME: task, **statistics, "sample": sample, **counts}


def completion(done: int, expected: int) -> Entry:
    """How much of a task there is."""
    return {
        "num_rollouts": done,
        "expected_num_rollouts": expected,
        "missing_num_rollouts": max(expected - done, 0),
        "reward_profile_completion_pct": 100.0 * done / expected if expected else 100.0,
    }


def rollout_infos(table: RolloutTable, start: int, stop: int) -> list[Entry]:
    """What is known of each rollout in a range of rows; here a field of the record wins over usage."""
    columns = info_columns(table)
    names = ["rollout_id", TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, *columns]
    tasks, rollouts = table.task[start:stop].tolist(), table.rollout[start:stop].tolist()
    ids = [f"{task}:{rollout}" for task, rollout in zip(tasks, rollouts, strict=True)]
    rows = zip(ids, tasks, rollouts, *(column.plain(start, stop) for column in columns.values()), strict=True)
    infos: list[Entry] = [dict(zip(names, row, strict=True)) for row in rows]
    for name, column in columns.items():
        for row in np.flatnonzero(~column.present[start:stop]).tolist():
            del infos[row][name]
    for row, reward in table.odd_rewards.items():
        if start <= row < stop:
            infos[row - start] = _with_reward(infos[row - start], reward)
    return infos


def info_columns(table: RolloutTable) -> dict[str, Column]:
    """The fields of ``rollout_infos`` in their order: reward, usage, the rest of the record."""
    columns = {**table.usage, **table.top}
    first = {REWARD: table.top[REWARD]} if REWARD in table.top else {}
    usage = {name: _beneath(table.top.get(name), column) for name, column in table.usage.items() if name != REWARD}
    return first | usage | {name: column for name, column in columns.items() if name not in first and name not in usage}


def _beneath(top: Column | None, usage: Column) -> Column:
    """A usage column where the record has no number of its own."""
    if top is None:
        return usage
    values = np.where(top.present, top.values, usage.values)
    return Column(values, top.present | usage.present, top.integral and usage.integral)


def _with_reward(info: Entry, reward: Any) -> Entry:
    """A reward that is no number is shown as it was, in its usual place."""
    head = dict(list(info.items())[:3])
    return head | {REWARD: reward} | info
