"""The default metrics with the hooks of an environment, also when a hook fails."""

import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.metrics.aggregate import (
    AggregateMetricsMixin,
    compute_aggregate_metrics,
    group_by_task,
    rollout_infos,
    task_entries,
    write_metrics_file,
)
from nemo_gym.metrics.builder import MetricsBuilder
from nemo_gym.schemas.record import Record

RESPONSES = [
    {"_ng_task_index": task, "_ng_rollout_index": repeat, "reward": float(repeat)}
    for task in (3, 1)
    for repeat in (0, 1)
]


def test_the_mixin_adds_nothing_and_selects_the_means() -> None:
    mixin = AggregateMetricsMixin()
    metrics = compute_aggregate_metrics(RESPONSES, mixin.compute_metrics, mixin.get_key_metrics)
    assert metrics == compute_aggregate_metrics(RESPONSES)
    assert metrics.key_metrics == {"mean/reward": 0.5}


def test_a_hook_sees_the_tasks_sorted_and_their_responses_as_they_came() -> None:
    seen: list[Any] = []
    compute_aggregate_metrics(RESPONSES, lambda tasks: seen.append(tasks) or {})  # type: ignore[func-returns-value]
    assert seen == [[RESPONSES[2:], RESPONSES[:2]]]


def test_a_hook_for_each_repeat_sees_its_rollouts_that_were_measured() -> None:
    seen: list[Any] = []

    def hook(found: Any) -> dict[str, Any]:
        seen.append([[response["reward"] for response in task] for task in found])
        return {"tasks": len(found)}

    masked = {"_ng_task_index": 5, "_ng_rollout_index": 1, "reward": 9.0, "mask_sample": True}
    metrics = compute_aggregate_metrics([*RESPONSES, masked], compute_repeat_metrics_fn=hook)
    assert seen == [[[0.0], [0.0]], [[1.0], [1.0]]]
    assert [entry["tasks"] for entry in metrics.repeat_level_metrics or []] == [2, 2]


def test_the_spread_of_a_repeat_is_that_of_its_tasks() -> None:
    responses = [{"_ng_task_index": task, "_ng_rollout_index": 0, "reward": float(task)} for task in range(5)]
    (entry,) = compute_aggregate_metrics(responses).repeat_level_metrics or []
    assert (entry["p25/reward"], entry["p75/reward"]) == (1.0, 3.0)
    assert entry["sem/reward"] == pytest.approx(math.sqrt(2.5 / 5))
    (single,) = compute_aggregate_metrics(responses[:1]).repeat_level_metrics or []
    assert single["sem/reward"] == 0.0


def test_responses_without_an_index_are_of_task_0() -> None:
    named = {"_ng_task_index": 1, "reward": 1.0}
    assert group_by_task([named, {"reward": 0.0}, {"_ng_task_index": 0}]) == [
        [{"reward": 0.0}, {"_ng_task_index": 0}],
        [named],
    ]


def test_hooks_are_not_called_without_responses() -> None:
    def hook(_: Any) -> dict[str, Any]:
        raise AssertionError

    assert compute_aggregate_metrics([], hook, hook).model_dump() == {
        "group_level_metrics": [],
        "agent_metrics": {},
        "key_metrics": {},
    }


def test_a_hook_that_raises_loses_only_its_own_metrics(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: Any) -> dict[str, Any]:
        raise ZeroDivisionError("by zero")

    with caplog.at_level(logging.ERROR):
        metrics = compute_aggregate_metrics(RESPONSES, broken)
    assert metrics.agent_metrics["mean/reward"] == 0.5
    assert metrics.agent_metrics["errors/compute_metrics"] == "ZeroDivisionError: by zero"
    assert metrics.key_metrics == {"mean/reward": 0.5}
    assert len(metrics.group_level_metrics) == 2
    assert "compute_metrics failed" in caplog.text


def test_a_hook_that_returns_no_object_is_an_error_of_that_hook() -> None:
    metrics = compute_aggregate_metrics(RESPONSES, lambda _: None)  # type: ignore[arg-type, return-value]
    assert "must return an object, not NoneType" in metrics.agent_metrics["errors/compute_metrics"]


def test_key_metrics_fall_back_to_the_means_when_their_hook_raises() -> None:
    metrics = compute_aggregate_metrics(RESPONSES, None, lambda metrics: {"x": metrics["absent"]})
    assert metrics.key_metrics == {"mean/reward": 0.5}
    assert metrics.agent_metrics["errors/get_key_metrics"] == "KeyError: 'absent'"


def test_odd_entries_among_the_metrics_per_task_are_ignored() -> None:
    per_task = [None, {"bleu": 1}, {"_ng_task_index": 1, "bleu": 2, "mean/reward": 9}]
    metrics = compute_aggregate_metrics(RESPONSES, lambda _: {"per_task_metrics": per_task, "extra": 1})
    assert [group.get("bleu") for group in metrics.group_level_metrics] == [2, None]
    assert metrics.group_level_metrics[0]["mean/reward"] == 9
    assert metrics.agent_metrics["extra"] == 1
    assert "per_task_metrics" not in metrics.agent_metrics


def test_a_response_that_is_no_object_is_refused() -> None:
    with pytest.raises(ValueError, match="not an object but list"):
        compute_aggregate_metrics([[]])  # type: ignore[list-item]


def test_tasks_without_an_index_come_first() -> None:
    assert group_by_task([{"_ng_task_index": 2}, {}]) == [[{}], [{"_ng_task_index": 2}]]


def test_bookkeeping_is_no_metric() -> None:
    response = {"reward": 1.0, "_ng_failure_terminal": True, "agent_ref": 3, "responses_create_params": 4, "_own": 5}
    assert list(compute_aggregate_metrics([response]).key_metrics) == ["mean/reward", "mean/_own"]


