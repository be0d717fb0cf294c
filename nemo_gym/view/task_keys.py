"""Which task every row of a snapshot belongs to, and which rows enter statistics. Decided once for all rows.

Only rollouts count, never failed attempts, and not those whose verdict is not a measurement. Of a rollout that occurs
twice, only the later one counts. Files that share no rollout are shards of one run. Files that overlap are separate
runs over the same tasks, and the tasks of each stay apart. A filter chooses among the rows and changes none of this, so
that the numbers of a selection are numbers of the same tasks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from nemo_gym.metrics.builder import number_missing
from nemo_gym.metrics.table import Floats, Ints, Mask
from nemo_gym.schemas.record import NO_INDEX
from nemo_gym.view.rollout_files import ROW_BITS, Part

_RUN: Final = 2**40  # added to the task index once for each earlier file whose tasks are kept apart


@dataclass(frozen=True)
class TaskKeys:
    """One value for every row of a snapshot, part after part."""

    firsts: Ints  # where each part begins
    index: Ints  # of the task, as in the records
    task: Ints  # unique across files, unlike the index
    rollout: Ints
    run: Ints  # number of the file
    counts: Mask  # whether the row enters statistics
    masked: Mask  # whether it would, if its verdict were a measurement
    apart: bool  # tasks of different files are different tasks

    def places(self, codes: Ints) -> Ints:
        """Where rows of the snapshot are in these arrays."""
        places: Ints = self.firsts[codes >> ROW_BITS] + (codes & ((1 << ROW_BITS) - 1)) - 1
        return places


def task_keys(parts: Sequence[Part]) -> TaskKeys:
    """The task of every row of these parts, and whether the row counts."""
    sizes = [len(part) for part in parts]
    index = _joined([_integers(part.values("task").numbers, 0) for part in parts])
    rollout = _joined([_integers(part.values("rollout").numbers, NO_INDEX) for part in parts])
    run = np.repeat(np.array([part.source.run for part in parts], np.int64), sizes)
    is_rollout = np.repeat(np.array([part.source.kind == "rollouts" for part in parts], np.bool_), sizes)
    rows = np.flatnonzero(is_rollout)
    apart = _overlap(run[rows], index[rows], rollout[rows])
    task = index + run * _RUN if apart else index
    rollout[rows] = number_missing(task[rows], rollout[rows])
    counts = np.zeros(len(task), np.bool_)
    counts[rows[_last_of_each(task[rows], rollout[rows])]] = True
    masked = counts & np.concatenate([np.zeros(0, np.bool_), *map(_is_masked, parts)])
    counts &= ~masked
    return TaskKeys(np.cumsum([0, *sizes[:-1]]), index, task, rollout, run, counts, masked, apart)


def _is_masked(part: Part) -> Mask:
    """Which rows say that they were not measured: in a rollout file, those with a class of failure."""
    codes = part.values("failure").codes
    return np.zeros(len(part), np.bool_) if codes is None else codes >= 0


def _joined(columns: list[Ints]) -> Ints:
    return np.concatenate(columns) if columns else np.zeros(0, np.int64)


def _integers(numbers: Floats, missing: int) -> Ints:
    known = ~np.isnan(numbers)
    values = np.full(len(numbers), missing, np.int64)
    values[known] = numbers[known].astype(np.int64)
    return values


def _overlap(run: Ints, task: Ints, rollout: Ints) -> bool:
    """Whether a key occurs in two runs, or a rollout without one could."""
    if not len(run) or int(run.min()) == int(run.max()):
        return False
    keyed = np.flatnonzero(rollout != NO_INDEX)
    order = keyed[np.lexsort((run[keyed], rollout[keyed], task[keyed]))]
    first, second = order[:-1], order[1:]
    same = (task[first] == task[second]) & (rollout[first] == rollout[second])
    return bool((same & (run[first] != run[second])).any()) or len(keyed) < len(run)


def _last_of_each(task: Ints, rollout: Ints) -> Ints:
    order = np.lexsort((rollout, task))  # stable: of equal keys the later row comes last
    if not len(order):
        return order
    task, rollout = task[order], rollout[order]
    last = np.r_[(task[1:] != task[:-1]) | (rollout[1:] != rollout[:-1]), True]
    return order[last]
