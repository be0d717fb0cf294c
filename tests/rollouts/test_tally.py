from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.errors import ExitCode
from nemo_gym.io.files import RunFiles
from nemo_gym.rollouts.store.outcome import Completed, Failed, Failure, PlannedRollout, Vanished
from nemo_gym.rollouts.tally import (
    Budget,
    Ending,
    Spending,
    StopRules,
    Summary,
    Tally,
    cost,
    failure_budget,
    failure_table,
)
from nemo_gym.schemas.record import Record, Usage
from nemo_gym.schemas.rows import Prices, RolloutKey

PRICES = Prices(input=1.0, output=10.0, cached_input=0.1)


def done(usage: Usage | None, agent: str = "alpha") -> Completed:
    return Completed(PlannedRollout(RolloutKey(0, 0), agent, {}), b"{}", 0.1, 1.0, usage)


def test_money_is_tokens_times_prices() -> None:
    assert cost(Usage(1_000_000, 100_000), PRICES) == pytest.approx(2.0)
    assert cost(Usage(10**12, 0), PRICES) == 10**6
    assert cost(Usage(1_000_000, 0, 500_000), PRICES) == pytest.approx(0.55)
    assert cost(Usage(1_000_000, 0, 500_000), Prices(input=1.0, output=10.0)) == pytest.approx(1.0)


def test_only_agents_with_prices_cost_money_but_all_tokens_count() -> None:
    spending = Spending({"alpha": PRICES})
    spending.add([done(Usage(1_000_000, 0)), done(Usage(5, 6), agent="beta"), done(None)])
    assert (spending.tokens, spending.usd) == (1_000_011, pytest.approx(1.0))
    assert spending.text() == "1,000,005 in, 6 out, 1 USD"
    assert Spending().text() == ""


@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        (Budget(), None),
        (Budget(tokens=31, usd=1.0, seconds=61), None),
        (Budget(tokens=30), "budget_tokens=30 is used up"),
        (Budget(usd=0.00012), "budget_usd=0.00012 is used up"),
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
    assert Record(record).usage == usage


Make = Callable[..., PlannedRollout]


def failure(
    planned: PlannedRollout, kind: str = "timeout", message: str = "late", *, transient: bool = False
) -> Failed:
    return Failed(planned, b"", 0.1, Failure(kind=kind, message=message, transient=transient))


def summary(tally: Tally, *, planned: int, done: int = 0, given_up: int = 0) -> Summary:
    files, before = RunFiles.of(Path("d/out.jsonl")), {"auth": given_up} if given_up else {}
    return Summary(files=files, planned=planned, done_before=done, given_up_before=before, tally=tally)


def test_rewards_are_averaged_over_completed_rollouts_that_have_one(planned: Make) -> None:
    tally = Tally()
    tally.add([Completed(planned(n), b"", 0.1, reward) for n, reward in enumerate([1.0, 0.0, 0.5, None])])
    tally.add([failure(planned(9)), Vanished(planned(8), b"", 0.1, "kill_shaped")])
    assert tally.mean_reward == 0.5
    assert (tally.completed, tally.failed, tally.vanished, tally.ended) == (4, 1, 1, 6)


def test_the_table_shows_the_commonest_class_first_with_an_example(planned: Make) -> None:
    tally = Tally()
    tally.add([failure(planned(n), "agent_error", "HTTP 500:\n  boom " + "x" * 200) for n in range(3)])
    tally.add([failure(planned(7, 2, last=2), "rate_limited", transient=True)])
    tally.add([failure(planned(7, 2, attempt=2, last=2), "timeout", transient=True)])
    header, first, second, third = failure_table(tally).splitlines()
    assert header.split() == ["failure", "class", "rollouts", "attempts", "for", "example"]
    assert first.split()[:3] == ["agent_error", "3", "3"]
    assert "task 0 rollout 0: HTTP 500: boom xxx" in first
    assert len(first) < 140
    assert second.split()[:3] == ["timeout", "1", "1"]
    assert third.split()[:3] == ["rate_limited", "0", "1"]


