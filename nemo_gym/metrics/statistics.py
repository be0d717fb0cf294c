"""Statistics of columns: mean, extremes, median and deviation of groups of rows, and how certain a mean is.

The rows of a group are neighbours; a group is given by the row at which it starts. Values that are absent or NaN do not
count. A statistic that is undefined (no value, a single value for the deviation, infinities that cancel) is NaN here
and is left out of every report.

Means have 95 % confidence intervals that allow for the similarity of rollouts of one task. Tasks are what varies
independently, so tasks are resampled (bootstrap), not rollouts; more than 250 of them are first put into 250 random
groups, which vary as independently. A field that is a share of successes gets a Wilson interval, which stays sensible
when everything or nothing succeeded; its sample size is the number of independent rollouts that would be as
informative. A single task says nothing about others: it has no interval, except Wilson's with a sample of one. The same
table and seed always give the same interval.

``average_fields`` is for a quick look at a file: unlike in the aggregate metrics, a rollout without the field counts
as 0.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Final, Literal, NamedTuple

import numpy as np

from nemo_gym.metrics.table import Column, Floats, Ints, RolloutTable
from nemo_gym.schemas.record import REWARD, Record, as_float

STATISTICS: Final = ("mean", "max", "min", "median", "std")


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
    ordered = values[np.lexsort((values, group))]  # NaN last, so that the known values come first
    low = starts + np.maximum(count - 1, 0) // 2
    high = starts + np.maximum(count // 2, 0)
    high = np.where(count > 0, high, low)
    return np.where(count > 0, _middle(ordered[low], ordered[high]), np.nan)


def _middle(low: Floats, high: Floats) -> Floats:
    return np.where(low == high, low, (low + high) / 2)  # equal infinities have a middle


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
    # NaN alone differs from itself.
    return {name: value for name, value in zip(names, values, strict=True) if value == value}  # noqa: PLR0124


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


def average_fields(records: Iterable[Record]) -> dict[str, AgentAverages]:
    """Averages by agent, agents in the order in which they appear. Fields whose name starts with ``_`` do not count."""
    agents: dict[str, AgentAverages] = {}
    for record in records:
        agent = agents.setdefault(record.agent or NO_AGENT, AgentAverages())
        agent.count += 1
        for name, value in record.metrics.items():
            number = as_float(value)
            if not name.startswith("_"):
                agent.sums[name] += 0.0 if math.isnan(number) else number
    return agents


LEVEL: Final = 0.95
RESAMPLES: Final = 1000
SEED: Final = 0  # which makes intervals repeatable
# What is resampled: tasks, or random groups of tasks if there are more. With 250 of them, another seed changes the
# width of an interval by 5.5 % (standard deviation), with a thousand by 3.5 %; the resamples alone account for 3.1 %.
MOST_UNITS: Final = 250
_DRAWS_AT_A_TIME: Final = 50_000  # few enough to stay in the cache


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and where it would lie in 95 of 100 repetitions with other tasks of the same kind."""

    mean: float
    low: float
    high: float
    method: Literal["wilson", "bootstrap"]

    @property
    def is_constant(self) -> bool:
        """Whether the value was the same in every rollout."""
        return self.mean in {0.0, 1.0} if self.method == "wilson" else self.low == self.high


def mean_intervals(
    fields: Mapping[str, Column], starts: Ints, *, shares: Collection[str] = (), seed: int = SEED
) -> dict[str, Interval]:
    """The interval of each mean over all rows, which are grouped by task. ``shares`` are fields of zeros and ones."""
    if not fields or not len(starts):
        return {}
    known = {name: column.known for name, column in fields.items()}
    values = {name: np.where(known[name], column.values, 0.0) for name, column in fields.items()}
    with np.errstate(all="ignore"):
        sums = np.column_stack([np.add.reduceat(values[name], starts) for name in fields])
    counts = np.column_stack([np.add.reduceat(known[name], starts, dtype=np.float64) for name in fields])
    graded = [i for i, name in enumerate(fields) if name not in shares]
    bounds = bootstrap_means(sums[:, graded], counts[:, graded], seed=seed)
    intervals: dict[str, Interval] = {}
    for i, name in enumerate(fields):
        if not counts[:, i].any():
            continue
        if i in graded:
            low, high = bounds[:, graded.index(i)].tolist()
            mean = float(sums[:, i].sum() / counts[:, i].sum())
            if np.isfinite([mean, low, high]).all():
                intervals[name] = Interval(mean, low, high, "bootstrap")
        else:
            intervals[name] = clustered_wilson(sums[:, i], counts[:, i])
    return intervals


