from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_gym.rollouts.outcome import Completed, Failed, Failure, Vanished
from nemo_gym.rollouts.planned import Planned
from nemo_gym.rollouts.stop_rules import failure_budget
from nemo_gym.rollouts.store.files import RunFiles
from nemo_gym.rollouts.summary import Summary
from nemo_gym.rollouts.tally import Ending, ExitCode, Tally, failure_table

Make = Callable[..., Planned]


def failure(planned: Planned, kind: str = "timeout", message: str = "late", *, transient: bool = False) -> Failed:
    return Failed(planned, b"", 0.1, Failure(kind=kind, message=message, transient=transient))


def summary(tally: Tally, *, planned: int, done: int = 0, given_up: int = 0) -> Summary:
    files = RunFiles.of(Path("d/out.jsonl"))
    return Summary(files=files, planned=planned, done_before=done, given_up_before=given_up, tally=tally)


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
    assert summary(done, planned=1).exit_code == ExitCode.DONE == 0
    assert summary(broken, planned=2).exit_code == ExitCode.FAILURES == 3
    assert summary(gone, planned=2).exit_code == ExitCode.FAILURES
    assert summary(done, planned=2, given_up=1).exit_code == ExitCode.FAILURES
    stopped = Tally(completed=1, ending=Ending.INTERRUPTED)
    assert summary(stopped, planned=2).exit_code == ExitCode.INTERRUPTED == 130


def test_the_summary_says_what_is_missing_where_everything_is_and_how_to_go_on(planned: Make) -> None:
    tally = Tally(completed=5, ending=Ending.INTERRUPTED)
    tally.add([failure(planned())])
    text = summary(tally, planned=20, done=3, given_up=2).text()
    assert "8 of 20 rollouts completed (1 failed, 2 given up earlier, 9 not run)" in text
    assert "stopped: interrupted" in text
    assert "d/out_failures.jsonl" in text
    assert "+resume_from_cache=true" in text
    finished = summary(Tally(completed=2), planned=2).text()
    assert finished.splitlines()[0] == "2 of 2 rollouts completed"
    assert "resume" not in finished