@pytest.mark.parametrize(
    ("output", "calls", "turns"),
    [
        ([], 0, 0),
        ([{"type": "message", "role": "assistant"}], 0, 1),
        ([{"type": "reasoning"}, {"type": "function_call"}, {"type": "function_call"}], 2, 1),
        ([{"type": "web_search_call"}, {"type": "message"}], 1, 1),
        ([{"type": "function_call"}, {"type": "function_call_output"}, {"type": "message"}], 1, 2),
        ([{"type": "message"}, {"type": "message", "role": "user"}, {"type": "message"}], 0, 2),
        ([{"role": "user"}, 7, None], 0, 1),
    ],
)
def test_a_turn_is_what_the_model_says_in_one_go(output: list[Any], calls: int, turns: int) -> None:
    assert Record({"response": {"output": output}}).counts == (calls, turns)


@pytest.mark.parametrize("record", [{}, {"response": None}, {"response": {"output": "text"}}, {"output": "text"}])
def test_without_a_transcript_there_are_no_counts(record: dict[str, Any]) -> None:
    assert Record(record).counts == (None, None)


@pytest.mark.parametrize("rewards", [[True, False], [True, 0.5], [1, False], [True]])
def test_a_reward_that_is_true_stays_true_where_rollouts_are_listed(rewards: list[Any], tmp_path: Path) -> None:
    records = [
        {"_ng_task_index": 0, "_ng_rollout_index": n, "reward": reward, "ok": True} for n, reward in enumerate(rewards)
    ]
    (entry,) = compute_aggregate_metrics(records).group_level_metrics
    assert [type(info["reward"]) for info in entry["rollout_infos"] if isinstance(info["reward"], bool)] == [
        bool for reward in rewards if isinstance(reward, bool)
    ]
    assert [info["reward"] for info in entry["rollout_infos"]] == rewards
    assert {type(info["ok"]) for info in entry["rollout_infos"]} == {int}
    builder = MetricsBuilder()
    for record in records:
        builder.add_line(json.dumps(record).encode())
    write_metrics_file(tmp_path / "m.json", {"a": builder.table()})
    assert json.loads((tmp_path / "m.json").read_text())[0]["group_level_metrics"] == [entry]


def test_a_file_of_metrics_holds_every_agent_with_every_task(tmp_path: Path) -> None:
    builder = MetricsBuilder()
    for response in RESPONSES:
        builder.add(response)
    write_metrics_file(tmp_path / "m.json", {"b": builder.table(), "a": compute_aggregate_metrics(RESPONSES)})
    found = json.loads((tmp_path / "m.json").read_text())
    assert [entry["agent_ref"]["name"] for entry in found] == ["a", "b"]
    assert [len(entry["group_level_metrics"]) for entry in found] == [2, 2]
    assert found[0]["group_level_metrics"] == found[1]["group_level_metrics"]


def test_a_task_says_how_much_of_it_is_done() -> None:
    builder = MetricsBuilder()
    for response in RESPONSES:
        builder.add(response)
    first, second = task_entries(builder.table(), expected={1: 8, 3: 0})
    assert (first["num_rollouts"], first["missing_num_rollouts"], first["reward_profile_completion_pct"]) == (2, 6, 25)
    assert (second["num_rollouts"], len(second["rollout_infos"])) == (2, 2)
    assert (second["missing_num_rollouts"], second["reward_profile_completion_pct"]) == (0, 100.0)


def infos(*rollouts: dict[str, Any]) -> list[dict[str, Any]]:
    builder = MetricsBuilder()
    for number, rollout in enumerate(rollouts):
        builder.add({"_ng_task_index": 0, "_ng_rollout_index": number, **rollout})
    table = builder.table()
    return rollout_infos(table, 0, len(table))


def test_a_field_of_the_record_wins_over_the_same_one_of_usage_row_by_row() -> None:
    usage = {"response": {"usage": {"input_tokens": 10, "output_tokens": 1}}}
    found = infos({"input_tokens": 5, **usage}, usage, {"input_tokens": 7}, {})
    assert [info.get("input_tokens") for info in found] == [5, 10, 7, None]
    assert [info.get("output_tokens") for info in found] == [1, 1, None, None]
    assert all(type(info["input_tokens"]) is int for info in found[:3])
    halves = infos({"input_tokens": 0.5, **usage}, usage)
    assert [info["input_tokens"] for info in halves] == [0.5, 10.0]


def test_the_fields_of_a_rollout_come_in_their_order() -> None:
    usage = {"response": {"usage": {"input_tokens": 10}}}
    assert list(infos({"zeal": 1.0, "reward": 0.5, **usage})[0]) == [
        *("rollout_id", "_ng_task_index", "_ng_rollout_index"),
        *("reward", "input_tokens", "zeal"),
    ]


@pytest.mark.parametrize("odd", ["high", [1], {"a": 1}])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_reward_that_is_not_a_number_stays_in_its_place_unchanged(odd: Any, place: int) -> None:
    rewards: list[Any] = [0.25, 0.5, 0.75]
    rewards[place] = odd
    found = infos(*({"reward": reward, "x": 1.0} for reward in rewards))
    assert [info["reward"] for info in found] == rewards
    assert list(found[place])[:5] == ["rollout_id", "_ng_task_index", "_ng_rollout_index", "reward", "x"]
    builder = MetricsBuilder()
    for number, reward in enumerate(rewards):
        builder.add({"_ng_task_index": 0, "_ng_rollout_index": number, "reward": reward})
    table = builder.table()
    for start in range(3):
        assert [info["reward"] for info in rollout_infos(table, start, start + 1)] == [rewards[start]]
