"""Rollouts grouped by task, agent, kind of failure or file, with the statistics of each group."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from nemo_gym.errors import ConfigError, did_you_mean
from nemo_gym.metrics.fields import PASS_THRESHOLD, REWARD
from nemo_gym.metrics.statistics import Stats, describe
from nemo_gym.metrics.table import Column, Floats, Ints, Mask
from nemo_gym.view.listing import read_rows
from nemo_gym.view.selection import Selection, is_failure

BY: Final = ("task", "agent", "failure", "file")
SORTS: Final = ("mean", "spread", "key", "count")
_MOST_SHOWN: Final = 64  # rollouts of one task
_MEMBER: Final = ("rollout", "reward", "failure")
_UNNAMED: Final = {"agent": "no agent", "failure": "completed"}


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
    """A range of the groups. ``threshold`` is the lowest reward with which a rollout solves its task."""
    for name, known in ((by, BY), (sort.removeprefix("-"), SORTS)):
        if name not in known:
            raise ConfigError(f"can't group or sort by '{name}'", hint=did_you_mean(name, known, available="there is"))
    found = _by_task(selection) if by == "task" else _by_text(selection, by)
    version = selection.snapshot.version
    if not len(found.starts):
        return {"version": version, "total": 0, "groups": []}
    stats = describe(found.column, found.starts)
    order = _sorted(found, stats, sort)[start:stop].tolist()
    entries = [_named(selection, found, group, by) | _numbers(found, stats, group, threshold) for group in order]
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


def _by_text(selection: Selection, by: str) -> _Groups:
    values = selection.values(by)
    codes = np.full(len(selection), -1, np.int32) if values.codes is None else values.codes
    places = sorted(range(len(values.vocabulary)), key=values.vocabulary.__getitem__)
    # Rows without a value have the code -1, which as an index means the last place: they get rank 0 and come first.
    rank = np.empty(len(places) + 1, np.int64)
    rank[places] = np.arange(1, len(places) + 1)
    rank[-1] = 0
    keys = rank[codes]
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.zeros(0, np.int64)
    names = [None, *(values.vocabulary[place] for place in places)]
    return _grouped(selection, order, starts, [names[key] for key in ordered[starts].tolist()])


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


def _named(selection: Selection, found: _Groups, group: int, by: str) -> dict[str, Any]:
    key = found.names[group]
    run = None if found.runs is None else selection.snapshot.runs[int(found.runs[group])]
    return {
        "key": key if run is None else f"{run.number}:{key}",
        "label": _label(by, key) + (f" · {run.name}" if run else ""),
        "filter": _filter(by, key, run.name if run else None),
        "question": None,
    }


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
    """The rollouts of a group as the page shows them: index, reward, failure."""
    return read_rows(selection.snapshot, codes.tolist(), _MEMBER)


def _label(by: str, key: Any) -> str:
    if by == "task":
        return f"task {key}"
    return _UNNAMED.get(by, "none") if key is None else str(key)


def _filter(by: str, key: Any, file: str | None) -> str:
    """The filter that shows the group."""
    value = "null" if key is None else str(key) if by == "task" else _quoted(str(key))
    own = f"{by} == {value}"
    return own if file is None else f"{own} and file == {_quoted(file)}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
