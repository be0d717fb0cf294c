"""Mean, extremes, median and standard deviation of a column, for many groups of rows at once.

The rows of a group are neighbours; a group is given by the row at which it starts. Values that are absent or NaN do not
count. A statistic that is undefined (no value, a single value for the deviation, infinities that cancel) is NaN here
and is left out of every report.

``average_fields`` is for a quick look at a file: unlike in the aggregate metrics, a rollout without the field counts
as 0.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isnan
from typing import Any, Final, NamedTuple

import numpy as np

from nemo_gym.metrics.fields import agent_of, as_float, numeric_fields
from nemo_gym.metrics.table import Column, Floats, Ints, RolloutTable

STATISTICS: Final = ("mean", "max", "min", "median", "std")
# A matrix with one row per group is the fastest way to sort within groups, unless most of it would be padding.
_MOST_PADDING: Final = 4


class Stats(NamedTuple):
    """One value per group for each statistic."""

    mean: Floats
    max: Floats
    min: Floats
    median: Floats
    std: Floats


def describe(column: Column, starts: Ints) -> Stats:
    """The statistics of every group of rows."""
    size = np.diff(np.r_[starts, len(column.values)])
    group = np.repeat(np.arange(len(starts)), size)
    known = column.known
    count = np.add.reduceat(known, starts, dtype=np.int64)
    with np.errstate(all="ignore"):  # undefined results are NaN on purpose
        values = np.where(known, column.values, 0.0)
        mean = np.add.reduceat(values, starts) / count
        # In a second pass: the difference of sums of squares would lose its digits where the mean is large.
        deviation = np.where(known, values - mean[group], 0.0)
        std = np.sqrt(np.add.reduceat(deviation * deviation, starts) / np.where(count > 1, count - 1, np.nan))
        std[(size == 1) & (count == 1)] = (
            0.0  # a single rollout deviates by nothing; a single value among several rollouts is undefined
        )
        return Stats(
            mean,
            np.where(count > 0, np.maximum.reduceat(np.where(known, values, -np.inf), starts), np.nan),
            np.where(count > 0, np.minimum.reduceat(np.where(known, values, np.inf), starts), np.nan),
            _median(np.where(known, column.values, np.nan), group, starts, count),
            std,
        )


class PassCounts(NamedTuple):
    """For each group, how many rows have a value and how many of these reach a threshold."""

    known: Ints
    passed: Ints


def passing(column: Column, starts: Ints, threshold: float) -> PassCounts:
    """Count the values that are at least the threshold."""
    known = column.known
    reached = known & (np.where(known, column.values, 0.0) >= threshold)
    return PassCounts(np.add.reduceat(known, starts, dtype=np.int64), np.add.reduceat(reached, starts, dtype=np.int64))


def _median(values: Floats, group: Ints, starts: Ints, count: Ints) -> Floats:
    ordered = _sorted_within(values, group, starts)  # NaN last, so that the known values come first
    low = starts + np.maximum(count - 1, 0) // 2
    high = starts + np.maximum(count // 2, 0)
    high = np.where(count > 0, high, low)
    return np.where(count > 0, _middle(ordered[low], ordered[high]), np.nan)


def _middle(low: Floats, high: Floats) -> Floats:
    return np.where(low == high, low, (low + high) / 2)  # equal infinities have a middle


def _sorted_within(values: Floats, group: Ints, starts: Ints) -> Floats:
    size = np.diff(np.r_[starts, len(values)])
    widest = int(size.max(initial=0))
    if widest * len(starts) > _MOST_PADDING * len(values):
        return values[np.lexsort((values, group))]
    place = np.arange(len(values)) - np.repeat(starts, size)
    padded = np.full((len(starts), widest), np.nan)
    padded[group, place] = values
    padded.sort(axis=1)
    return padded[group, place]


def table_statistics(fields: Mapping[str, Column], starts: Ints) -> tuple[list[str], Floats]:
    """Names such as ``mean/reward`` and a matrix with a row per group, NaN where undefined."""
    if not fields or not len(starts):
        return [], np.zeros((len(starts), 0))
    described = [describe(column, starts) for column in fields.values()]
    names = [f"{statistic}/{field}" for statistic in STATISTICS for field in fields]
    return names, np.column_stack([stats[i] for i in range(len(STATISTICS)) for stats in described])


def overall(table: RolloutTable) -> dict[str, float]:
    """The statistics over all rollouts, each with weight one."""
    if not len(table):
        return {}
    names, values = table_statistics(table.metrics(), np.zeros(1, np.int64))
    return defined(names, values[0].tolist())


def defined(names: list[str], values: list[float]) -> dict[str, float]:
    """Names and values without the undefined ones."""
    return {name: value for name, value in zip(names, values, strict=True) if not isnan(value)}


NO_AGENT = "(no agent)"


@dataclass(slots=True)
class AgentAverages:
    """The rollouts of one agent."""

    count: int = 0
    sums: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def averages(self) -> dict[str, float]:
        """Sum by number of rollouts, for every field."""
        return {name: total / self.count for name, total in self.sums.items()}


def average_fields(records: Iterable[Mapping[str, Any]]) -> dict[str, AgentAverages]:
    """Averages by agent, agents in the order in which they appear. Fields whose name starts with ``_`` do not count."""
    agents: dict[str, AgentAverages] = {}
    for record in records:
        agent = agents.setdefault(agent_of(record) or NO_AGENT, AgentAverages())
        agent.count += 1
        for name, value in numeric_fields(record).items():
            number = as_float(value)
            if not name.startswith("_"):
                agent.sums[name] += 0.0 if math.isnan(number) else number
    return agents
