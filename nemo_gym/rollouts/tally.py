"""How a run is going: its results, what it spends, when it has to end early, and the summary at its end.

Tokens are those that rollouts report, of their model in ``response.usage`` and of judges under a separate key;
money is tokens times the prices that the configuration gives for the model of an agent, or for the judge. A budget
never cuts a rollout short: it only keeps new ones from starting.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from nemo_gym.errors import ExitCode, counted
from nemo_gym.io.files import RunFiles
from nemo_gym.rollouts.store.outcome import Completed, Failed, Outcome, Vanished
from nemo_gym.rollouts.store.saved_lines import read_lines
from nemo_gym.schemas.call_tokens import RolloutFormatError
from nemo_gym.schemas.record import Record, Usage
from nemo_gym.schemas.rows import Prices


class AgentMetrics(Protocol):
    """The metrics of one agent, as they are shown and sent to trackers (``run_metrics``, which needs numpy)."""

    @property
    def agent(self) -> str: ...

    @property
    def agent_metrics(self) -> Mapping[str, Any]:
        """The metrics over all of its rollouts."""

    @property
    def key_metrics(self) -> Mapping[str, Any]:
        """The few that matter most."""

    @property
    def report(self) -> Any:
        """Coverage, intervals and difficulty as text; None if the agent computed its metrics itself."""


@dataclass(slots=True)
class Spending:
    """What was spent since the beginning of the run."""

    prices: Mapping[str, Prices] = field(default_factory=dict)  # by agent, and by model server for judges
    input_tokens: int = 0
    output_tokens: int = 0
    usd_by_agent: dict[str, float] = field(default_factory=dict)

    @property
    def usd(self) -> float:
        """The cost of all agents together."""
        return sum(self.usd_by_agent.values())

    @property
    def tokens(self) -> int:
        """The tokens that were read and written."""
        return self.input_tokens + self.output_tokens

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Count what these attempts used, completed or failed, as far as they report it."""
        for outcome in outcomes:
            if not isinstance(outcome, Vanished) and outcome.usage is not None:
                self.count(outcome.planned.agent, outcome.usage)

    def count(self, agent: str, usage: Usage) -> None:
        """Count the tokens of one attempt."""
        for name, used in ((agent, usage), *usage.judges):
            self.input_tokens += used.input_tokens
            self.output_tokens += used.output_tokens
            if (prices := self.prices.get(name)) is not None:
                self.usd_by_agent[agent] = self.usd_by_agent.get(agent, 0.0) + cost(used, prices)

    def text(self) -> str:
        """The line for the end of a run; empty if nothing is known."""
        if not self.tokens:
            return ""
        money = f", {self.usd:.4g} USD" if self.prices else ""
        return f"{self.input_tokens:,} in, {self.output_tokens:,} out{money}"


def cost(usage: Usage, prices: Prices) -> float:
    """The cost in USD. Tokens from the endpoint's cache have a separate price if one is given."""
    # Some endpoints count more tokens as cached than as read.
    cached = min(usage.cached_tokens, usage.input_tokens) if prices.cached_input is not None else 0
    fresh = (usage.input_tokens - cached) * prices.input + cached * (prices.cached_input or 0.0)
    return (fresh + usage.output_tokens * prices.output) / 1e6


class Budget(NamedTuple):
    """How much a run may spend; None: as much as it takes."""

    tokens: int | None = None
    usd: float | None = None
    seconds: float | None = None

    def spent(self, spending: Spending, seconds: float) -> str | None:
        """A sentence about the budget that is used up; None if none is."""
        if self.tokens is not None and spending.tokens >= self.tokens:
            return f"budget_tokens={self.tokens} is used up"
        if self.usd is not None and spending.usd >= self.usd:
            return f"budget_usd={self.usd:g} is used up"
        if self.seconds is not None and seconds >= self.seconds:
            return f"budget_minutes={self.seconds / 60:g} is used up"
        return None


def read_spending(paths: Iterable[Path], prices: Mapping[str, Prices]) -> Spending:
    """What all attempts on disk cost, completed or failed: the number that both the screen and the file show."""
    spending = Spending(prices)
    for path in (each for files in map(RunFiles.of, paths) for each in (files.rollouts, files.failures)):
        for line in read_lines(path) if path.is_file() else ():
            with suppress(RolloutFormatError):  # a line that a crash tore
                record = Record.parse(line.text)
                if (usage := record.usage) is not None:
                    spending.count(record.agent or "", usage)
    return spending


EXAMPLE_CHARS = 100
HOPELESS_FAILURES = 50


class Ending(StrEnum):
    """Why a run ended."""

    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    TOO_MANY_FAILURES = "too many failures"
    OUTAGE = "nothing gets through"
    OUT_OF_BUDGET = "the budget is used up"
    NOTHING_WORKS = "nothing works: so far every rollout has failed (+max_failures=1.0 continues regardless)"


@dataclass(slots=True)
class ClassTally:
    """Failures of one class."""

    rollouts: int = 0  # rollouts that this run gave up because of it
    attempts: int = 0
    example: str = ""


