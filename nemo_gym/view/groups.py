"""Rollouts grouped by task or by the values of any other column, with the statistics of each group.

A group has a key; what it is called, and the filter that shows it, follow from the key (``static/groups.js``).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from nemo_gym.errors import ConfigError, did_you_mean
from nemo_gym.filters.columns import PREVIEWS
from nemo_gym.metrics.statistics import Stats, describe
from nemo_gym.metrics.table import Column, Floats, Ints, Mask
from nemo_gym.schemas.record import PASS_THRESHOLD, REWARD
from nemo_gym.view.listing import read_listed
from nemo_gym.view.selection import Selection, is_failure

BY: Final = ("task", "agent", "failure", "file")  # what is offered first
SORTS: Final = ("mean", "spread", "key", "count")
MOST_MEMBERS: Final = 64  # rollouts of one task
MEMBER: Final = ("rollout", "reward", "failure")  # what the page shows of each rollout of a group
UNNAMED: Final = {"agent": "no agent", "failure": "completed"}


@dataclass(frozen=True)
class _Groups:
    """Groups in the order of their keys; the rows of a group are neighbours."""

    names: list[Any]  # key of each group
    codes: Ints  # rows of the snapshot
    starts: Ints
    failed: Mask
    column: Column  # the rewards; present where the row enters statistics
    runs: Ints | None = None  # the file of each group, if tasks of different files are different tasks

    @cached_property
    def sizes(self) -> Ints:
        sizes: Ints = np.diff(np.r_[self.starts, len(self.codes)])
        return sizes

    def rewards(self, rows: slice) -> Floats:
        return self.column.values[rows][self.column.known[rows]]


def groups(
    selection: Selection, *, by: str, sort: str, start: int, stop: int, threshold: float = PASS_THRESHOLD
) -> dict[str, Any]:
    """A range of the groups, ``start`` to ``stop`` in the order of ``sort``; a minus in front of it reverses the order.

    ``threshold`` is the lowest reward with which a rollout solves its task.
    """
    columns = [
        name for name in selection.snapshot.columns if name not in PREVIEWS
    ]  # of these only the beginning is known
    for name, known in ((by, columns), (sort.removeprefix("-"), SORTS)):
        if name not in known:
            raise ConfigError(f"can't group or sort by '{name}'", hint=did_you_mean(name, known, available="there is"))
    found = _by_task(selection) if by == "task" else _by_value(selection, by)
    version = selection.snapshot.version
    if not len(found.starts):
        return {"version": version, "total": 0, "groups": []}
    stats = describe(found.column, found.starts)
    order = _sorted(found, stats, sort)[start:stop].tolist()
    entries = [_named(selection, found, group) | _numbers(found, stats, group, threshold) for group in order]
    if by == "task":
        _add_members(selection, found, order, entries)
    return {"version": version, "total": len(found.starts), "groups": entries}


def _by_task(selection: Selection) -> _Groups:
    keys = selection.snapshot.tasks
    places = keys.places(selection.rows)
    task, run, index = keys.task[places], keys.run[places], keys.index[places]
    order = np.lexsort((selection.values("rollout").numbers, run, index))
    task = task[order]
    starts = np.flatnonzero(np.r_[True, task[1:] != task[:-1]]) if len(task) else np.zeros(0, np.int64)
    return _grouped(
        selection, order, starts, index[order][starts].tolist(), runs=run[order][starts] if keys.apart else None
    )


def _by_value(selection: Selection, by: str) -> _Groups:
    """Rows without a value come first, then numbers, then text."""
    values, fact = selection.values(by), selection.snapshot.columns[by]
    kind = np.where(np.isnan(values.numbers), 0, 1)
    order_of = np.where(kind == 1, values.numbers, 0.0)
    if values.codes is not None:
        places = sorted(range(len(values.vocabulary)), key=values.vocabulary.__getitem__)
        rank = np.empty(len(places))
        rank[places] = np.arange(len(places))
        texts = np.flatnonzero(values.codes >= 0)
        kind[texts], order_of[texts] = 2, rank[values.codes[texts]]
    order = np.lexsort((order_of, kind))
    ordered, kinds = order_of[order], kind[order]
    changes = (ordered[1:] != ordered[:-1]) | (kinds[1:] != kinds[:-1])
    starts = np.flatnonzero(np.r_[True, changes]) if len(order) else np.zeros(0, np.int64)
    boolean = fact.boolean and not fact.number and not fact.text
    names: list[Any] = []
    for row in order[starts].tolist():
        number = float(values.numbers[row])
        text = None if values.codes is None or kind[row] != 2 else values.vocabulary[values.codes[row]]
        names.append(text if kind[row] == 2 else None if kind[row] == 0 else bool(number) if boolean else number)
    return _grouped(selection, order, starts, names)


def _grouped(selection: Selection, order: Ints, starts: Ints, names: list[Any], *, runs: Ints | None = None) -> _Groups:
    keys = selection.snapshot.tasks
    rewards = selection.values(REWARD).numbers
    counts = keys.counts[keys.places(selection.rows)] & ~np.isnan(rewards)
    column = Column(rewards[order], counts[order])
    return _Groups(names, selection.rows[order], starts, is_failure(selection)[order], column, runs)


def _sorted(found: _Groups, stats: Stats, sort: str) -> Ints:
    name, sign = sort.removeprefix("-"), -1.0 if sort.startswith("-") else 1.0
    if name == "key":
        order = np.arange(len(found.starts))
        return order if sign > 0 else order[::-1]
    values = {"mean": stats.mean, "spread": stats.std, "count": found.sizes.astype(float)}[name]
    return np.argsort(sign * values, kind="stable")  # NaN comes last


def _named(selection: Selection, found: _Groups, group: int) -> dict[str, Any]:
    run = None if found.runs is None else selection.snapshot.runs[int(found.runs[group])]
    return {"key": found.names[group], "file": run.name if run else None, "question": None}


def _numbers(found: _Groups, stats: Stats, group: int, threshold: float) -> dict[str, Any]:
    start, size = int(found.starts[group]), int(found.sizes[group])
    rows = slice(start, start + size)
    rewards = found.rewards(rows)
    return {
        "count": size,
        "failed": int(found.failed[rows].sum()),
        "mean": float(stats.mean[group]),
        "min": float(stats.min[group]),
        "max": float(stats.max[group]),
        "std": float(stats.std[group]),
        "solve_rate": float((rewards >= threshold).mean()) if len(rewards) else None,
    }


def _add_members(selection: Selection, found: _Groups, order: list[int], entries: list[dict[str, Any]]) -> None:
    """Add the rollouts and the question of each group, with one query for all groups."""
    codes = [
        found.codes[(start := int(found.starts[group])) : start + min(int(found.sizes[group]), MOST_MEMBERS)].tolist()
        for group in order
    ]
    rows = iter(read_listed(selection.snapshot, [code for group in codes for code in group], [*MEMBER, "question"]))
    for entry, group in zip(entries, codes, strict=True):
        mine = [next(rows) for _ in group]
        questions = [row.pop("question") for row in mine]
        entry["question"] = next(filter(None, questions), None)
        entry["rollouts"] = mine
