"""Rollouts whose tokens are not one sequence are reported, or fail; others are left alone."""

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from nemo_gym.rollouts.classify import outcome_of_record
from nemo_gym.rollouts.gates import TokenContinuity, continuity_gate
from nemo_gym.rollouts.store.outcome import Completed, Failed, Outcome, PlannedRollout

Make = Callable[..., PlannedRollout]


def record(*calls: tuple[list[int], list[int]], **fields: Any) -> dict[str, Any]:
    output = [{"type": "message", "prompt_token_ids": p, "generation_token_ids": g} for p, g in calls]
    return {"response": {"output": output}, "reward": 1.0, **fields}


WHOLE = record(([1, 2], [3]), ([1, 2, 3, 4], [5]))
BROKEN = record(([1, 2], [3]), ([1, 2, 9, 4, 4, 4], [5]), ([7], [8]))


async def collect(mode: TokenContinuity, planned: Make, *records: dict[str, Any]) -> list[Outcome]:
    async def attempt(one: PlannedRollout) -> Outcome:
        return outcome_of_record(one, json.loads(json.dumps(records[one.key.task])), 0.1)

    with continuity_gate(attempt, mode) as gated:
        return [await gated(planned(task, 0, last=3)) for task in range(len(records))]


async def test_breaks_are_told_of_in_one_line_at_the_end(planned: Make, caplog: pytest.LogCaptureFixture) -> None:
    outcomes = await collect(TokenContinuity.WARN, planned, WHOLE, BROKEN, BROKEN, {"reward": 0.0})
    assert all(isinstance(outcome, Completed) for outcome in outcomes)
    [warning] = caplog.records
    assert warning.levelno == logging.WARNING
    assert "2 of 3 rollouts with token ids are not one sequence of tokens" in warning.message
    assert "task 1 rollout 0, turn 2: token 2 of the prompt is 9 and was 3" in warning.message


async def test_breaks_can_be_failures(planned: Make, caplog: pytest.LogCaptureFixture) -> None:
    whole, broken = await collect(TokenContinuity.FAIL, planned, WHOLE, BROKEN)
    assert isinstance(whole, Completed)
    assert isinstance(broken, Failed)
    assert (broken.failure.kind, broken.will_retry) == ("invalid_response", False)
    assert "turn 2: token 2 of the prompt is 9 and was 3" in broken.failure.message
    assert "(and 1 more)" in broken.failure.message
    assert "reward" not in broken.record
    assert len(caplog.records) == 1


async def test_nothing_is_looked_at_if_nobody_wants_to_know(planned: Make, caplog: pytest.LogCaptureFixture) -> None:
    [outcome] = await collect(TokenContinuity.OFF, planned, BROKEN)
    assert isinstance(outcome, Completed)
    assert not caplog.records


@pytest.mark.parametrize(
    "odd",
    [
        {"reward": 1.0},
        {"reward": 1.0, "response": None, "note": {"generation_token_ids": [1]}},
        {"reward": 1.0, "response": {"output": ["generation_token_ids", None]}, "generation_token_ids": 1},
        {"_ng_failure_class": "mine", **BROKEN},
        {"_ng_no_persist": True, **BROKEN},
    ],
)
async def test_what_has_no_token_ids_or_is_no_result_is_left_alone(
    planned: Make, odd: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    [outcome] = await collect(TokenContinuity.FAIL, planned, odd)
    assert outcome == outcome_of_record(planned(0, 0, last=3), dict(odd), 0.1)
    assert not caplog.records
