"""The rows of a selection as the tables of ``nemo_gym.metrics``, so that the viewer's numbers are the metrics' numbers.

Only rollouts count, never failures. A rollout that is there twice counts once, the later one. Several files are one
run if no rollout is in two of them (shards); otherwise they are runs over the same tasks, and the tasks of each file
count on their own.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from nemo_gym.metrics.builder import number_missing
from nemo_gym.metrics.fields import NO_INDEX, REWARD
from nemo_gym.metrics.table import Column, Floats, Ints, Mask, RolloutTable
from nemo_gym.view.library import Snapshot
from nemo_gym.view.selection import Selection
from nemo_gym.view.values import Values

_RUN: Final = 2**40  # tasks of a file that has its own


@dataclass(frozen=True)
class Scored:
    """The rollouts of a selection in the order of a table: task, then rollout."""

    codes: Ints  # rows of the snapshot
    task: Ints  # as in the records
    run: Ints
    rollout: Ints
    rewards: Floats  # NaN where there is none
    agents: Values
    apart: bool  # tasks of different files are different tasks

    @property
    def key(self) -> Ints:
        """What tells tasks apart."""
        return self.task + self.run * _RUN if self.apart else self.task

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, rows: Ints | Mask) -> "Scored":
        """Some of the rows, in the same order."""
        places = np.arange(len(self))[rows]
        return Scored(
            self.codes[places],
            self.task[places],
            self.run[places],
            self.rollout[places],
            self.rewards[places],
            self.agents.take(places),
            self.apart,
        )

    def table(self) -> RolloutTable:
        """For ``nemo_gym.metrics``."""
        present = ~np.isnan(self.rewards)
        top = {REWARD: Column(self.rewards, present)} if present.any() else {}
        return RolloutTable(self.key, self.rollout, top, {}, {})


def scored(selection: Selection) -> Scored:
    """The rollouts among the rows of a selection."""
    snapshot = selection.snapshot
    run_of, kind_of = _owners(snapshot)
    owner = selection.rows >> 40
    codes = np.sort(selection.rows[kind_of[owner]]) if len(kind_of) else selection.rows
    some = Selection(snapshot, codes)
    run = run_of[codes >> 40] if len(run_of) else codes
    task = _integers(some.values("task").numbers, 0)
    rollout = _integers(some.values("rollout").numbers, NO_INDEX)
    apart = _overlap(run, task, rollout)
    rollout = number_missing(task + run * _RUN if apart else task, rollout)
    order = _last_of_each(task + run * _RUN if apart else task, rollout)
    rewards, agents = some.values(REWARD).numbers, some.values("agent")
    return Scored(codes[order], task[order], run[order], rollout[order], rewards[order], agents.take(order), apart)


def keeps_apart(selection: Selection) -> bool:
    """Whether tasks of different files are different tasks."""
    return len(selection.snapshot.runs) > 1 and scored(selection).apart


def is_failure(selection: Selection) -> Mask:
    """Which rows are failed attempts."""
    _, kind_of = _owners(selection.snapshot)
    failed = selection.values("failure").codes
    of_sidecar = ~kind_of[selection.rows >> 40] if len(kind_of) else np.zeros(0, np.bool_)
    return of_sidecar if failed is None else of_sidecar | (failed >= 0)


def _owners(snapshot: Snapshot) -> tuple[Ints, Mask]:
    """For each part its run, and whether it holds rollouts."""
    runs = np.array([part.source.run for part in snapshot.parts], np.int64)
    return runs, np.array([part.source.kind == "rollouts" for part in snapshot.parts], np.bool_)


def _integers(numbers: Floats, missing: int) -> Ints:
    known = ~np.isnan(numbers)
    values = np.full(len(numbers), missing, np.int64)
    values[known] = numbers[known].astype(np.int64)
    return values


def _overlap(run: Ints, task: Ints, rollout: Ints) -> bool:
    """Whether a key occurs in two runs."""
    if not len(run) or int(run[0]) == int(run[-1]):  # rows are in the order of runs
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
