"""Who runs alone after crashes, whose attempts a crash uses up, and when a run gives up."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import pytest

from nemo_gym.rollouts.classify import failed
from nemo_gym.rollouts.concurrency import FixedLimit
from nemo_gym.rollouts.dispatch import Dispatch
from nemo_gym.rollouts.store.outcome import Completed, Failed, Failure, Outcome, PlannedRollout
from nemo_gym.rollouts.suspects import FRUITLESS_CRASHES, CrashWatch
from nemo_gym.schemas.rows import FailureClass

Make = Callable[..., PlannedRollout]


def crashed(planned: PlannedRollout, crash: str, *, in_call: bool = True) -> Failed:
    failure = Failure.of(FailureClass.SERVER_CRASHED, "far ended", crash=crash, in_call=in_call)
    return failed(planned, failure, 1.0)


def test_a_rollout_whose_calls_were_under_way_in_two_crashes_is_a_suspect(planned: Make) -> None:
    watch, one = CrashWatch(), planned(last=3)
    assert watch.judge(crashed(one, "a")).failure.outside
    assert not watch.is_suspect(one.key)
    assert watch.judge(crashed(one, "b")).failure.outside
    assert watch.is_suspect(one.key)


def test_one_that_only_had_a_session_is_a_suspect_after_three(planned: Make) -> None:
    watch, one = CrashWatch(), planned()
    for crash in "ab":
        watch.judge(crashed(one, crash, in_call=False))
        assert not watch.is_suspect(one.key)
    assert watch.judge(crashed(one, "c", in_call=False)).failure.outside
    assert watch.is_suspect(one.key)


def test_a_crash_while_a_suspect_runs_alone_uses_up_its_attempt(planned: Make) -> None:
    watch, one = CrashWatch(), planned(last=3)
    for crash in "ab":
        watch.judge(crashed(one, crash))
    own = watch.judge(crashed(one, "c"))
    assert (own.failure.kind, own.failure.outside, own.will_retry) == ("server_crashed", False, True)
    line = json.loads(own.line)
    assert line["_ng_failure_class"] == "server_crashed"
    assert "_ng_owed" not in line
    assert line["error_message"] == "it was at work in 3 crashes, the last time alone: far ended"


def test_a_completed_rollout_is_no_longer_suspected(planned: Make) -> None:
    watch, one = CrashWatch(), planned()
    for crash in "ab":
        watch.judge(crashed(one, crash))
    watch.note_completed(one.key)
    assert not watch.is_suspect(one.key)


def test_crashes_in_a_row_without_a_completed_rollout_end_the_run(planned: Make) -> None:
    watch = CrashWatch()
    for number in range(FRUITLESS_CRASHES):
        assert not watch.is_over
        for row in range(10):  # all of them are hit by the same crash
            watch.judge(crashed(planned(10 * number + row), f"crash {number}"))
    assert watch.is_over
    assert watch.why_it_ended() == "10 crashes in a row without a completed rollout: far ended"


def test_a_completed_rollout_in_between_starts_the_count_again(planned: Make) -> None:
    watch = CrashWatch()
    for number in range(3 * FRUITLESS_CRASHES):
        watch.judge(crashed(planned(number), f"crash {number}"))
        watch.note_completed(planned(100 + number).key)
    assert not watch.is_over


def test_a_suspect_that_crashes_alone_does_not_count_if_others_completed(planned: Make) -> None:
    """Many bad rows at the end of a run are not a server that does not stay up."""
    watch, rows = CrashWatch(), [planned(n) for n in range(2 * FRUITLESS_CRASHES)]
    for crash in "ab":
        for row in rows:
            watch.judge(crashed(row, crash))
    watch.note_completed(planned(99).key)
    for number, row in enumerate(rows):
        assert not watch.judge(crashed(row, f"alone {number}")).failure.outside
    assert not watch.is_over


@dataclass
class Crashing:
    """Attempts in a Gym with one server, which some rows crash; everything that runs then is hit."""

    bad: set[int]
    seconds: float = 0.01
    running: dict[int, "asyncio.Future[str]"] = field(default_factory=dict)
    alone: list[int] = field(default_factory=list)
    crashes: int = 0
    numbers: "count[int]" = field(default_factory=lambda: count(1))

    async def __call__(self, planned: PlannedRollout) -> Outcome:
        task = planned.key.task
        if self.crashes >= 2 and not self.running:
            self.alone.append(task)
        crash = self.running[task] = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait([crash], timeout=self.seconds * (0.5 if task in self.bad else 1 + task % 3))
            if crash.done():
                return crashed(planned, crash.result())
            if task not in self.bad:
                return Completed(planned, b"{}", self.seconds, 1.0)
            self.crashes = next(self.numbers)
            for other in self.running.values():
                if not other.done():
                    other.set_result(f"crash {self.crashes}")
            return crashed(planned, f"crash {self.crashes}")
        finally:
            del self.running[task]


async def run(rows: list[PlannedRollout], attempt: Crashing, limit: int) -> tuple[Dispatch, dict[int, list[Outcome]]]:
    dispatch = Dispatch(
        iter(rows), attempt, limit=FixedLimit(limit), pause=lambda *_: 0.001 * attempt.seconds, drain_s=1.0
    )
    outcomes: dict[int, list[Outcome]] = {}
    async with asyncio.timeout(60):
        async for batch in dispatch:
            for outcome in batch:
                outcomes.setdefault(outcome.planned.key.task, []).append(outcome)
    return dispatch, outcomes


@pytest.mark.parametrize("bad", [{3}, {0}, {39}, {1, 2, 30, 31, 32}, set(range(0, 40, 4))])
async def test_bad_rows_fail_on_their_own_and_all_others_complete(planned: Make, bad: set[int]) -> None:
    attempt = Crashing(bad)
    dispatch, outcomes = await run([planned(n, last=3) for n in range(40)], attempt, limit=8)
    assert not dispatch.ran_out_of_patience
    for task in range(40):
        last = outcomes[task][-1]
        assert isinstance(last, Failed if task in bad else Completed), task
    for task in bad:
        own = [each for each in outcomes[task] if isinstance(each, Failed) and not each.failure.outside]
        assert [each.planned.attempt for each in own] == [1, 2, 3]
        assert own[-1].is_given_up
        assert own[-1].failure.kind == FailureClass.SERVER_CRASHED
        assert attempt.alone.count(task) >= 3
    spared = [task for task in range(40) if task not in bad]
    assert all(each.failure.outside for task in spared for each in outcomes[task] if isinstance(each, Failed))


async def test_a_server_that_every_rollout_crashes_ends_the_run_and_leaves_them_owed(planned: Make) -> None:
    attempt = Crashing(set(range(40)))
    dispatch, outcomes = await run([planned(n, last=3) for n in range(40)], attempt, limit=8)
    assert dispatch.ran_out_of_patience
    assert dispatch.outage.why_it_ended().startswith("10 crashes in a row without a completed rollout: ")
    assert attempt.crashes < 2 * FRUITLESS_CRASHES
    last = [each[-1] for each in outcomes.values()]
    assert not any(isinstance(each, Failed) and each.is_given_up for each in last)


async def test_a_plan_of_one_bad_row_ends(planned: Make) -> None:
    _, outcomes = await run([planned(0, last=3)], Crashing({0}), limit=8)
    assert len(outcomes[0]) == 5
    assert outcomes[0][-1].is_given_up  # type: ignore[union-attr]
