"""One rollout as the page gets it: the record as saved, its neighbours, its group, and whether its tokens are whole."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import orjson

from nemo_gym.metrics.continuity import check_continuity
from nemo_gym.metrics.json_text import to_json
from nemo_gym.metrics.table import Ints
from nemo_gym.metrics.transcript import output_of
from nemo_gym.view.groups import members
from nemo_gym.view.library import Snapshot
from nemo_gym.view.rows import id_of, line_of, read_record
from nemo_gym.view.selection import Selection, encode
from nemo_gym.view.tables import is_failure

_MOST_IN_GROUP: Final = 256
# What differs between two equal steps.
_INCIDENTAL: Final = frozenset(
    {"id", "call_id", "status", "logprobs", "prompt_token_ids", "generation_token_ids", "generation_log_probs"}
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
    }


def as_saved(line: bytes, record: Mapping[str, Any]) -> orjson.Fragment:
    """The record for an answer in JSON: its own bytes, unless they have what JSON does not (NaN)."""
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return orjson.Fragment(to_json(record))
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
    number = code >> 40
    run, row = snapshot.parts[number].source.run, code & ((1 << 40) - 1)
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
    one, other = (list(map(_essence, output_of(record) or ())) for record in (a, b))
    for place, (first, second) in enumerate(zip(one, other, strict=False)):
        if first != second:
            return place
    return None if len(one) == len(other) else min(len(one), len(other))


def _essence(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _essence(inner) for name, inner in value.items() if name not in _INCIDENTAL}
    return [_essence(inner) for inner in value] if isinstance(value, list) else value
