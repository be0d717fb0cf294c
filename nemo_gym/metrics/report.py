"""What is told about one agent's rollouts beyond the interface's metrics: for the details file and for a terminal."""

from dataclasses import dataclass
from typing import Any, Final

from nemo_gym.metrics.coverage import Coverage
from nemo_gym.metrics.details import details
from nemo_gym.metrics.difficulty import SOLVED, SolveRates, solve_rates
from nemo_gym.metrics.fields import REWARD
from nemo_gym.metrics.intervals import Interval
from nemo_gym.metrics.render import histogram, interval_table, solve_rate_table
from nemo_gym.metrics.table import Floats, RolloutTable
from nemo_gym.schemas.prices import Prices

_SHOWN: Final = 12  # means; the file has them all


@dataclass(frozen=True, slots=True)
class Report:
    """Coverage, intervals, rewards and difficulty of one agent's rollouts."""

    agent: str
    coverage: Coverage | None  # None if it is not known what was planned
    details: dict[str, Any]
    rewards: Floats
    rates: SolveRates

    @classmethod
    def of(
        cls, agent: str, table: RolloutTable, coverage: Coverage | None = None, prices: Prices | None = None
    ) -> "Report":
        """Look at the rollouts of an agent."""
        reward = table.top.get(REWARD)
        rewards = reward.values[reward.known] if reward is not None else table.task[:0].astype(float)
        return cls(agent, coverage, details(table, coverage=coverage, prices=prices), rewards, solve_rates(table))

    def text(self) -> str:
        """Some lines for a terminal. Coverage comes first: means over survivors mislead without it."""
        known = self.coverage if self.coverage is not None else f"{self.details['rollouts']} rollouts"
        parts = [f"{self.agent}: {known}"]
        if self.details["intervals"]:
            parts += ["means, each with its 95 % interval:", self._means()]
        if len(self.rewards):
            tasks = len(self.rates.task)
            parts += ["rewards:", histogram(self.rewards)]
            parts += [f"tasks by share of rollouts with a reward of at least {SOLVED:g}, {tasks} in all:"]
            parts += [solve_rate_table(self.rates)]
        return "\n".join(parts)

    def _means(self) -> str:
        intervals = {name: Interval(**interval) for name, interval in self.details["intervals"].items()}
        shown = dict(list(intervals.items())[:_SHOWN])
        left = len(intervals) - len(shown)
        return interval_table(shown) + (f"\n({left} more in the details file)" if left else "")
