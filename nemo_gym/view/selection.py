"""Which rollouts, in which order: a filter, a search and a sort become an array of rows of a snapshot.

Of the rows that are selected, those that enter statistics become a table of ``nemo_gym.metrics``. Every number of the
viewer about rewards is computed there from such a table, so that it is the metrics' number.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Final, NamedTuple

import numpy as np

from nemo_gym.errors import ConfigError, did_you_mean
from nemo_gym.filters import Filter, parse_filter
from nemo_gym.metrics.table import Column, Floats, Ints, Mask, RolloutTable
from nemo_gym.schemas.record import REWARD
from nemo_gym.view.index.reader import ColumnValues
from nemo_gym.view.index.search import to_match
from nemo_gym.view.library import Snapshot
from nemo_gym.view.rollout_files import ROW_BITS, Part

_CACHED: Final = 16


class Query(NamedTuple):
    """What a reader requested, as typed."""

    filter: str = ""
    search: str = ""
    sort: str = ""


@dataclass(frozen=True)
class Selection:
    """Rows of a snapshot in order."""

    snapshot: Snapshot
    rows: Ints

    def __len__(self) -> int:
        return len(self.rows)

    def values(self, name: str) -> ColumnValues:
        return gather_column(self.snapshot, self.rows, name)


class Selections:
    """Runs queries and caches the last selections: scrolling repeats the same query."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[int, int, Query], Selection] = OrderedDict()
        self._lock = Lock()

    def get(self, snapshot: Snapshot, query: Query) -> Selection:
        key = (snapshot.version, snapshot.searchable if query.search else 0, query)
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        selection = select(snapshot, query)
        with self._lock:
            self._known[key] = selection
            while len(self._known) > _CACHED:
                self._known.popitem(last=False)
        return selection


def select(snapshot: Snapshot, query: Query) -> Selection:
    """The rows that pass filter and search, in the requested order."""
    wanted = parse_filter(query.filter, snapshot.columns)
    keys = parse_sort(query.sort, snapshot)
    match = to_match(query.search)
    found = [_encoded(number, _rows(snapshot, part, wanted, match)) for number, part in enumerate(snapshot.parts)]
    rows = np.concatenate(found) if found else np.zeros(0, np.int64)
    return Selection(snapshot, rows[_order(snapshot, rows, keys)] if keys else rows)


def _rows(snapshot: Snapshot, part: Part, wanted: Filter, match: str | None) -> Ints:
    rows: Ints | None = None
    if wanted:
        name = snapshot.runs[part.source.run].name
        rows = part.matching(wanted.sql(part.sql_columns(name, wanted.columns)))
    if match is not None:
        found = np.sort(part.containing(match))
        rows = found if rows is None else np.intersect1d(rows, found, assume_unique=True)
    return np.arange(1, len(part) + 1) if rows is None else rows


def _encoded(part: int, rows: Ints) -> Ints:
    return rows | (part << ROW_BITS)


def gather_column(snapshot: Snapshot, rows: Ints, name: str) -> ColumnValues:
    """A column of some rows of several parts."""
    if len(snapshot.parts) == 1 and name != "file":
        return snapshot.parts[0].values(name).take(rows - 1)
    owner = rows >> ROW_BITS
    numbers, codes = np.full(len(rows), np.nan), np.full(len(rows), -1, np.int32)
    vocabulary: dict[str, int] = {}
    for number, part in enumerate(snapshot.parts):
        mine = np.flatnonzero(owner == number)
        if not len(mine):
            continue
        if name == "file":
            values = ColumnValues.constant(len(part), snapshot.runs[part.source.run].name)
        else:
            values = part.values(name)
        values = values.take((rows[mine] & ((1 << ROW_BITS) - 1)) - 1)
        numbers[mine] = values.numbers
        if values.codes is not None:
            shared = [vocabulary.setdefault(text, len(vocabulary)) for text in values.vocabulary]
            codes[mine] = np.array([*shared, -1], np.int32)[values.codes]  # the last one is for -1
    return ColumnValues(numbers, codes if vocabulary else None, list(vocabulary))


