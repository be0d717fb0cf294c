"""Rows in the form that the page gets, for the table and the scatter plot, and the names of rows in URLs."""

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import orjson

from nemo_gym.errors import ConfigError, did_you_mean
from nemo_gym.metrics.table import Ints
from nemo_gym.schemas.call_tokens import RolloutFormatError
from nemo_gym.schemas.record import Record
from nemo_gym.view.index.reader import StaleIndexError
from nemo_gym.view.index.search import snippet
from nemo_gym.view.library import Snapshot
from nemo_gym.view.rollout_files import Part, decode_row, encode_row
from nemo_gym.view.selection import Selection

ALWAYS: Final = ("task", "rollout", "agent", "failure", "reward", "question", "answer")
MOST_POINTS: Final = 5_000
PAGE_ROWS: Final = 100  # in one reply, unless more are requested
_SNIPPET_BYTES: Final = 20_000_000  # of lines that are read for one page of hits


def id_of(snapshot: Snapshot, code: int) -> str:
    """The name of a row in URLs, which is stable as long as its file only grows."""
    number, row = decode_row(code)
    source = snapshot.parts[number].source
    return f"{source.run}.{'f' if source.kind == 'failures' else ''}{row - 1}"


def code_of(snapshot: Snapshot, rollout: str) -> int | None:
    """The row with this name; None if there is none."""
    run, _, row = rollout.partition(".")
    kind = "failures" if row.startswith("f") else "rollouts"
    row = row.removeprefix("f")
    if not (run.isdecimal() and row.isdecimal() and run.isascii() and row.isascii() and len(run) + len(row) < 18):
        return None
    found = snapshot.part(int(run), kind)
    if found is None or int(row) >= len(found[1]):
        return None
    return encode_row(found[0], int(row) + 1)


def known_columns(snapshot: Snapshot, text: str) -> list[str]:
    """The columns that a reader lists, ``*`` for all; one that does not exist is an error."""
    if text == "*":
        return list(snapshot.columns)
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in snapshot.columns:
            hint = did_you_mean(name, snapshot.columns, available="columns are")
            raise ConfigError(f"no column '{name}'", hint=hint)
    return names


def table_rows(
    selection: Selection, start: int, stop: int, columns: Sequence[str], search: str
) -> list[dict[str, Any]]:
    """A range of the selection, with snippets of text that ``search`` matches.

    Values are nested one level down, because a record may have a field ``id`` as well.
    """
    snapshot, codes = selection.snapshot, selection.rows[start:stop].tolist()
    names = list(dict.fromkeys((*ALWAYS, *columns)))
    values = read_values(snapshot, codes, names)
    found: list[dict[str, Any]] = [
        {"id": id_of(snapshot, code), "values": row} for code, row in zip(codes, values, strict=True)
    ]
    if search:
        budget = _SNIPPET_BYTES
        for code, row in zip(codes, found, strict=True):
            row["snippet"], cost = _snippet(snapshot, code, search, budget)
            budget -= cost
    return found


def read_listed(snapshot: Snapshot, codes: Sequence[int], names: Sequence[str]) -> list[dict[str, Any]]:
    """Some of the fixed columns of some rows, each with its ``id``."""
    values = read_values(snapshot, codes, names)
    return [{"id": id_of(snapshot, code), **row} for code, row in zip(codes, values, strict=True)]


def read_values(snapshot: Snapshot, codes: Sequence[int], names: Sequence[str]) -> list[dict[str, Any]]:
    """Some columns of some rows, in the order given."""
    wanted: defaultdict[int, list[int]] = defaultdict(list)
    for code in codes:
        number, row = decode_row(code)
        wanted[number].append(row)
    stored = [name for name in names if name != "file"]
    found = {number: snapshot.parts[number].rows(rows, stored) for number, rows in wanted.items()}
    rows = []
    for code in codes:
        number, row = decode_row(code)
        values = dict(found[number][row])
        if "file" in names:
            values["file"] = snapshot.runs[snapshot.parts[number].source.run].name
        rows.append(values)
    return rows


def _snippet(snapshot: Snapshot, code: int, search: str, budget: int) -> tuple[str | None, int]:
    number, row = decode_row(code)
    part = snapshot.parts[number]
    place = part.place(row)
    if place is None or place.length > budget:
        return None, 0
    return snippet(read_record(part.line(place)).fields, search), place.length


def read_record(line: bytes) -> Record:
    """The record of a line that was readable when it was indexed."""
    try:
        return Record.parse(line)
    except RolloutFormatError:
        raise StaleIndexError from None


def line_of(snapshot: Snapshot, code: int) -> tuple[Part, int, bytes]:
    """The part of a row, its line number and its bytes."""
    number, row = decode_row(code)
    part = snapshot.parts[number]
    place = part.place(row)
    if place is None:
        raise StaleIndexError
    return part, place.line, part.line(place)


def scatter(selection: Selection, x: str, y: str) -> dict[str, Any]:
    """Two columns against each other; of many points an even selection, always the same one."""
    for name in (x, y):
        known_columns(selection.snapshot, name)
    first, second = selection.values(x).numbers, selection.values(y).numbers
    both: Ints = np.flatnonzero(np.isfinite(first) & np.isfinite(second))
    sampled = len(both) > MOST_POINTS
    if sampled:
        both = both[np.arange(MOST_POINTS) * len(both) // MOST_POINTS]
    return {
        "x": first[both].tolist(),
        "y": second[both].tolist(),
        "ids": ids_of(selection.snapshot, selection.rows[both].tolist()),
        "sampled": sampled,
    }


def ids_of(snapshot: Snapshot, codes: Iterable[int]) -> list[str]:
    """The names of several rows."""
    return [id_of(snapshot, code) for code in codes]


def to_bytes(value: Any) -> bytes:
    """JSON; NaN and infinities are null."""
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY)


UNAVAILABLE: Final = (StaleIndexError, sqlite3.OperationalError)
