"""Verdicts that say they are not measurements: kept, in no score, counted beside every mean, and shown as such."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from nemo_gym.base_resources_server import BaseVerifyResponse
from nemo_gym.filters.columns import record_fields
from nemo_gym.judge import JudgeError, judge_failsafe
from nemo_gym.metrics.aggregate import compute_aggregate_metrics
from nemo_gym.metrics.builder import MetricsBuilder
from nemo_gym.metrics.report import coverage
from nemo_gym.metrics.table import RowKeys
from nemo_gym.rollouts.classify import outcome_of_record
from nemo_gym.rollouts.store.outcome import Completed, PlannedRollout
from nemo_gym.rollouts.tally import Tally
from nemo_gym.schemas.record import Record
from nemo_gym.schemas.rows import RolloutKey


def row(task: int, rollout: int, reward: float, **fields: Any) -> dict[str, Any]:
    output = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}]
    return {
        "_ng_task_index": task,
        "_ng_rollout_index": rollout,
        "agent_ref": {"name": "a"},
        "responses_create_params": {"input": f"question {task}"},
        "response": {"output": output, "usage": {"input_tokens": 2, "output_tokens": 3}},
        "reward": reward,
        "accuracy": reward,
        "mask_sample": False,
        "failure_kind": None,
        **fields,
    }


MASK = {"mask_sample": True, "failure_kind": "provider_unavailable", "failure_reason": "no rope"}
ROWS = [row(0, 0, 1.0), row(0, 1, 0.0, **MASK), row(1, 0, 0.5), row(2, 0, 0.0, mask_sample=True)]
COVERAGE = {
    "coverage/measured_rollouts": 2,
    "coverage/masked_rollouts": 2,
    "coverage/measured_tasks": 2,
    "coverage/fully_masked_tasks": 1,
}


def test_a_masked_rollout_has_no_reward_and_no_metrics() -> None:
    masked = Record(ROWS[1])
    assert (masked.reward, masked.metrics, masked.failure) == (None, {}, "provider_unavailable")
    assert Record(ROWS[3]).failure == "masked"
    assert record_fields(masked)["failure_reason"] == "no rope"
    assert "mask_sample" not in Record(ROWS[0]).metrics


def test_masked_rollouts_are_in_no_metric_and_are_counted() -> None:
    seen: list[Any] = []
    metrics = compute_aggregate_metrics(ROWS, lambda tasks: {"n": len(seen.append(tasks) or tasks)})
    assert metrics.agent_metrics["mean/reward"] == 0.75
    assert metrics.agent_metrics["mean/accuracy"] == 0.75
    assert [len(task) for task in seen[0]] == [1, 1]
    for found in (metrics.agent_metrics, metrics.key_metrics):
        assert {name: value for name, value in found.items() if name.startswith("coverage/")} == COVERAGE
    assert [group["_ng_task_index"] for group in metrics.group_level_metrics] == [0, 1]


def test_if_all_are_masked_only_the_coverage_is_left() -> None:
    metrics = compute_aggregate_metrics(ROWS[3:], lambda tasks: {"n": len(tasks)}, lambda found: found)
    names = ("measured_rollouts", "masked_rollouts", "measured_tasks", "fully_masked_tasks")
    expected = {f"coverage/{name}": count for name, count in zip(names, (0, 1, 0, 1), strict=True)}
    assert metrics.agent_metrics == metrics.key_metrics == expected


def test_lines_are_read_as_records_are() -> None:
    lines, whole = MetricsBuilder(), MetricsBuilder()
    for fields in ROWS * 1:
        whole.add(fields)
    assert not lines.add_block(b"".join(json.dumps(fields).encode() + b"\n" for fields in ROWS))
    assert lines.table().coverage_metrics() == whole.table().coverage_metrics() == COVERAGE
    assert lines.table().top["reward"].values.tolist() == [1.0, 0.5]


def test_a_plan_counts_them_as_not_measured() -> None:
    builder = MetricsBuilder()
    for fields in ROWS:
        builder.add(fields)
    table = builder.table()
    planned = RowKeys.of([RolloutKey(0, 0), RolloutKey(0, 1), RolloutKey(1, 0), RolloutKey(2, 0), RolloutKey(3, 0)])
    known = coverage(planned, table.key_columns(), [], table.masked)
    assert str(known) == "2 of 5 rollouts completed (40.0 %), 2 failed (masked 2), 1 not run"


def test_the_running_mean_leaves_them_out() -> None:
    tally = Tally()
    for fields in ROWS:
        outcome = outcome_of_record(PlannedRollout.of(fields), dict(fields), 0.1)
        assert isinstance(outcome, Completed)  # it is kept
        tally.add([outcome])
    assert (tally.completed, tally.masked, tally.mean_reward) == (4, 2, 0.75)


def test_nothing_masked_is_exported(tmp_path: Path) -> None:
    from nemo_gym.api.runs import load

    path = tmp_path / "rollouts.jsonl"
    path.write_text("".join(json.dumps(fields) + "\n" for fields in ROWS))
    run = load(path)
    run.export("sft", tmp_path / "sft.jsonl", min_reward="all")
    assert len((tmp_path / "sft.jsonl").read_text().splitlines()) == 2
    assert float(run.mean_reward) == pytest.approx(0.75)
    assert [rollout.reward for rollout in run] == [1.0, None, 0.5, None]


async def test_a_verdict_that_a_judge_owes_is_masked_and_a_failure() -> None:
    class Body(BaseModel):
        question: str
        instance_config: dict[str, Any]

    async def verify(body: Body) -> BaseVerifyResponse:
        raise JudgeError("x" * 3000)

    reply = await judge_failsafe(verify)(Body(question="?", instance_config={"a": 1}))
    said = json.loads(reply.body)
    assert said["_ng_failure_class"] == said["failure_kind"] == "judge_failed"
    assert said["mask_sample"] is said["instance_config"]["mask_sample"] is True
    assert len(said["failure_reason"]) == 2000


def test_each_repeat_has_its_own_metrics() -> None:
    metrics = compute_aggregate_metrics(ROWS, None, None, lambda tasks: {"solved": sum(t[0]["reward"] for t in tasks)})
    [only] = metrics.repeat_level_metrics  # the second repeat of task 0 was not measured
    assert (only["_ng_rollout_index"], only["sample_count"], only["missing_count"]) == (0, 2, 0)
    assert (only["mean/reward"], only["p75/reward"], only["sem/reward"], only["solved"]) == (0.75, 0.875, 0.25, 1.5)
    more = compute_aggregate_metrics([*ROWS, row(1, 1, 0.0)])
    assert [each["missing_count"] for each in more.repeat_level_metrics] == [0, 1]
