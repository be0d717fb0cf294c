from typing import Any

import pytest

from nemo_gym.rollouts.outcome import Completed, Usage
from nemo_gym.rollouts.planned import Planned
from nemo_gym.rollouts.spending import Budget, Spending, cost, usage_in
from nemo_gym.rollouts.stop_rules import StopRules
from nemo_gym.rollouts.tally import Ending, Tally
from nemo_gym.schemas.prices import Prices
from nemo_gym.schemas.rows import RolloutKey

PRICES = Prices(input=1.0, output=10.0, cached_input=0.1)


def done(usage: Usage | None, agent: str = "alpha") -> Completed:
    return Completed(Planned(RolloutKey(0, 0), agent, {}), b"{}", 0.1, 1.0, usage)


def test_money_is_tokens_times_prices() -> None:
    assert cost(Usage(1_000_000, 100_000), PRICES) == pytest.approx(2.0)
    assert cost(Usage(1_000_000, 0, 500_000), PRICES) == pytest.approx(0.55)
    assert cost(Usage(1_000_000, 0, 500_000), Prices(input=1.0, output=10.0)) == pytest.approx(1.0)


def test_only_agents_with_prices_cost_money_but_all_tokens_count() -> None:
    spending = Spending({"alpha": PRICES})
    spending.add([done(Usage(1_000_000, 0)), done(Usage(5, 6), agent="beta"), done(None)])
    assert (spending.tokens, spending.usd) == (1_000_011, pytest.approx(1.0))
    assert spending.text() == "1,000,005 tokens read, 6 written, 1 USD"
    assert Spending().text() == ""


@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        (Budget(), None),
        (Budget(tokens=31, usd=1.0, seconds=61), None),
        (Budget(tokens=30), "budget_tokens=30 is used up"),
        (Budget(usd=0.0001), "budget_usd=0.0001 is used up"),
        (Budget(seconds=60), "budget_minutes=1 is used up"),
    ],
)
def test_a_budget_is_used_up_when_one_part_of_it_is(budget: Budget, reason: str | None) -> None:
    tally = Tally(spending=Spending({"alpha": PRICES}))
    tally.add([done(Usage(20, 10))])
    verdict = StopRules(budget=budget).verdict(tally, 60.0)
    assert (verdict and verdict.reason) == reason
    assert verdict is None or verdict.ending is Ending.OUT_OF_BUDGET


@pytest.mark.parametrize(
    ("record", "usage"),
    [
        ({"response": {"usage": {"input_tokens": 3, "output_tokens": 4}}}, Usage(3, 4)),
        (
            {
                "response": {
                    "usage": {"input_tokens": 3, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 2}}
                }
            },
            Usage(3, 4, 2),
        ),
        ({"response": {"usage": {"input_tokens": -3, "output_tokens": 4}}}, None),
        ({"response": {"usage": {"input_tokens": "3", "output_tokens": 4}}}, None),
        ({"response": {"usage": None}}, None),
        ({"response": None}, None),
        ({}, None),
    ],
)
def test_usage_is_believed_only_if_it_can_be_true(record: dict[str, Any], usage: Usage | None) -> None:
    assert usage_in(record) == usage
