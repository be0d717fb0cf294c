"""Two rollouts side by side, and two runs paired by task."""

from typing import Any

import numpy as np

from nemo_gym.errors import ConfigError
from nemo_gym.metrics.compare import compare
from nemo_gym.metrics.fields import REWARD
from nemo_gym.metrics.statistics import describe
from nemo_gym.metrics.table import Column, Floats, Ints
from nemo_gym.view.library import Snapshot
from nemo_gym.view.rollout import first_difference, rollout
from nemo_gym.view.rows import ids_of, line_of, read_record, read_rows
from nemo_gym.view.selection import Selection, encode
from nemo_gym.view.tables import Scored, scored


def compare_rollouts(selection: Selection, a: int, b: int) -> dict[str, Any]:
    """Both, and where they part."""
    records = [read_record(line_of(selection.snapshot, code)[2]) for code in (a, b)]
    return {
        "a": rollout(selection, a),
        "b": rollout(selection, b),
        "first_difference": {"item": first_difference(*records)},
    }


def compare_runs(snapshot: Snapshot, a: int, b: int, *, sort: str, start: int, stop: int) -> dict[str, Any]:
    """Two files over the same tasks, and the tasks in the order of their change."""
    if sort not in {"change", "-change"}:
        raise ConfigError(f"can't sort by '{sort}'", hint="sort=change or sort=-change")
    first, second = (scored(_run(snapshot, number)) for number in (a, b))
    found = compare(first.table(), second.table(), field=REWARD)
    tasks_a, means_a, tasks_b, means_b = *_means(first), *_means(second)
    both, in_a, in_b = np.intersect1d(tasks_a, tasks_b, assume_unique=True, return_indices=True)
    change = means_b[in_b] - means_a[in_a]
    order = np.argsort(-change if sort.startswith("-") else change, kind="stable")
    shown = [
        _pair(snapshot, first, second, int(both[place]))
        | {
            "a_mean": float(means_a[in_a[place]]),
            "b_mean": float(means_b[in_b[place]]),
            "change": float(change[place]),
        }
        for place in order[start:stop].tolist()
    ]
    return {
        "difference": found.difference,
        "interval": list(found.interval) if found.interval else None,
        "better": int((change > 0).sum()),
        "worse": int((change < 0).sum()),
        "same": int((change == 0).sum()),
        "mean_a": found.mean_a,
        "mean_b": found.mean_b,
        "only_a": found.only_a,
        "only_b": found.only_b,
        "total": len(both),
        "tasks": shown,
    }


def _run(snapshot: Snapshot, number: int) -> Selection:
    place = snapshot.part(number, "rollouts")
    if place is None:
        raise ConfigError(f"no file {number}", hint=f"files are numbered from 0 to {len(snapshot.runs) - 1}")
    return Selection(snapshot, np.arange(len(place[1])) + encode(place[0], 1))


def _means(found: Scored) -> tuple[Ints, Floats]:
    """The tasks with a reward, and the mean of each."""
    starts = found.table().task_starts()
    if not len(starts):
        return np.zeros(0, np.int64), np.zeros(0)
    means = describe(Column(found.rewards, ~np.isnan(found.rewards)), starts).mean
    kept = ~np.isnan(means)
    return found.task[starts][kept], means[kept]


def _pair(snapshot: Snapshot, a: Scored, b: Scored, task: int) -> dict[str, Any]:
    codes = [_codes_of(each, task) for each in (a, b)]
    question = read_rows(snapshot, codes[0][:1], ["question"])[0]["question"]
    return {"key": task, "question": question, "a": ids_of(snapshot, codes[0]), "b": ids_of(snapshot, codes[1])}


def _codes_of(found: Scored, task: int) -> list[int]:
    low, high = (int(np.searchsorted(found.task, task, side)) for side in ("left", "right"))
    return list(map(int, found.codes[low:high]))