@dataclass(slots=True)
class Tally:
    """The results of a run so far."""

    completed: int = 0
    vanished: int = 0
    rewarded: int = 0
    masked: int = 0  # completed, but without a measurement
    reward_sum: float = 0.0
    failures: dict[str, ClassTally] = field(default_factory=dict)
    given_up: Counter[str] = field(default_factory=Counter)  # rollouts that later runs won't try either, by class
    left_owed: int = 0  # rollouts that this run could not finish for causes outside them
    spending: Spending = field(default_factory=Spending)
    ending: Ending = Ending.FINISHED
    reason: str = ""  # of an early end

    @property
    def failed(self) -> int:
        """Rollouts that this run gave up because of what they did."""
        return sum(tally.rollouts for tally in self.failures.values()) - self.left_owed

    @property
    def ended(self) -> int:
        """Rollouts that this run has finished, one way or another."""
        return self.completed + self.failed + self.left_owed + self.vanished

    @property
    def attempts(self) -> int:
        """Attempts of this run that have ended, including those that were followed by another."""
        return self.completed + self.vanished + sum(tally.attempts for tally in self.failures.values())

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
        """The mean over this run's completed rollouts that have a reward."""
        return self.reward_sum / self.rewarded if self.rewarded else None

    def add(self, outcomes: Sequence[Outcome]) -> None:
        self.spending.add(outcomes)
        for outcome in outcomes:
            match outcome:
                case Completed(reward=reward):
                    self.completed += 1
                    self.masked += outcome.masked
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
        if not outcome.will_retry:
            tally.rollouts += 1
            self.left_owed += outcome.failure.outside
            self.given_up[outcome.failure.kind] += outcome.is_given_up
        if not tally.example:
            key = outcome.planned.key
            tally.example = f"task {key.task} rollout {key.rollout}: {outcome.failure.message}"

    def exit_code(self, *, still_owed: int = 0) -> ExitCode:
        """The exit code; ``still_owed`` counts planned rollouts that are not completed for other reasons."""
        if self.ending is Ending.INTERRUPTED:
            return ExitCode.INTERRUPTED
        if self.failed or self.vanished or still_owed or self.ending is not Ending.FINISHED:
            return ExitCode.FAILURES
        return ExitCode.OK


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


class StopVerdict(NamedTuple):
    """Why to stop: the kind of ending, and a sentence about it."""

    ending: Ending
    reason: str


class StopRules(NamedTuple):
    """How many rollouts may fail, and what the run may cost, before it is stopped."""

    max_failed: float | None = None
    budget: Budget = Budget()

    def verdict(self, tally: Tally, seconds: float) -> StopVerdict | None:
        """Whether to stop, given the results so far and the seconds that have passed."""
        if self.max_failed is None and tally.is_hopeless:
            return StopVerdict(Ending.NOTHING_WORKS, Ending.NOTHING_WORKS)
        if self.max_failed is not None and tally.failed > self.max_failed:
            return StopVerdict(Ending.TOO_MANY_FAILURES, Ending.TOO_MANY_FAILURES)
        spent = self.budget.spent(tally.spending, seconds)
        return StopVerdict(Ending.OUT_OF_BUDGET, spent) if spent else None


def failure_budget(max_failures: float | None, owed: int) -> float | None:
    """How many rollouts may fail: a number, or a fraction of what the run has to do; None if no limit is set."""
    if max_failures is None:
        return None
    return max_failures if isinstance(max_failures, int) else max_failures * owed


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """How a run went and where everything is."""

    files: RunFiles
    planned: int
    done_before: int
    given_up_before: Mapping[str, int]  # by the class of their last failure
    tally: Tally
    spent: Spending | None = None  # by all runs of this output, if known
    # Metrics hold a column for every field of every rollout. The event loop writes out the result of its main task when
    # it ends (to compare signal handlers), so whatever is shown here is paid for by every run.
    metrics: Sequence[AgentMetrics] = field(default=(), repr=False)
    has_metrics_file: bool = False
    timing: Sequence[str] = ()  # where the time went, in some lines

    @property
    def completed(self) -> int:
        """Rollouts of the plan that are on disk, from this run and earlier ones."""
        return self.done_before + self.tally.completed

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of the command."""
        return self.tally.exit_code(still_owed=self.planned - self.completed)

    def text(self) -> str:
        """The lines that are shown at the end of a run."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if table := failure_table(self.tally):
            yield from (table, "")
        yield f"{self.completed} of {self.planned} rollouts completed{self._shortfall()}"
        if self.tally.masked:
            yield f"masked:   {counted(self.tally.masked, 'rollout')} without a measurement, in no score"
        if self.tally.ending is not Ending.FINISHED:
            yield f"stopped: {self.tally.reason or self.tally.ending}"
        if spent := (self.spent or self.tally.spending).text():
            in_this_run = " in this run" if self.spent is None and self.done_before else ""
            yield f"tokens:   {spent}{in_this_run}"
        yield from self.timing
        yield f"plan:     {self.files.plan}"
        yield f"rollouts: {self.files.rollouts}"
        if self.tally.failures:
            yield f"failures: {self.files.failures}"
        if self.has_metrics_file:
            yield f"metrics:  {self.files.metrics}"
        yield from self._advice()

    def _advice(self) -> Iterator[str]:
        """What to type next."""
        given_up = Counter(self.given_up_before) + self.tally.given_up
        left = self.planned - self.completed - given_up.total()
        if left > 0:
            yield f"To run the {left} that {'is' if left == 1 else 'are'} left, add: +resume_from_cache=true"
        if given_up:
            classes = ",".join(sorted(given_up))
            yield (
                f"To try again the {given_up.total()} whose attempts are used up, add: "
                f"+resume_from_cache=true '+retry_failed=[{classes}]'"
            )

    def _shortfall(self) -> str:
        counts = {
            "failed": self.tally.failed,
            "held up by the servers or the model": self.tally.left_owed,
            "vanished": self.tally.vanished,
            "given up earlier": sum(self.given_up_before.values()),
        }
        counts["not run"] = self.planned - self.completed - sum(counts.values())
        listed = ", ".join(f"{count} {what}" for what, count in counts.items() if count > 0)
        return f" ({listed})" if listed else ""
