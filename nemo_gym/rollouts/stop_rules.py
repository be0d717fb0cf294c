"""When a run ends before its plan does: too much has failed, nothing works, or the budget is used up. Pure."""

from typing import NamedTuple

from nemo_gym.rollouts.spending import Budget
from nemo_gym.rollouts.tally import Ending, Tally


class Verdict(NamedTuple):
    """Why to stop, as a kind and in words."""

    ending: Ending
    reason: str


class StopRules(NamedTuple):
    """What a run may cost; whoever says how many failures are allowed decides that for themselves."""

    max_failed: float | None = None
    budget: Budget = Budget()

    def verdict(self, tally: Tally, seconds: float) -> Verdict | None:
        """Whether to stop, given what happened in so many seconds."""
        if self.max_failed is None and tally.is_hopeless:
            return Verdict(Ending.NOTHING_WORKS, Ending.NOTHING_WORKS)
        if self.max_failed is not None and tally.failed > self.max_failed:
            return Verdict(Ending.TOO_MANY_FAILURES, Ending.TOO_MANY_FAILURES)
        spent = self.budget.spent(tally.spending, seconds)
        return Verdict(Ending.OUT_OF_BUDGET, spent) if spent else None


def failure_budget(max_failures: float | None, owed: int) -> float | None:
    """How many rollouts may fail: a number as it is, a fraction of what the run has to do; None if nobody said."""
    if max_failures is None:
        return None
    return max_failures if isinstance(max_failures, int) else max_failures * owed
