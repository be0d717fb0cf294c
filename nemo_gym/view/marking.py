"""What people have said about rollouts: saving it, and how often their labels agree with the reward."""

import getpass
from collections import Counter
from typing import Any, Final

import numpy as np
import orjson

from nemo_gym.errors import ConfigError
from nemo_gym.filters.marks import BAD, GOOD, LONGEST_LABEL, Mark, append_mark, mark_of, read_marks
from nemo_gym.metrics.statistics import clustered_wilson
from nemo_gym.schemas.record import REWARD
from nemo_gym.view.library import Snapshot
from nemo_gym.view.listing import line_of, read_record
from nemo_gym.view.selection import Selection, scored

_FIELDS: Final = frozenset({"label", "note", "by"})


def mark_at(snapshot: Snapshot, code: int) -> dict[str, Any] | None:
    """The mark of a rollout; None if it can't have one, because it has no index or is a failed attempt."""
    part, _, line = line_of(snapshot, code)
    record = read_record(line)
    if part.source.kind != "rollouts" or record.key is None:
        return None
    return mark_of(read_marks(part.source.path), record)._asdict()


def save_mark(snapshot: Snapshot, code: int, body: bytes) -> dict[str, Any]:
    """Save what a page sends: ``{"label": …, "note": …, "by": …}``, all of which may be missing or null."""
    part, _, line = line_of(snapshot, code)
    key = read_record(line).key
    if part.source.kind != "rollouts" or key is None:
        raise ConfigError("this rollout can't be marked", hint="only saved rollouts with indices can be marked")
    given = _fields_in(body)
    mark = Mark(given.get("label"), given.get("note"), given.get("by") or _user())
    try:
        return append_mark(part.source.path, key, mark)._asdict()
    except OSError as error:
        raise ConfigError(f"the mark was not saved: {error.strerror}", hint="check the folder of the run") from None


def _fields_in(body: bytes) -> dict[str, str | None]:
    try:
        given = orjson.loads(body)
    except orjson.JSONDecodeError:
        given = None
    if not isinstance(given, dict) or not given.keys() <= _FIELDS:
        raise ConfigError("not a mark", hint="send a JSON object with label, note and by")
    if not all(value is None or isinstance(value, str) for value in given.values()):
        raise ConfigError("label, note and by must be text or null")
    return given


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return None


def marks_of(selection: Selection, threshold: float) -> dict[str, Any]:
    """The labels of a selection with their numbers, and how often good and bad agree with the reward."""
    column = selection.values("label")
    counts: Counter[int] = Counter() if column.codes is None else Counter(column.codes[column.codes >= 0].tolist())
    labels = [[column.vocabulary[code], count] for code, count in counts.most_common()]
    return {"labels": labels, "agreement": _agreement(selection, threshold), "longest_label": LONGEST_LABEL}


def _agreement(selection: Selection, threshold: float) -> dict[str, Any] | None:
    """On which share of the rollouts marked as good or bad the reward says the same; None if there are none."""
    counted = scored(selection)
    labels = Selection(selection.snapshot, counted.codes).values("label")
    if labels.codes is None:
        return None
    numbers = {name: at for at, name in enumerate(labels.vocabulary)}
    is_good, is_bad = (labels.codes == numbers.get(name, -2) for name in (GOOD, BAD))
    judged = (is_good | is_bad) & ~np.isnan(counted.rewards)
    if not judged.any():
        return None
    passes = counted.rewards[judged] >= threshold
    same = passes == is_good[judged]
    _, task = np.unique(counted.task[judged], return_inverse=True)
    interval = clustered_wilson(np.bincount(task, same).astype(np.float64), np.bincount(task).astype(np.float64))
    return {
        "rollouts": int(judged.sum()),
        "share": interval.mean,
        "low": interval.low,
        "high": interval.high,
        "rewarded_but_bad": int((passes & ~same).sum()),
        "unrewarded_but_good": int((~passes & ~same).sum()),
        "reward": REWARD,
    }
