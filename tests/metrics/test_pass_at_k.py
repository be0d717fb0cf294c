"""pass@k and reward@k of a run: one threshold, unbiased, the same tasks for every k."""

import itertools
import math
import statistics
from collections import Counter
from itertools import combinations
from math import inf
from random import Random
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.metrics.builder import MetricsBuilder
from nemo_gym.metrics.pass_at_k import (
    add_avg_sample_std_dev,
    attempts,
    compute_pass_majority_metrics,
    compute_subset_metrics,
    highest_k_metrics,
)
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


Task = list[dict[str, Any]]


def mean(values: list[float]) -> float | None:
    return statistics.fmean(values) if values else None


def accuracy(record: dict[str, Any]) -> dict[str, Any]:
    return {"accuracy": record["reward"]} if "reward" in record else {}


def values_of(task: Task) -> list[float]:
    return [record["reward"] for record in task if "reward" in record]


def plain_pass(tasks: list[Task], k: int) -> float | None:
    results = []
    for values in map(values_of, tasks):
        if len(values) < k:
            continue
        if set(values) <= {0, 1}:
            results.append(statistics.fmean(max(subset) for subset in itertools.combinations(values, k)))
        else:
            results.append(max(values[:k]))
    return mean(results)


def plain_majority(tasks: list[Task], k: int) -> float:
    results = []
    for task in tasks:
        votes = Counter(
            (record["answer"], record["reward"])
            for record in task[:k]
            if record["answer"] is not None and "reward" in record
        )
        most = max(votes.values(), default=0)
        results.append(mean([score for (_, score), count in votes.items() if count == most]) or 0.0)
    return statistics.fmean(results)


RECORD = st.fixed_dictionaries(
    {"answer": st.sampled_from(["a", "b", None])}, optional={"reward": st.sampled_from([0, 1, 1.0, 0.5])}
)
BINARY = st.fixed_dictionaries({"answer": st.sampled_from(["a", "b"]), "reward": st.sampled_from([0, 1])})
TASKS = st.lists(st.one_of(st.lists(RECORD, max_size=6), st.lists(BINARY, max_size=6)), min_size=1, max_size=5)


@settings(deadline=None)
@given(TASKS)
def test_all_families_agree_with_their_definitions(tasks: list[Task]) -> None:
    metrics, scored, names, max_k = compute_pass_majority_metrics(tasks, accuracy, answer_key="answer")
    add_avg_sample_std_dev(metrics, scored, names, max_k)
    assert max_k == max(map(len, tasks))
    for k in range(1, max_k + 1):
        firsts = [values for task in tasks if (values := values_of(task[:k]))]
        spreads = [statistics.stdev(values) for values in firsts if len(values) > 1]
        expected = {
            f"pass@{k}/accuracy": plain_pass(tasks, k),
            f"pass@1[avg-of-{k}]/accuracy": mean([statistics.fmean(values) for values in firsts]),
            f"majority@{k}/accuracy": plain_majority(tasks, k) if "accuracy" in names else None,
        }
        for key, value in expected.items():
            assert (key in metrics) == (value is not None)
            assert value is None or math.isclose(metrics[key], 100 * value, rel_tol=1e-9, abs_tol=1e-9)
        key = f"pass@1[avg-of-{k}]/accuracy/avg_sample_std_dev"
        assert (key in metrics) == (k > 1 and bool(spreads))
        if k > 1 and spreads:
            key = f"pass@1[avg-of-{k}]/accuracy/avg_sample_std_dev"
            assert math.isclose(metrics[key], statistics.fmean(spreads), rel_tol=1e-9, abs_tol=1e-12)


@pytest.mark.parametrize(("n", "zeros"), [(64, 40), (64, 63), (200, 150), (64, 0), (64, 64)])
def test_pass_at_k_is_exact_for_many_repeats(n: int, zeros: int) -> None:
    metrics = compute_pass_majority_metrics([[{"reward": int(i >= zeros)} for i in range(n)]]).metrics
    for k in range(1, n + 1):
        expected = 100 * (1 - math.comb(zeros, k) / math.comb(n, k))
        assert math.isclose(metrics[f"pass@{k}/accuracy"], expected, rel_tol=1e-9, abs_tol=1e-12)


def test_scores_that_are_no_numbers_do_not_count() -> None:
    rewards = [1.0, None, "1", math.nan, [1], 0.0, True]
    result = compute_pass_majority_metrics([[{"reward": reward} for reward in rewards]])
    assert result.metrics["pass@1/accuracy"] == pytest.approx(100 * 2 / 3)
    assert result.metrics["per_sample_aggregate"]["accuracy"] == [100.0, 0.0, 100.0]
    assert [scores["accuracy"] for scores in result.all_score_dicts[0]][1:3] == [None, "1"]


def test_rollouts_without_reward_are_refused_unless_another_score_is_named() -> None:
    with pytest.raises(KeyError, match="reward"):
        compute_pass_majority_metrics([[{}, {"reward": 1}], []])
    result = compute_pass_majority_metrics([[{}, {"reward": 1}], []], score_fn=lambda r: {"accuracy": r.get("reward")})
    assert result.metrics["pass@1/accuracy"] == 100.0


def test_answers_may_be_lists_and_objects() -> None:
    answers: list[Any] = [[1, 2], [1, 2], {"a": 1}]
    tasks = [[{"reward": int(i < 2), "x": answer} for i, answer in enumerate(answers)]]
    assert compute_pass_majority_metrics(tasks, answer_key="x").metrics["majority@3/accuracy"] == 100.0


def test_the_scores_given_are_not_changed() -> None:
    record = {"a": True}
    scored = compute_pass_majority_metrics([[record]], score_fn=lambda r: r).all_score_dicts
    assert scored == [[{"a": 1}]]
    assert record["a"] is True


def test_subsets_of_any_value_are_named_by_it() -> None:
    tasks = [[{"reward": 1, "level": 3}], [{"reward": 0, "level": ["x"]}], [], [{"reward": 0, "level": 0}]]
    metrics = compute_subset_metrics(tasks, "level")
    assert metrics["3/pass@1/accuracy"] == 100.0
    assert metrics["['x']/pass@1/accuracy"] == 0.0
    assert not any(key.startswith("0/") for key in metrics)


def test_the_largest_k_is_the_largest_number() -> None:
    metrics = {"pass@9/a": 1, "pass@10/a": 2, "pass@10/b": 3, "pass@x/a": 4}
    assert highest_k_metrics(metrics, "pass@{k}") == {"pass@10/a": 2, "pass@10/b": 3}


def test_a_rollout_without_a_reward_is_a_key_error_as_environments_expect() -> None:
    with pytest.raises(KeyError, match="reward"):
        compute_pass_majority_metrics([[{"reward": 1.0}, {}]])
