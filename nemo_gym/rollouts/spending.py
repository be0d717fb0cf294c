"""What a run spends: tokens, money, time; and when it has spent enough. Pure.

Tokens are those that rollouts report in ``response.usage``; money is tokens times the prices that the configuration
gives for the model of an agent. A budget never cuts a rollout short: it only keeps new ones from starting.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nemo_gym.rollouts.outcome import Completed, Outcome, Usage
from nemo_gym.schemas.prices import Prices


@dataclass(slots=True)
class Spending:
    """What was spent since the beginning of the run."""

    prices: Mapping[str, Prices] = field(default_factory=dict)  # by agent
    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0

    @property
    def tokens(self) -> int:
        """Read and written."""
        return self.input_tokens + self.output_tokens

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Count what completed rollouts used."""
        for outcome in outcomes:
            if isinstance(outcome, Completed) and (usage := outcome.usage) is not None:
                self.input_tokens += usage.input_tokens
                self.output_tokens += usage.output_tokens
                if (prices := self.prices.get(outcome.planned.agent)) is not None:
                    self.usd += cost(usage, prices)

    def text(self) -> str:
        """For the end of a run; empty if nothing is known."""
        if not self.tokens:
            return ""
        money = f", {self.usd:.4g} USD" if self.prices else ""
        return f"{self.input_tokens:,} tokens read, {self.output_tokens:,} written{money}"


def cost(usage: Usage, prices: Prices) -> float:
    """In USD. Tokens that the endpoint had in its cache have a price of their own where one is given."""
    cached = usage.cached_tokens if prices.cached_input is not None else 0
    fresh = (usage.input_tokens - cached) * prices.input + cached * (prices.cached_input or 0.0)
    return (fresh + usage.output_tokens * prices.output) / 1e6


class Budget(NamedTuple):
    """How much a run may spend; None: as much as it takes."""

    tokens: int | None = None
    usd: float | None = None
    seconds: float | None = None

    def spent(self, spending: Spending, seconds: float) -> str | None:
        """What has been used up, in words; None while something of everything is left."""
        if self.tokens is not None and spending.tokens >= self.tokens:
            return f"budget_tokens={self.tokens} is used up"
        if self.usd is not None and spending.usd >= self.usd:
            return f"budget_usd={self.usd:g} is used up"
        if self.seconds is not None and seconds >= self.seconds:
            return f"budget_minutes={self.seconds / 60:g} is used up"
        return None


def usage_in(record: Mapping[str, Any]) -> Usage | None:
    """What a result says about its tokens, if it is to be believed."""
    response = record.get("response")
    usage = response.get("usage") if isinstance(response, dict) else None
    if not isinstance(usage, dict):
        return None
    details = usage.get("input_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    counts: tuple[Any, ...] = (usage.get("input_tokens"), usage.get("output_tokens"), cached or 0)
    return Usage(*counts) if all(type(count) is int and count >= 0 for count in counts) else None
