"""How certain a mean is: 95 % confidence intervals that allow for the similarity of rollouts of one task.

Tasks are what varies independently, so tasks are resampled (bootstrap), not rollouts; more than 250 of them are first
put into 250 random groups, which vary as independently. A field that is a share of successes gets a Wilson interval,
which stays sensible when everything or nothing succeeded; its sample size is the number of independent rollouts that
would be as informative. A single task says nothing about others: it has no interval, except Wilson's with a sample of
one. The same table and seed always give the same interval.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, Literal

import numpy as np

from nemo_gym.metrics.fields import REWARD
from nemo_gym.metrics.table import Column, Floats, Ints

LEVEL: Final = 0.95
RESAMPLES: Final = 1000
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


def mean_intervals(
    fields: Mapping[str, Column],
    starts: Ints,
    *,
    shares: Collection[str] = (),
    seed: int = 0,
    resamples: int = RESAMPLES,
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
    bounds = bootstrap_means(sums[:, graded], counts[:, graded], seed=seed, resamples=resamples)
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


def bootstrap_means(sums: Floats, counts: Floats, *, seed: int = 0, resamples: int = RESAMPLES) -> Floats:
    """Low and high bound of each column's mean, from the sum and number of values of each task. NaN if undefined."""
    tasks, fields = sums.shape
    if tasks < 2 or not fields:
        return np.full((2, fields), np.nan)
    random = np.random.default_rng(seed)
    means = np.empty((resamples, fields))
    # Fields that the same rollouts have, which is the usual case, have the same numbers of values.
    numbers = counts[:, :1] if (counts == counts[:, :1]).all() else counts
    units = _grouped(np.column_stack([sums, numbers]), random)
    columns = np.ascontiguousarray(units.T)
    number = len(units)
    batch = max(1, _DRAWS_AT_A_TIME // number)
    for start in range(0, resamples, batch):
        drawn = random.integers(0, number, size=(min(batch, resamples - start), number), dtype=np.int64)
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
    """The fields whose mean is a share of successes: true or false by nature, and a reward that is always 0 or 1.

    A count or a grade that merely happens to be 0 or 1 in this run is not one of them.
    """
    shares = {name for name, column in fields.items() if column.two_valued}
    reward = fields.get(REWARD)
    if reward is not None and np.isin(reward.values[reward.known], (0.0, 1.0)).all():
        shares.add(REWARD)
    return shares
