"""How many rollouts run at once, given the memory that is free and the size of their rows."""

import logging
from collections.abc import Iterator

import pytest

from nemo_gym.rollouts.concurrency import AdaptiveLimit, FixedLimit
from nemo_gym.rollouts.memory_limit import FIRST_ROW, SHARE, TIMES_ROW, MemoryLimit
from nemo_gym.rollouts.store.outcome import Completed, PlannedRollout
from nemo_gym.schemas.rows import RolloutKey

GB = 10**9
ANY = PlannedRollout(RolloutKey(0, 0), "a", {}, 1, 99)


def completed(size: int) -> Completed:
    return Completed(ANY, b"x" * size, 1.0, reward=1.0)


def test_rollouts_whose_rows_are_large_are_held_back_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    limit = MemoryLimit(FixedLimit(1024), lambda: 16 * GB)
    assert limit.allowed(0.0) == 1024
    limit.observe(completed(4_000_000), in_flight=1024, now=0.0)
    assert limit.allowed(0.0) == int(SHARE * 16 * GB / (TIMES_ROW * 4_000_000)) == 320
    with caplog.at_level(logging.WARNING):
        for now in range(5):
            limit.observe(completed(4_000_000), in_flight=320, now=now)
    [said] = [record.getMessage() for record in caplog.records]
    assert said.startswith("memory: 320 rollouts at once instead of 1024, to stay within 80 % of the 16.0 GB")
    assert "num_samples_in_parallel=<number>" in said


def test_short_rollouts_are_not_held_back_on_a_small_machine() -> None:
    limit = MemoryLimit(FixedLimit(1024), lambda: GB)
    assert limit.allowed(0.0) == int(SHARE * GB / (TIMES_ROW * FIRST_ROW)) == 200
    limit.observe(completed(10_000), in_flight=200, now=0.0)
    assert limit.allowed(0.0) == 1024


def test_memory_that_runs_out_for_other_reasons_holds_rollouts_back_in_proportion() -> None:
    free: Iterator[int] = iter([10 * GB, 9 * GB, -6 * GB, 9 * GB])
    limit = MemoryLimit(FixedLimit(100), lambda: next(free))
    for now, expected in enumerate([100, 50, 100]):  # little is used, twice the share, little again
        limit.observe(completed(1000), in_flight=100 if now == 0 else 3, now=2.0 * now)
        assert limit.allowed(2.0 * now) == expected


def test_one_rollout_always_runs() -> None:
    limit = MemoryLimit(FixedLimit(8), lambda: 0)
    assert limit.allowed(0.0) == 1


def test_where_memory_is_unknown_the_other_limit_decides() -> None:
    limit = MemoryLimit(AdaptiveLimit(largest=1024), lambda: None)
    limit.observe(completed(10**7), in_flight=8, now=0.0)
    assert limit.allowed(0.0) == 8
    assert limit.adaptive
    assert limit.next_change(0.0) is None