# ---- sorting ---------------------------------------------------------------------------------------------------------
class SortKey(NamedTuple):
    """A column to sort by."""

    name: str
    descending: bool


def parse_sort(text: str, snapshot: Snapshot) -> list[SortKey]:
    """``reward,-tokens``: by reward, then by tokens from high to low."""
    keys = [SortKey(part.removeprefix("-"), part.startswith("-")) for part in map(str.strip, text.split(",")) if part]
    for key in keys:
        if key.name not in snapshot.columns:
            hint = did_you_mean(key.name, snapshot.columns, available="columns are")
            raise ConfigError(f"can't sort by '{key.name}': no such column", hint=hint)
    return keys


def _order(snapshot: Snapshot, rows: Ints, keys: Sequence[SortKey]) -> Ints:
    arrays: list[Floats] = []
    for key in reversed(keys):  # the last array decides first
        arrays += sort_arrays(gather_column(snapshot, rows, key.name), descending=key.descending)
    if len(arrays) == 1:
        return np.argsort(arrays[0], kind="stable")
    return np.lexsort(arrays)


def sort_arrays(values: ColumnValues, *, descending: bool) -> list[Floats]:
    """Arrays for lexsort, the decisive one last: numbers before text, and what is missing always last."""
    sign = -1.0 if descending else 1.0
    if values.codes is None:
        return [sign * values.numbers]  # NaN comes last
    places = np.argsort(np.array(values.vocabulary, dtype=object), kind="stable")
    rank = np.empty(len(places) + 1)
    rank[places] = np.arange(len(places))
    rank[-1] = np.nan
    texts = rank[values.codes]
    is_text = values.codes >= 0
    kind = np.where(is_text, sign, np.where(np.isnan(values.numbers), np.nan, 0.0))
    return [sign * np.where(is_text, texts, values.numbers), kind]


@dataclass(frozen=True)
class Scored:
    """The rows of a selection that count, in the order of a table: task, then rollout."""

    codes: Ints  # rows of the snapshot
    index: Ints  # of the task, as in the records
    task: Ints  # unique across files, unlike the index
    run: Ints
    rollout: Ints
    rewards: Floats  # NaN where there is none
    agents: ColumnValues

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, rows: Ints | Mask) -> "Scored":
        places = np.arange(len(self))[rows]
        return Scored(
            self.codes[places],
            self.index[places],
            self.task[places],
            self.run[places],
            self.rollout[places],
            self.rewards[places],
            self.agents.take(places),
        )

    @cached_property
    def table(self) -> RolloutTable:
        """The same rows for ``nemo_gym.metrics``."""
        present = ~np.isnan(self.rewards)
        top = {REWARD: Column(self.rewards, present)} if present.any() else {}
        return RolloutTable(self.task, self.rollout, top, {}, {})


def scored(selection: Selection) -> Scored:
    """The rows of a selection that enter statistics."""
    keys = selection.snapshot.tasks
    places = keys.places(selection.rows)
    counting = np.flatnonzero(keys.counts[places])
    places = places[counting]
    order = np.lexsort((keys.rollout[places], keys.task[places]))
    codes, places = selection.rows[counting[order]], places[order]
    chosen = Selection(selection.snapshot, codes)
    rewards, agents = chosen.values(REWARD).numbers, chosen.values("agent")
    return Scored(codes, keys.index[places], keys.task[places], keys.run[places], keys.rollout[places], rewards, agents)


def is_failure(selection: Selection) -> Mask:
    """Which rows are failed attempts."""
    kinds = [part.source.kind == "failures" for part in selection.snapshot.parts]
    of_sidecar = np.array(kinds, np.bool_)[selection.rows >> ROW_BITS] if kinds else np.zeros(0, np.bool_)
    failed = selection.values("failure").codes
    return of_sidecar if failed is None else of_sidecar | (failed >= 0)


def count_failures(selection: Selection) -> dict[str, int]:
    """How many attempts failed, by class."""
    failed = selection.values("failure")
    if failed.codes is None:
        return {}
    counted = Counter(failed.codes[is_failure(selection) & (failed.codes >= 0)].tolist())
    return {failed.vocabulary[code]: count for code, count in sorted(counted.items())}
