"""How hard tasks are: the share of their rollouts that solved them. For choosing what to train on.

A rollout solves its task if its reward reaches the threshold. Tasks that are always or never solved carry no signal for
training on differences between rollouts; the bands say how many there are of each.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from nemo_gym.metrics.fields import REWARD
from nemo_gym.metrics.table import Floats, Ints, RolloutTable

SOLVED: Final = 1.0
# Upper bounds; "never" and "always" are exact, the others split what lies between.
_BANDS: Final = (("hard", 0.25), ("medium", 0.75), ("easy", 1.0))
BANDS: Final = ("never", "hard", "medium", "easy", "always")


@dataclass(frozen=True, slots=True)
class SolveRates:
    """The tasks that have rewards, with the share of rollouts that solved them."""

    task: Ints
    rate: Floats
    rollouts: Ints

    def bands(self) -> list[str]:
        """The band of each task."""
        return [band_of(rate) for rate in self.rate.tolist()]

    def counts(self) -> dict[str, int]:
        """How many tasks each band has, from never to always solved."""
        bands = self.bands()
        return {band: bands.count(band) for band in BANDS}

    def mixed(self) -> list[int]:
        """The tasks that are sometimes solved: those with a signal."""
        return list(self.task[(self.rate > 0) & (self.rate < 1)].tolist())


def solve_rates(table: RolloutTable, threshold: float = SOLVED) -> SolveRates:
    """The solve rate of every task with at least one reward."""
    reward = table.top.get(REWARD)
    starts = table.task_starts()
    if reward is None or not len(starts):
        none = np.zeros(0, np.int64)
        return SolveRates(none, np.zeros(0), none)
    known = reward.known
    count = np.add.reduceat(known, starts, dtype=np.int64)
    solved = np.add.reduceat(known & (np.where(known, reward.values, 0.0) >= threshold), starts, dtype=np.int64)
    solved[count == 0] = 0
    kept = count > 0
    return SolveRates(table.task[starts][kept], solved[kept] / count[kept], count[kept])


def band_of(rate: float) -> str:
    """The difficulty of a task with this solve rate."""
    if rate <= 0:
        return "never"
    if rate >= 1:
        return "always"
    return next(name for name, upper in _BANDS if rate <= upper)
