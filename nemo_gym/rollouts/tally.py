"""Counts how a run goes, and says how it went. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from nemo_gym.rollouts.outcome import Completed, Failed, Outcome, Vanished
from nemo_gym.rollouts.spending import Spending

EXAMPLE_CHARS = 100
HOPELESS_FAILURES = 50


class Ending(StrEnum):
    """Why a run ended."""

    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    TOO_MANY_FAILURES = "too many failures"
    OUT_OF_BUDGET = "the budget is used up"
    NOTHING_WORKS = "nothing works: so far every rollout has failed (+max_failures=1.0 goes on all the same)"


class ExitCode(IntEnum):
    """What a collection tells the shell. (1 is for mistakes in the configuration.)"""

    DONE = 0
    FAILURES = 3
    INTERRUPTED = 130


@dataclass(slots=True)
class ClassTally:
    """Failures of one class."""

    rollouts: int = 0  # given up because of it, at least for this run
    attempts: int = 0
    example: str = ""


@dataclass(slots=True)
class Tally:
    """What came out of a run so far."""

    completed: int = 0
    vanished: int = 0
    rewarded: int = 0
    reward_sum: float = 0.0
    failures: dict[str, ClassTally] = field(default_factory=dict)
    spending: Spending = field(default_factory=Spending)
    ending: Ending = Ending.FINISHED
    reason: str = ""  # of an early end

    @property
    def failed(self) -> int:
        """Rollouts that this run gave up."""
        return sum(tally.rollouts for tally in self.failures.values())

    @property
    def ended(self) -> int:
        """Rollouts that this run is through with, one way or the other."""
        return self.completed + self.failed + self.vanished

    @property
    def is_hopeless(self) -> bool:
        """Whether many have failed and nothing else has happened: an endpoint is down, or a setting is wrong."""
        return not self.completed and not self.vanished and self.failed >= HOPELESS_FAILURES

    @property
    def retried(self) -> int:
        """Failed attempts that were followed by another."""
        return sum(tally.attempts - tally.rollouts for tally in self.failures.values())

    @property
    def mean_reward(self) -> float | None:
        """Over the completed rollouts of this run that have one."""
        return self.reward_sum / self.rewarded if self.rewarded else None

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Count outcomes."""
        self.spending.add(outcomes)
        for outcome in outcomes:
            match outcome:
                case Completed(reward=reward):
                    self.completed += 1
                    if reward is not None:
                        self.rewarded += 1
                        self.reward_sum += reward
                case Failed():
                    self._add_failure(outcome)
                case Vanished():
                    self.vanished += 1

    def _add_failure(self, outcome: Failed) -> None:
        tally = self.failures.setdefault(outcome.failure.kind, ClassTally())
        tally.attempts += 1
        tally.rollouts += not outcome.will_retry
        if not tally.example:
            key = outcome.planned.key
            tally.example = f"task {key.task} rollout {key.rollout}: {outcome.failure.message}"

    def exit_code(self, *, still_owed: int = 0) -> ExitCode:
        """What to tell the shell; ``still_owed`` counts planned rollouts that are not completed for other reasons."""
        if self.ending is Ending.INTERRUPTED:
            return ExitCode.INTERRUPTED
        if self.failed or self.vanished or still_owed or self.ending is not Ending.FINISHED:
            return ExitCode.FAILURES
        return ExitCode.DONE


def failure_table(tally: Tally) -> str:
    """The failures of a run by class, most frequent first, each with an example; empty if there were none."""
    if not tally.failures:
        return ""
    ranked = sorted(tally.failures.items(), key=lambda item: (-item[1].rollouts, -item[1].attempts, item[0]))
    rows = [("failure class", "rollouts", "attempts", "for example")]
    rows += [(kind, str(t.rollouts), str(t.attempts), _one_line(t.example)) for kind, t in ranked]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"{kind:<{widths[0]}}  {rollouts:>{widths[1]}}  {attempts:>{widths[2]}}  {example}".rstrip()
        for kind, rollouts, attempts, example in rows
    )


def _one_line(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= EXAMPLE_CHARS else f"{flat[: EXAMPLE_CHARS - 1]}…"
