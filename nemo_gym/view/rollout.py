"""One rollout in the form that the page gets, two rollouts side by side, and two runs paired by task."""

import math
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, get_args

import numpy as np
import orjson

from nemo_gym.errors import ConfigError
from nemo_gym.io.json import to_json
from nemo_gym.metrics.compare import ComparedRun, PairBy, Pairs, RunComparison, compare_runs
from nemo_gym.metrics.continuity import check_continuity
from nemo_gym.metrics.table import Ints
from nemo_gym.schemas.record import Record
from nemo_gym.view.by_field import Side, fields_of_two
from nemo_gym.view.groups import MEMBER
from nemo_gym.view.library import Snapshot
from nemo_gym.view.listing import id_of, ids_of, line_of, read_listed, read_record
from nemo_gym.view.marking import mark_at
from nemo_gym.view.rollout_files import TASK_CONTENT, decode_row, encode_row
from nemo_gym.view.selection import Scored, Selection, count_failures, is_failure, scored
from nemo_gym.view.timing import rollout_timing

MOST_IN_GROUP: Final = 256
CHANGE_ORDERS: Final = ("change", "-change")  # of the tasks of two runs; the first is the default
PAIRINGS: Final[tuple[str, ...]] = get_args(PairBy)
# Fields in which two equal steps may differ.
INCIDENTAL: Final = frozenset(
    {
        "call_id",
        "generation_log_probs",
        "generation_sampling",
        "generation_token_ids",
        "id",
        "logprobs",
        "prompt_token_ids",
        "prompt_token_ids_added",
        "prompt_tokens_kept",
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
        "mark": mark_at(snapshot, code),
        **_neighbours(selection, code),
        "group": read_listed(snapshot, _group(snapshot, code).tolist(), MEMBER),
        "continuity": continuity(record),
        "timing": rollout_timing(snapshot, code, record.agent),
    }


def as_saved(line: bytes, record: Record) -> orjson.Fragment:
    """The record for a JSON reply: its own bytes, unless they are not valid JSON (NaN)."""
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        with suppress(RecursionError):
            return orjson.Fragment(to_json(record.fields))
        return orjson.Fragment(b'{"error_message": "this record is nested too deeply to be shown"}')
    return orjson.Fragment(line)


def continuity(record: Record) -> dict[str, Any] | None:
    """Whether the model calls are one growing sequence of tokens; None without token ids."""
    found = check_continuity(record.items)
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
    number, row = decode_row(code)
    run = snapshot.parts[number].source.run
    task = snapshot.parts[number].values("task").numbers[row - 1]
    codes, repeats = [], []
    for place, part in enumerate(snapshot.parts):
        if part.source.run == run:
            same = np.flatnonzero(part.values("task").numbers == task)
            codes.append(same + encode_row(place, 1))
            repeats.append(part.values("rollout").numbers[same])
    order = np.argsort(np.concatenate(repeats), kind="stable")
    return np.concatenate(codes)[order][:MOST_IN_GROUP]


def first_difference(a: Record, b: Record) -> dict[str, int | None]:
    """The index of the first item in which two prompts differ, and in which two outputs do; None if they do not."""
    return {"prompt": _differing_item(a.given, b.given), "item": _differing_item(a.output or [], b.output or [])}


def _differing_item(one: list[Any], other: list[Any]) -> int | None:
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
            names = one.keys() - INCIDENTAL
            if names != other.keys() - INCIDENTAL:
                return False
            pairs += [(one[name], other[name]) for name in names]
        elif isinstance(one, list) and isinstance(other, list):
            if len(one) != len(other):
                return False
            pairs += zip(one, other, strict=True)
        elif one != other or isinstance(one, bool) != isinstance(other, bool):  # true is not 1 in JSON
            return False
    return True


def compare_rollouts(selection: Selection, a: int, b: int) -> dict[str, Any]:
    """Both rollouts, and where their prompts and their outputs begin to differ."""
    records = [read_record(line_of(selection.snapshot, code)[2]) for code in (a, b)]
    return {
        "a": rollout(selection, a),
        "b": rollout(selection, b),
        "first_difference": first_difference(*records),
    }


def pair_runs(
    snapshot: Snapshot, a: Selection, b: Selection, *, sort: str, start: int, stop: int, pair_by: str = PAIRINGS[0]
) -> dict[str, Any]:
    """Two runs, paired by task. ``sort`` and the range ``start`` to ``stop`` apply to the tasks in order of change."""
    if sort not in CHANGE_ORDERS:
        raise ConfigError(f"can't sort by '{sort}'", hint=f"sort={' or sort='.join(CHANGE_ORDERS)}")
    first, second, found = _paired(snapshot, a, b, pair_by)
    pairs = found.pairs
    change = pairs.change
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


def _paired(snapshot: Snapshot, a: Selection, b: Selection, pair_by: str) -> tuple[Scored, Scored, RunComparison]:
    if pair_by not in PAIRINGS:
        raise ConfigError(f"can't pair by '{pair_by}'", hint=f"pair_by={' or pair_by='.join(PAIRINGS)}")
    first, second = scored(a), scored(b)
    # The tables have the task indices of the records, because these are the same in both files.
    tables = (replace(side.table, task=side.index) for side in (first, second))
    contents = (_contents(side, snapshot, pair_by) for side in (first, second))
    return first, second, compare_runs(*map(ComparedRun, tables, contents))


def compare_fields(snapshot: Snapshot, a: Selection, b: Selection, *, pair_by: str = PAIRINGS[0]) -> dict[str, Any]:
    """For every column, where the mean of the paired tasks changed; and the failed attempts of both runs by class."""
    first, second, found = _paired(snapshot, a, b, pair_by)
    pairs = zip((first, second), (found.pairs.task_a, found.pairs.task_b), strict=True)
    sides = [Side.of(side, _places_in(tasks, side.index), by_task=True) for side, tasks in pairs]
    failed = [count_failures(each) for each in (a, b)]
    return fields_of_two(snapshot, *sides) | {
        "failures": [
            {"name": name, "counts": [counts.get(name, 0) for counts in failed]}
            for name in sorted({name for counts in failed for name in counts})
        ]
    }


def _places_in(tasks: Ints, index: Ints) -> Ints:
    """Which of the tasks each row belongs to; -1 for none of them."""
    if not len(tasks):
        return np.full(len(index), -1)
    order = np.argsort(tasks)
    places = order[np.minimum(np.searchsorted(tasks, index, sorter=order), len(tasks) - 1)]
    return np.where(tasks[places] == index, places, -1)


def rows_of_run(selection: Selection, number: int) -> Selection:
    """Those rollouts of a selection that are in one file."""
    snapshot = selection.snapshot
    if not 0 <= number < len(snapshot.runs):
        raise ConfigError(f"no file {number}", hint=f"files are numbered from 0 to {len(snapshot.runs) - 1}")
    owner = snapshot.tasks.run[snapshot.tasks.places(selection.rows)]
    return Selection(snapshot, selection.rows[owner == number])


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
        "question": read_listed(snapshot, codes[0][:1], ["question"])[0]["question"],
        "a": ids_of(snapshot, codes[0]),
        "b": ids_of(snapshot, codes[1]),
        "a_mean": before,
        "b_mean": after,
        "change": float(pairs.change[place]),
    }


def _codes_of(found: Scored, index: int) -> list[int]:
    low, high = (int(np.searchsorted(found.index, index, side)) for side in ("left", "right"))
    return list(map(int, found.codes[low:high]))
