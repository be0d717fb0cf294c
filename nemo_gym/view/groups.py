"""The rows of a selection as the tables of ``nemo_gym.metrics``, so that the viewer's numbers are the metrics' numbers.

Only rollouts count, never failures. A rollout that is there twice counts once, the later one. Several files are one
run if no rollout is in two of them (shards); otherwise they are runs over the same tasks, and the tasks of each file
count on their own.

Rollouts grouped by task, agent, kind of failure or file, with the statistics of each group.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from nemo_gym.errors import ConfigError, did_you_mean
from nemo_gym.metrics.builder import number_missing
from nemo_gym.metrics.difficulty import SOLVED
from nemo_gym.metrics.fields import NO_INDEX, REWARD
from nemo_gym.metrics.statistics import Stats, describe
from nemo_gym.metrics.table import Column, Floats, Ints, Mask, RolloutTable
from nemo_gym.view.index.reader import ColumnValues
from nemo_gym.view.library import Snapshot
from nemo_gym.view.listing import read_rows
from nemo_gym.view.selection import Selection

_RUN: Final = 2**40  # tasks of a file that has its own


@dataclass(frozen=True)
class Scored:
    """The rollouts of a selection in the order of a table: task, then rollout."""

    codes: Ints  # rows of the snapshot
    task: Ints  # as in the records
    run: Ints
    rollout: Ints
    rewards: Floats  # NaN where there is none
    agents: ColumnValues
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


BY: Final = ("task", "agent", "failure", "file")
SORTS: Final = ("mean", "spread", "key", "count")
_MOST_SHOWN: Final = 64  # rollouts of one task
_MEMBER: Final = ("rollout", "reward", "failure")
_NOBODY: Final = {"agent": "no agent", "failure": "completed"}


@dataclass(frozen=True)
class _Groups:
    """Groups in the order of their keys; the rows of a group are neighbours."""

    names: list[Any]  # key of each group
    codes: Ints  # rows of the snapshot
    starts: Ints
    failed: Mask
    rewards: Floats
    runs: Ints | None = None  # of each group, if tasks of different files are told apart

    @cached_property
    def sizes(self) -> Ints:
        sizes: Ints = np.diff(np.r_[self.starts, len(self.codes)])
        return sizes

    @cached_property
    def column(self) -> Column:
        """The rewards that count."""
        return Column(self.rewards, ~np.isnan(self.rewards) & ~self.failed)


def groups(selection: Selection, *, by: str, sort: str, start: int, stop: int) -> dict[str, Any]:
    """A range of the groups."""
    for name, known in ((by, BY), (sort.removeprefix("-"), SORTS)):
        if name not in known:
            raise ConfigError(f"groups: no '{name}'", hint=did_you_mean(name, known, available="there is"))
    found = _by_task(selection) if by == "task" else _by_text(selection, by)
    version = selection.snapshot.version
    if not len(found.starts):
        return {"version": version, "total": 0, "groups": []}
    stats = describe(found.column, found.starts)
    order = _sorted(found, stats, sort)[start:stop].tolist()
    entries = [_entry(selection, found, stats, group, by) for group in order]
    if by == "task":
        _add_members(selection, found, order, entries)
    return {"version": version, "total": len(found.starts), "groups": entries}


def _by_task(selection: Selection) -> _Groups:
    snapshot = selection.snapshot
    apart = keeps_apart(selection)
    runs = np.array([part.source.run for part in snapshot.parts], np.int64)
    task = np.nan_to_num(selection.values("task").numbers).astype(np.int64)
    run = runs[selection.rows >> 40] if apart else np.zeros(len(task), np.int64)
    order = np.lexsort((selection.values("rollout").numbers, run, task))
    task, run = task[order], run[order]
    new = (task[1:] != task[:-1]) | (run[1:] != run[:-1])
    starts = np.flatnonzero(np.r_[True, new]) if len(task) else np.zeros(0, np.int64)
    return _Groups(
        task[starts].tolist(),
        selection.rows[order],
        starts,
        is_failure(selection)[order],
        selection.values("reward").numbers[order],
        run[starts] if apart else None,
    )


def _by_text(selection: Selection, by: str) -> _Groups:
    values = selection.values(by)
    codes = np.full(len(selection), -1, np.int32) if values.codes is None else values.codes
    places = sorted(range(len(values.vocabulary)), key=values.vocabulary.__getitem__)
    rank = np.empty(len(places) + 1, np.int64)
    rank[places] = np.arange(1, len(places) + 1)
    rank[-1] = 0
    keys = rank[codes]
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.zeros(0, np.int64)
    names = [None, *(values.vocabulary[place] for place in places)]
    return _Groups(
        [names[key] for key in ordered[starts].tolist()],
        selection.rows[order],
        starts,
        is_failure(selection)[order],
        selection.values("reward").numbers[order],
    )


def _sorted(found: _Groups, stats: Stats, sort: str) -> Ints:
    name, sign = sort.removeprefix("-"), -1.0 if sort.startswith("-") else 1.0
    if name == "key":
        order = np.arange(len(found.starts))
        return order if sign > 0 else order[::-1]
    values = {"mean": stats.mean, "spread": stats.std, "count": found.sizes.astype(float)}[name]
    return np.argsort(sign * values, kind="stable")  # NaN comes last


def _entry(selection: Selection, found: _Groups, stats: Stats, group: int, by: str) -> dict[str, Any]:
    start, size = int(found.starts[group]), int(found.sizes[group])
    rows = slice(start, start + size)
    key = found.names[group]
    rewards = found.rewards[rows][~found.failed[rows]]
    rewards = rewards[~np.isnan(rewards)]
    run = None if found.runs is None else selection.snapshot.runs[int(found.runs[group])]
    return {
        "key": key if run is None else f"{run.number}:{key}",
        "label": _label(by, key) + (f" · {run.name}" if run else ""),
        "filter": _filter(by, key, run.name if run else None),
        "question": None,
        "count": size,
        "failed": int(found.failed[rows].sum()),
        "mean": float(stats.mean[group]),
        "min": float(stats.min[group]),
        "max": float(stats.max[group]),
        "std": float(stats.std[group]),
        "solve_rate": float((rewards >= SOLVED).mean()) if len(rewards) else None,
    }


def _add_members(selection: Selection, found: _Groups, order: list[int], entries: list[dict[str, Any]]) -> None:
    """Add the rollouts of each group in short, and its question; one look at the database for all."""
    codes = [
        found.codes[(start := int(found.starts[group])) : start + min(int(found.sizes[group]), _MOST_SHOWN)].tolist()
        for group in order
    ]
    rows = iter(read_rows(selection.snapshot, [code for group in codes for code in group], [*_MEMBER, "question"]))
    for entry, group in zip(entries, codes, strict=True):
        mine = [next(rows) for _ in group]
        questions = [row.pop("question") for row in mine]
        entry["question"] = next(filter(None, questions), None)
        entry["rollouts"] = mine


def members(selection: Selection, codes: Ints) -> list[dict[str, Any]]:
    """The rollouts of a group in short."""
    return read_rows(selection.snapshot, codes.tolist(), _MEMBER)


def _label(by: str, key: Any) -> str:
    if by == "task":
        return f"task {key}"
    return _NOBODY.get(by, "none") if key is None else str(key)


def _filter(by: str, key: Any, file: str | None) -> str:
    """What to filter by in order to see the group."""
    value = "null" if key is None else str(key) if by == "task" else _quoted(str(key))
    own = f"{by} == {value}"
    return own if file is None else f"{own} and file == {_quoted(file)}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
