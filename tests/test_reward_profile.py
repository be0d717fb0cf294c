"""The profiler under the interface's names."""

import math
from typing import Any

import pytest

from nemo_gym.reward_profile import RewardProfileConfig, RewardProfiler

ROWS: list[dict[str, Any]] = [
    {"q": task, "_ng_task_index": task, "_ng_rollout_index": 0, "agent_ref": {"name": "a"}} for task in range(12)
]
RESULTS = [{**row, "reward": 1.0} for row in ROWS]


def test_pairs_come_in_the_order_of_the_keys() -> None:
    pairs = RewardProfiler().align_rows_and_results(ROWS, RESULTS[::-1])
    assert [row["q"] for row, _ in pairs] == list(range(12))


def test_at_most_ten_keys_are_listed() -> None:
    with pytest.raises(ValueError, match=r"12 materialized inputs have no result: .*\(9, 0\)\] and 2 more"):
        RewardProfiler().align_rows_and_results(ROWS, [])
    with pytest.raises(ValueError, match="two materialized input rows have the same key"):
        RewardProfiler().align_rows_and_results([ROWS[0], ROWS[0]], [])
    with pytest.raises(ValueError, match="a result has no _ng_task_index"):
        RewardProfiler().align_rows_and_results(ROWS, [{"reward": 1}])


def test_nothing_gives_empty_lists() -> None:
    assert RewardProfiler().profile_from_data([], []) == ([], [])
    assert RewardProfiler().profile_completion_summary([], [])["reward_profile_completion_pct"] == 100.0


def test_the_agent_is_that_of_the_plan() -> None:
    results = [{**result, "agent_ref": None} for result in RESULTS]
    (agent,) = RewardProfiler().profile_from_data(ROWS, results).agents
    assert agent["agent_ref"] == {"name": "a"}
    assert agent["mean/reward"] == 1.0


def test_frames_are_mappings_or_records() -> None:
    profiler = RewardProfiler()
    frame = {"reward": [1.0, 0.0], "label": ["x", "y"], "n": [1, None]}
    assert profiler.calculate_metrics_single_df(frame)["mean/reward"] == 0.5
    assert profiler.describe_dataframe([{"reward": 1.0}, {"reward": 0.0}])["max"] == {"reward": 1.0}
    assert profiler.histogram([0, 1, math.inf, None, math.nan], bins=2) == ([1, 1], [0.0, 0.5, 1.0])
    assert profiler.rollout_info_from_result({**RESULTS[3], "response": {"usage": {"t": 1}}}) == {
        "rollout_id": "3:0", "_ng_task_index": 3, "_ng_rollout_index": 0, "reward": 1.0, "t": 1, "q": 3,
    }  # fmt: skip
    assert profiler.prepare_for_serialization([{"mean/x": 1, "histogram/x": object()}]) == [{"mean/x": 1}]


def test_both_paths_are_required() -> None:
    with pytest.raises(ValueError, match="rollouts_jsonl_fpath"):
        RewardProfileConfig.model_validate({"materialized_inputs_jsonl_fpath": "x"})
    config = {"materialized_inputs_jsonl_fpath": "x", "rollouts_jsonl_fpath": "y", "unknown": 1}
    assert RewardProfileConfig.model_validate(config).allow_partial_rollouts is False
