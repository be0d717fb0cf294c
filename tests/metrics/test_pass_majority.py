"""pass@k, averages and majority votes against straightforward implementations."""

import itertools
import math
import statistics
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.metrics.pass_majority import (
    add_avg_sample_std_dev,
    compute_pass_majority_metrics,
    compute_subset_metrics,
    highest_k_metrics,
)

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
    {"answer": st.sampled_from(["a", "b", None]), "reward": st.sampled_from([0, 1, 1.0, 0.5])}
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