def test_no_failures_no_table() -> None:
    assert failure_table(Tally()) == ""


@pytest.mark.parametrize(("max_failures", "budget"), [(None, None), (0, 0), (5, 5), (0.1, 20), (1.0, 200), (0.0, 0)])
def test_a_whole_number_is_a_number_and_a_fraction_a_share(max_failures: float | None, budget: float) -> None:
    assert failure_budget(max_failures, 200) == budget


def test_exit_codes(planned: Make) -> None:
    done, broken, gone = Tally(completed=1), Tally(completed=1), Tally(completed=1)
    broken.add([failure(planned())])
    gone.add([Vanished(planned(), b"", 0.1, "kill_shaped")])
    assert summary(done, planned=1).exit_code == ExitCode.OK == 0
    assert summary(broken, planned=2).exit_code == ExitCode.FAILURES == 3
    assert summary(gone, planned=2).exit_code == ExitCode.FAILURES
    assert summary(done, planned=2, given_up=1).exit_code == ExitCode.FAILURES
    stopped = Tally(completed=1, ending=Ending.INTERRUPTED)
    assert summary(stopped, planned=2).exit_code == ExitCode.INTERRUPTED == 130
    assert (Tally().exit_code(), Tally().exit_code(still_owed=1)) == (ExitCode.OK, ExitCode.FAILURES)


def test_what_has_ended_is_what_completed_failed_or_vanished(planned: Make) -> None:
    tally = Tally(completed=4)
    tally.add([failure(planned()), Vanished(planned(), b"", 0.1, "x")])
    assert (tally.failed, tally.vanished) == (1, 1)
    assert tally.ended == 6


def test_the_summary_says_what_is_missing_where_everything_is_and_how_to_go_on(planned: Make) -> None:
    tally = Tally(completed=5, ending=Ending.INTERRUPTED)
    tally.add([failure(planned(last=3))])
    text = summary(tally, planned=20, done=3, given_up=2).text()
    assert "8 of 20 rollouts completed (1 failed, 2 given up earlier, 9 not run)" in text
    assert "stopped: interrupted" in text
    assert "d/out_failures.jsonl" in text
    assert "To run the 10 that are left, add: +resume_from_cache=true" in text
    assert "again the 2 whose attempts are used up, add: +resume_from_cache=true '+retry_failed=[auth]'" in text
    finished = summary(Tally(completed=2), planned=2).text()
    assert finished.splitlines()[0] == "2 of 2 rollouts completed"
    assert "resume" not in finished
    assert "metrics:" not in finished
    assert "To run the 1 that is left" in summary(Tally(completed=1), planned=2).text()
    assert (
        f"metrics:  {RunFiles.of(Path('d/out.jsonl')).metrics}"
        in replace(summary(Tally(completed=2), planned=2), has_metrics_file=True).text()
    )


def test_what_was_not_paid_for_is_not_spent() -> None:
    spent = {"input_tokens": 10, "output_tokens": 1, "cached_tokens": 4}
    usage = {"input_tokens": 30, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 0}, "spent": spent}

    assert Record({"response": {"usage": usage}}).usage == Usage(10, 1, 4)


def test_a_summary_is_shown_without_the_columns_of_its_metrics() -> None:
    short = summary(Tally(), planned=1)
    table: Any = [list(range(10_000))]
    assert repr(replace(short, metrics=table)) == repr(short)


def test_tokens_of_earlier_runs_are_counted_or_said_to_be_left_out() -> None:
    tally = Tally(spending=Spending(input_tokens=10, output_tokens=1))
    files = RunFiles.of(Path("out.jsonl"))
    first = Summary(files=files, planned=2, done_before=0, given_up_before={}, tally=tally)
    assert "tokens:   10 in, 1 out\n" in first.text()
    assert "tokens:   10 in, 1 out in this run\n" in replace(first, done_before=1).text()
    assert "tokens:   10 in, 1 out\n" in replace(first, done_before=1, spent=tally.spending).text()
