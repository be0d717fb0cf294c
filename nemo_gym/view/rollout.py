"""One rollout in the form that the page gets, two rollouts side by side, and two runs paired by task."""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import numpy as np
import orjson

from nemo_gym.errors import ConfigError
from nemo_gym.io.json import to_json
from nemo_gym.metrics.compare import Pairs, Run, compare
from nemo_gym.metrics.continuity import check_continuity
from nemo_gym.metrics.fields import output_of
from nemo_gym.metrics.table import Ints, RolloutTable
from nemo_gym.schemas.rows import AGENT_REF_KEY_NAME
from nemo_gym.view.groups import members
from nemo_gym.view.library import Snapshot
from nemo_gym.view.listing import id_of, ids_of, line_of, read_record, read_rows
from nemo_gym.view.rollout_files import TASK_CONTENT, decode, encode
from nemo_gym.view.selection import Scored, Selection, is_failure, scored
from nemo_gym.view.timing import rollout_timing

_MOST_IN_GROUP: Final = 256
# Fields in which two equal steps may differ.
_INCIDENTAL: Final = frozenset(
    {
        "call_id",
        "generation_log_probs",
        "generation_sampling",
        "generation_token_ids",
        "id",
        "logprobs",
        "prompt_token_ids",
        "routed_experts",
        "status",
        "tool_call_id",
    }
)


def rollout(selection: Selection, code: int) -> dict[str, Any]:
    """The rollout, and what comes before and after it in a selection."""
    snapshot = selection.snapshot
    part, number, line = line_of(snapshot, code)
    record = read_record(line)
    return {
        "id": id_of(snapshot, code),
        "file": snapshot.runs[part.source.run].name,
        "line": number,
        "record": as_saved(line, record),
        **_neighbours(selection, code),
        "group": members(selection, _group(snapshot, code)),
        "continuity": continuity(record),
        "timing": timing_of(snapshot, code, record),
    }


def timing_of(snapshot: Snapshot, code: int, record: Mapping[str, Any]) -> dict[str, Any]:
    """The waterfall of a rollout whose record is at hand."""
    agent = record.get(AGENT_REF_KEY_NAME)
    name = agent.get("name") if isinstance(agent, Mapping) else None
    return rollout_timing(snapshot, code, name if isinstance(name, str) else None)


def as_saved(line: bytes, record: Mapping[str, Any]) -> orjson.Fragment:
    """The record for a JSON answer: its own bytes, unless they are not valid JSON (NaN)."""
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        with suppress(RecursionError):
            return orjson.Fragment(to_json(record))
        return orjson.Fragment(b'{"error_message": "this record is nested too deeply to be shown"}')
    return orjson.Fragment(line)


