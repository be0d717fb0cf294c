"""What rewards depend on: the mean reward for each value of every column, in one run or in two that are compared.

A column takes part if it has few values, or if it has numbers, which are put into a few buckets of about equal size.
The contribution of a value is how much it moves the mean: the weight of its rollouts times their distance from the
mean. The contributions of a column add up to nothing in one run, and to the change of the mean in two, whatever the
column is. Means are those of ``nemo_gym.metrics``, each task of two runs with the same weight; so are their intervals.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import Any, Final, NamedTuple

import numpy as np

from nemo_gym.metrics.statistics import bootstrap_means, clustered_wilson
from nemo_gym.metrics.table import Floats, Ints
from nemo_gym.schemas.record import REWARD
from nemo_gym.view.index.reader import ColumnValues
from nemo_gym.view.index.tables import ColumnFacts
from nemo_gym.view.library import Snapshot
from nemo_gym.view.selection import Scored, Selection, scored

BUCKETS: Final = 5
MOST_FIELDS: Final = 60
_DIGITS: Final = 3  # of the limits of buckets
_NOT_FIELDS: Final = frozenset({REWARD, "task", "rollout", "bytes", "question", "answer"})


@dataclass(frozen=True)
class Side:
    """The scored rollouts of a run, each with its task and its weight; the weights are 1 on average."""

    codes: Ints  # rows of the snapshot
    rewards: Floats
    unit: Ints  # number of the task
    weights: Floats

    @classmethod
    def of(cls, found: Scored, task: Ints, *, by_task: bool) -> "Side":
        """``by_task``: every task has the same weight, not every rollout."""
        finite = np.flatnonzero(np.isfinite(found.rewards) & (task >= 0))
        _, unit, sizes = np.unique(task[finite], return_inverse=True, return_counts=True)
        weights = len(unit) / (len(sizes) * sizes[unit]) if by_task and len(unit) else np.ones(len(unit))
        return cls(found.codes[finite], found.rewards[finite], unit.astype(np.int64), weights)

    @property
    def mean(self) -> float:
        with np.errstate(all="ignore"):
            return float(np.average(self.rewards, weights=self.weights)) if len(self.rewards) else float("nan")


class _Coded(NamedTuple):
    """A column as numbers: for each row which of the values it has."""

    name: str
    values: list[dict[str, Any]]  # as the page gets them: a value, or the limits of a bucket
    codes: Ints


def fields_of_run(selection: Selection) -> dict[str, Any]:
    """What separates high rewards from low ones. The column that explains most comes first."""
    found = scored(selection)
    return _by_field(selection.snapshot, [Side.of(found, found.task, by_task=False)])


def fields_of_two(snapshot: Snapshot, a: Side, b: Side) -> dict[str, Any]:
    """Where the mean changed from one run to the other. The column with the most uneven change comes first."""
    return _by_field(snapshot, [a, b])


def _by_field(snapshot: Snapshot, sides: Sequence[Side]) -> dict[str, Any]:
    codes = np.concatenate([side.codes for side in sides])
    means = [side.mean for side in sides]
    fields = []
    if all(len(side.codes) for side in sides):
        rows = Selection(snapshot, codes)
        coded = [found for fact in _candidates(snapshot, rows) if (found := _coded(fact, rows)) is not None]
        with np.errstate(all="ignore"):  # rewards may be so large that their squares are infinite
            fields = list(_described(coded[:MOST_FIELDS], sides, means))
    fields.sort(key=lambda field: (field["repeats"], -field["strength"] if isfinite(field["strength"]) else 0.0))
    return {
        "version": snapshot.version,
        "rollouts": [len(side.codes) for side in sides],
        "means": means,
        "difference": means[1] - means[0] if len(means) > 1 else None,
        "fields": fields,
    }


# ---- columns as codes ------------------------------------------------------------------------------------------------
def _candidates(snapshot: Snapshot, rows: Selection) -> Iterator[ColumnFacts]:
    """The columns with few values first, because they say most."""
    facts = [fact for fact in snapshot.columns.values() if fact.name not in _NOT_FIELDS]
    yield from (fact for fact in facts if fact.distinct and (len(fact.distinct) > 1 or fact.known < len(rows)))
    yield from (fact for fact in facts if fact.distinct is None and fact.number and not fact.text)


def _coded(fact: ColumnFacts, rows: Selection) -> _Coded | None:
    found = rows.values(fact.name)
    coded = _bucketed(fact, found) if fact.distinct is None else _listed(fact, found)
    used = np.bincount(coded.codes, minlength=len(coded.values)) > 0
    if used.sum() < 2:
        return None
    places = np.cumsum(used) - 1
    return _Coded(fact.name, [value for value, is_used in zip(coded.values, used, strict=True) if is_used],
                  places[coded.codes])  # fmt: skip


def _listed(fact: ColumnFacts, found: ColumnValues) -> _Coded:
    """Each of the few values by itself; a missing one, or an infinite number, is a value as well: null."""
    assert fact.distinct is not None
    boolean = fact.boolean and not fact.number and not fact.text
    numbers = [value for value in fact.distinct if not isinstance(value, str)]
    texts = [value for value in fact.distinct if isinstance(value, str)]
    none = len(numbers) + len(texts)
    codes = np.full(len(found.numbers), none, np.int64)
    if numbers:
        known = np.asarray(numbers, np.float64)
        places = np.minimum(np.searchsorted(known, found.numbers), len(known) - 1)
        codes = np.where(known[places] == found.numbers, places, codes)
    if found.codes is not None and texts:
        place = {text: len(numbers) + i for i, text in enumerate(texts)}
        by_code = np.array([*(place.get(text, none) for text in found.vocabulary), none], np.int64)
        codes = np.where(found.codes >= 0, by_code[found.codes], codes)
    values = [{"value": bool(value) if boolean else value} for value in (*numbers, *texts)]
    return _Coded(fact.name, [*values, {"value": None}], codes)


def _bucketed(fact: ColumnFacts, found: ColumnValues) -> _Coded:
    known = found.numbers[np.isfinite(found.numbers)]
    limits: list[float] = []
    if len(known):
        shares = np.quantile(known, np.linspace(0, 1, BUCKETS + 1)[1:-1])
        limits = sorted({float(f"{limit:.{_DIGITS}g}") for limit in shares.tolist()})
    codes = np.searchsorted(limits, found.numbers, side="right")
    edges = [None, *limits, None]
    values = [{"from": low, "to": high} for low, high in pairwise(edges)]
    return _Coded(fact.name, [*values, {"value": None}], np.where(np.isnan(found.numbers), len(values), codes))


# ---- numbers ---------------------------------------------------------------------------------------------------------
class _Tally(NamedTuple):
    """Of one side, for each task and value: the weight of the rollouts, and the weighted sum of their rewards."""

    weights: Floats
    sums: Floats
    squares: Floats  # of the rewards, over all tasks
    counts: Ints  # rollouts, over all tasks


def _described(coded: Sequence[_Coded], sides: Sequence[Side], means: list[float]) -> Iterator[dict[str, Any]]:
    starts = np.cumsum([0, *(len(field.values) for field in coded)])
    tallies, first = [], 0
    for side in sides:
        rows = slice(first, first + len(side.codes))
        tallies.append([_tally(side, field.codes[rows], len(field.values)) for field in coded])
        first = rows.stop
    intervals = [_intervals(side, own) for side, own in zip(sides, tallies, strict=True)]
    for place, field in enumerate(coded):
        own = [each[place] for each in tallies]
        bounds = [each[starts[place] : starts[place + 1]] for each in intervals]
        yield _field(field, own, bounds, sides, means)


def _tally(side: Side, codes: Ints, values: int) -> _Tally:
    cells, units = side.unit * values + codes, int(side.unit.max()) + 1

    def summed(weights: Floats) -> Floats:
        return np.bincount(cells, weights, units * values).astype(np.float64).reshape(units, values)

    squares = np.bincount(codes, side.weights * side.rewards**2, values).astype(np.float64)
    counts = np.bincount(codes, minlength=values)
    return _Tally(summed(side.weights), summed(side.weights * side.rewards), squares, counts)


def _intervals(side: Side, tallies: Sequence[_Tally]) -> list[list[float] | None]:
    """The interval of every mean, all columns together, because they share the drawn tasks."""
    if not tallies:
        return []
    sums = np.concatenate([tally.sums for tally in tallies], axis=1)
    weights = np.concatenate([tally.weights for tally in tallies], axis=1)
    if np.isin(side.rewards, (0.0, 1.0)).all():
        pairs = zip(sums.T, weights.T, strict=True)
        found = [clustered_wilson(each, trials) if trials.any() else None for each, trials in pairs]
        return [[interval.low, interval.high] if interval else None for interval in found]
    bounds = bootstrap_means(sums, weights).T
    return [list(map(float, pair)) if np.isfinite(pair).all() else None for pair in bounds]


def _field(
    field: _Coded, tallies: list[_Tally], bounds: list[list[Any]], sides: Sequence[Side], means: list[float]
) -> dict[str, Any]:
    totals = [(tally.weights.sum(axis=0), tally.sums.sum(axis=0)) for tally in tallies]
    shares = [weights / len(side.codes) for (weights, _), side in zip(totals, sides, strict=True)]
    centre = sum(means) / len(means)
    distances = [sums / len(side.codes) - share * centre
                 for (_, sums), share, side in zip(totals, shares, sides, strict=True)]  # fmt: skip
    contribution = distances[0] if len(sides) == 1 else distances[1] - distances[0]
    values = [
        value | {
            "sides": [
                {
                    "count": int(tally.counts[i]),
                    "mean": float(sums[i] / weights[i]) if weights[i] else None,
                    "interval": own[i],
                }
                for tally, (weights, sums), own in zip(tallies, totals, bounds, strict=True)
            ],
            "contribution": float(contribution[i]),
        }
        for i, value in enumerate(field.values)
    ]  # fmt: skip
    if "value" in field.values[0]:
        values.sort(key=lambda value: -abs(value["contribution"]))
    even = (shares[0] + shares[1]) / 2 * (means[1] - means[0]) if len(sides) > 1 else 0.0
    strength = float(np.abs(contribution - even).max()) if len(sides) > 1 else _explained(tallies[0], sides[0])
    return {
        "name": field.name,
        "strength": strength,
        "repeats": all(_is_constant(tally, *total) for tally, total in zip(tallies, totals, strict=True)),
        "values": values,
    }


def _explained(tally: _Tally, side: Side) -> float:
    """The share of the variance of the rewards between values, less what as many random values would explain."""
    count, values = len(side.rewards), tally.counts.size
    whole = float(((side.rewards - side.mean) ** 2).sum())
    if not whole or count <= values:
        return 0.0
    weights, sums = tally.weights.sum(axis=0), tally.sums.sum(axis=0)
    between = float((weights * (sums / weights - side.mean) ** 2).sum())
    return 1 - (1 - between / whole) * (count - 1) / (count - values)


def _is_constant(tally: _Tally, weights: Floats, sums: Floats) -> bool:
    """Whether all rollouts with the same value have the same reward; the column may be the reward itself."""
    used = weights > 0
    spread = tally.squares[used] - sums[used] ** 2 / weights[used]
    return bool((np.abs(spread) <= 1e-9 * np.maximum(tally.squares[used], 1)).all())