def bootstrap_means(sums: Floats, counts: Floats, *, seed: int = SEED) -> Floats:
    """Low and high bound of each column's mean, from the sum and number of values of each task. NaN if undefined."""
    tasks, fields = sums.shape
    if tasks < 2 or not fields:
        return np.full((2, fields), np.nan)
    random = np.random.default_rng(seed)
    means = np.empty((RESAMPLES, fields))
    # Fields that the same rollouts have, which is the usual case, have the same numbers of values.
    numbers = counts[:, :1] if (counts == counts[:, :1]).all() else counts
    units = _grouped(np.column_stack([sums, numbers]), random)
    columns = np.ascontiguousarray(units.T)
    number = len(units)
    batch = max(1, _DRAWS_AT_A_TIME // number)
    for start in range(0, RESAMPLES, batch):
        drawn = random.integers(0, number, size=(min(batch, RESAMPLES - start), number), dtype=np.int64)
        weights = np.array([np.bincount(resample, minlength=number) for resample in drawn], np.float64)
        with np.errstate(all="ignore"):
            # Not ``@``: for such a small product the threads of the BLAS mostly wait for each other, at full CPU load.
            # The numbers that are added up lie side by side, which makes it several times faster.
            totals = np.einsum("rn,fn->rf", weights, columns)
            means[start : start + len(drawn)] = totals[:, :fields] / totals[:, fields:]
    means[:, (counts > 0).sum(axis=0) < 2] = np.nan  # one task says nothing about others
    return np.column_stack([_bounds(column) for column in means.T])


def _grouped(tasks: Floats, random: np.random.Generator) -> Floats:
    """The rows as they are, or the sums of as many random groups of them as are worth resampling."""
    if len(tasks) <= MOST_UNITS:
        return tasks
    firsts = np.linspace(0, len(tasks), MOST_UNITS, endpoint=False).astype(np.int64)
    with np.errstate(all="ignore"):
        return np.add.reduceat(tasks[random.permutation(len(tasks))], firsts)


def _bounds(means: Floats) -> Floats:
    """The bounds of the middle 95 % of the means; a resample without any value of the field does not count."""
    defined = means[~np.isnan(means)]
    if not len(defined) or not np.isfinite(defined).all():
        return np.full(2, np.nan)
    return np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])


def clustered_wilson(successes: Floats, trials: Floats) -> Interval:
    """Wilson's interval for a share of successes in tasks with several trials each."""
    total = float(trials.sum())
    share = float(successes.sum()) / total
    return Interval(share, *wilson(share, effective_size(successes, trials)), "wilson")


def effective_size(successes: Floats, trials: Floats) -> float:
    """How many independent trials would be as informative: at most all of them, for a constant result one per task."""
    tasks = float((trials > 0).sum())
    total = float(trials.sum())
    share = float(successes.sum()) / total
    if tasks < 2 or share in {0.0, 1.0}:
        return tasks
    spread = float(((successes - share * trials) ** 2).sum())
    variance = tasks / (tasks - 1) * spread / total**2
    return min(total, share * (1 - share) / variance) if variance > 0 else total


def wilson(share: float, size: float) -> tuple[float, float]:
    """The bounds of a share that was observed in ``size`` independent trials."""
    z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
    scale = 1 + z * z / size
    centre = (share + z * z / (2 * size)) / scale
    half = z / scale * (share * (1 - share) / size + z * z / (4 * size * size)) ** 0.5
    return max(0.0, centre - half), min(1.0, centre + half)


def share_fields(fields: Mapping[str, Column]) -> set[str]:
    """The fields whose mean is a share of successes: 0 or 1, or true or false, in every rollout that has them.

    The values decide and not the name, so that the same numbers have the same interval. The exception is an integer
    other than the reward that is the same everywhere: it is more likely a count, such as 0 cached tokens.
    """
    return {name for name, column in fields.items() if _is_share(column, is_reward=name == REWARD)}


def _is_share(column: Column, *, is_reward: bool) -> bool:
    values = column.values[column.known]
    if not np.isin(values, (0.0, 1.0)).all():
        return False
    return is_reward or column.two_valued or not column.integral or len(np.unique(values)) > 1
