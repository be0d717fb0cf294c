"""pass@k and reward@k of a run: one threshold, unbiased, the same tasks for every k."""

from itertools import combinations
from math import inf
from random import Random
from statistics import fmean

import pytest

from nemo_gym.metrics.builder import MetricsBuilder
from nemo_gym.metrics.pass_at_k import attempts
from nemo_gym.metrics.table import RolloutTable


def table_of(rewards: list[list[float | None]]) -> RolloutTable:
    builder = MetricsBuilder()
    for task, values in enumerate(rewards):
        for rollout, reward in enumerate(values):
            scored = {} if reward is None else {"reward": reward}
            builder.add({"_ng_task_index": task, "_ng_rollout_index": rollout, **scored})
    return builder.table()


def by_enumeration(rewards: list[list[float]], k: int) -> float:
    return fmean(fmean(max(draw) for draw in combinations(values, k)) for values in rewards)


@pytest.mark.parametrize("threshold", [1.0, 0.25, -1.0])
def test_both_agree_with_all_possible_draws(threshold: float) -> None:
    random = Random(7)
    rewards = [[round(random.uniform(-2, 2), 2) for _ in range(random.choice([5, 6, 8]))] for _ in range(20)]
    found = attempts(table_of(rewards), threshold)
    passes = [[float(reward >= threshold) for reward in values] for values in rewards]
    assert found.tasks == 20
    assert found.pass_at_k == pytest.approx([by_enumeration(passes, k) for k in range(1, 6)])
    assert found.reward_at_k == pytest.approx([by_enumeration(rewards, k) for k in range(1, 6)])


def test_grades_below_the_threshold_are_not_passes() -> None:
    found = attempts(table_of([[0.9, 1.0], [0.6, 0.2]]))
    assert found.pass_at_k == pytest.approx([0.25, 0.5])
    assert found.reward_at_k == pytest.approx([0.675, 0.8])


def test_a_few_unfinished_tasks_are_left_out_and_counted() -> None:
    rewards = [[1.0, 0.0, 0.0, 0.0]] * 19 + [[1.0]]
    found = attempts(table_of(rewards))
    assert (found.tasks, found.left_out) == (19, 1)
    assert found.pass_at_k == pytest.approx([0.25, 0.5, 0.75, 1.0])


def test_many_unfinished_tasks_shorten_the_curve_instead() -> None:
    found = attempts(table_of([[1.0, 0.0, 0.0, 0.0]] * 6 + [[0.0, 0.0]] * 4))
    assert (found.tasks, found.left_out) == (10, 0)
    assert found.pass_at_k == pytest.approx([0.15, 0.3])


def test_the_curve_never_falls_while_a_run_goes_on() -> None:
    random = Random(3)
    rewards: list[list[float | None]] = [[] for _ in range(30)]
    for _ in range(180):
        rewards[random.randrange(30)].append(random.choice([0.0, 0.3, 1.0, None]))
        curve = attempts(table_of(rewards)).pass_at_k
        assert curve == sorted(curve)


@pytest.mark.parametrize("rewards", [[], [[None, None]], [[]]])
def test_without_rewards_there_is_no_curve(rewards: list[list[float | None]]) -> None:
    assert attempts(table_of(rewards)) == (1.0, 0, 0, [], [])


def test_an_infinite_reward_spoils_only_the_reward() -> None:
    found = attempts(table_of([[inf, 0.0], [0.0, 0.0]]))
    assert found.pass_at_k == pytest.approx([0.25, 0.5])
    assert found.reward_at_k == [inf, inf]