def continuity(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Whether the model calls are one growing sequence of tokens; None without token ids."""
    found = check_continuity([item if isinstance(item, Mapping) else {} for item in output_of(record) or ()])
    if not found.calls:
        return None
    breaks = [
        {"item": each.item, "token": each.token, "reason": each.reason, "message": each.message}
        for each in found.breaks
    ]
    return {"ok": found.ok, "breaks": breaks}


def _neighbours(selection: Selection, code: int) -> dict[str, str | None]:
    """The rows around it, and the nearest that went wrong: failed, or with a reward of 0 or less."""
    names = ("previous", "next", "previous_failure", "next_failure")
    found = np.flatnonzero(selection.rows == code)
    if not len(found):
        return dict.fromkeys(names)
    place = int(found[0])
    wrong = np.flatnonzero(is_failure(selection) | (selection.values("reward").numbers <= 0))
    places = (
        place - 1 if place else None,
        place + 1 if place + 1 < len(selection) else None,
        _nearest(wrong[wrong < place], -1),
        _nearest(wrong[wrong > place], 0),
    )
    return {
        name: None if where is None else id_of(selection.snapshot, int(selection.rows[where]))
        for name, where in zip(names, places, strict=True)
    }


def _nearest(places: Ints, which: int) -> int | None:
    return int(places[which]) if len(places) else None


def _group(snapshot: Snapshot, code: int) -> Ints:
    """All attempts at the same task in the same run, by rollout."""
    number, row = decode(code)
    run = snapshot.parts[number].source.run
    task = snapshot.parts[number].values("task").numbers[row - 1]
    codes, repeats = [], []
    for place, part in enumerate(snapshot.parts):
        if part.source.run == run:
            same = np.flatnonzero(part.values("task").numbers == task)
            codes.append(same + encode(place, 1))
            repeats.append(part.values("rollout").numbers[same])
    order = np.argsort(np.concatenate(repeats), kind="stable")
    return np.concatenate(codes)[order][:_MOST_IN_GROUP]


def first_difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> int | None:
    """The index of the first output item in which two rollouts differ; None if they do not."""
    one, other = (output_of(record) or [] for record in (a, b))
    for place, (first, second) in enumerate(zip(one, other, strict=False)):
        if not _is_same_step(first, second):
            return place
    return None if len(one) == len(other) else min(len(one), len(other))


def _is_same_step(a: Any, b: Any) -> bool:
    """Whether two items are equal apart from incidental fields. Not recursive: items may be nested very deeply."""
    pairs = [(a, b)]
    while pairs:
        one, other = pairs.pop()
        if isinstance(one, dict) and isinstance(other, dict):
            names = one.keys() - _INCIDENTAL
            if names != other.keys() - _INCIDENTAL:
                return False
            pairs += [(one[name], other[name]) for name in names]
        elif isinstance(one, list) and isinstance(other, list):
            if len(one) != len(other):
                return False
            pairs += zip(one, other, strict=True)
        elif one != other:
            return False
    return True


def compare_rollouts(selection: Selection, a: int, b: int) -> dict[str, Any]:
    """Both rollouts, and the first item in which they differ."""
    records = [read_record(line_of(selection.snapshot, code)[2]) for code in (a, b)]
    return {
        "a": rollout(selection, a),
        "b": rollout(selection, b),
        "first_difference": {"item": first_difference(*records)},
    }


def compare_runs(
    snapshot: Snapshot, a: Selection, b: Selection, *, sort: str, start: int, stop: int, pair_by: str = "content"
) -> dict[str, Any]:
    """Two runs, paired by task; the tasks in the order of their change."""
    if sort not in {"change", "-change"}:
        raise ConfigError(f"can't sort by '{sort}'", hint="sort=change or sort=-change")
    if pair_by not in {"content", "index"}:
        raise ConfigError(f"can't pair by '{pair_by}'", hint="pair_by=content or pair_by=index")
    first, second = scored(a), scored(b)
    found = compare(*(Run(_by_index(side), _contents(side, snapshot, pair_by)) for side in (first, second)))
    pairs = found.pairs
    change = pairs.mean_b - pairs.mean_a
    order = np.argsort(-change if sort.startswith("-") else change, kind="stable")[start:stop].tolist()
    return {
        "paired_by": found.paired_by,
        "difference": found.difference,
        "interval": list(found.interval) if found.interval else None,
        "better": int((change > 0).sum()),
        "worse": int((change < 0).sum()),
        "same": int((change == 0).sum()),
        "mean_a": found.mean_a,
        "mean_b": found.mean_b,
        "only_a": found.only_a,
        "only_b": found.only_b,
        "total": len(change),
        "tasks": [_pair(snapshot, first, second, pairs, place) for place in order],
    }


def rows_of_run(snapshot: Snapshot, number: int) -> Selection:
    """All rollouts of one file."""
    place = snapshot.part(number, "rollouts")
    if place is None:
        raise ConfigError(f"no file {number}", hint=f"files are numbered from 0 to {len(snapshot.runs) - 1}")
    return Selection(snapshot, np.arange(len(place[1])) + encode(place[0], 1))


def _by_index(found: Scored) -> RolloutTable:
    """The table of one file, with the task indices of the records."""
    return replace(found.table, task=found.index)


def _contents(found: Scored, snapshot: Snapshot, pair_by: str) -> dict[int, int | None] | None:
    """What each task asks, by index."""
    if pair_by == "index":
        return None
    starts = found.table.task_starts()
    numbers = Selection(snapshot, found.codes[starts]).values(TASK_CONTENT).numbers
    return {
        int(index): None if math.isnan(number) else int(number)
        for index, number in zip(found.index[starts].tolist(), numbers.tolist(), strict=True)
    }


def _pair(snapshot: Snapshot, a: Scored, b: Scored, pairs: Pairs, place: int) -> dict[str, Any]:
    before, after = float(pairs.mean_a[place]), float(pairs.mean_b[place])
    tasks = int(pairs.task_a[place]), int(pairs.task_b[place])
    codes = [_codes_of(side, task) for side, task in zip((a, b), tasks, strict=True)]
    return {
        "key": tasks[0],
        "key_b": tasks[1],
        "question": read_rows(snapshot, codes[0][:1], ["question"])[0]["question"],
        "a": ids_of(snapshot, codes[0]),
        "b": ids_of(snapshot, codes[1]),
        "a_mean": before,
        "b_mean": after,
        "change": after - before,
    }


def _codes_of(found: Scored, index: int) -> list[int]:
    low, high = (int(np.searchsorted(found.index, index, side)) for side in ("left", "right"))
    return list(map(int, found.codes[low:high]))
