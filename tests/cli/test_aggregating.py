"""Aggregation from the command line without a Gym; with one see ``test_collect``."""

import json
import socket
from pathlib import Path

import pytest

TWO = "+input_glob='s1.jsonl,s2.jsonl'"
OUTPUT = ("+output_jsonl_fpath=all.jsonl",)


@pytest.fixture
def nobody() -> str:
    """The address of a head server that is not there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"+head_server={{host: 127.0.0.1, port: {server.getsockname()[1]}}}"


def shard(name: str, *records: tuple[int, float], tail: str = "") -> None:
    rows = [{"_ng_task_index": t, "_ng_rollout_index": 0, "reward": r, "agent_ref": {"name": "x"}} for t, r in records]
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)


def test_without_a_gym_the_default_metrics_are_computed_and_that_is_said(run, nobody):
    shard("s1.jsonl", (1, 1.0), (0, 0.0))
    shard("s2.jsonl", (2, 0.5), (0, 0.0))
    ran = run("ng_aggregate_rollouts", "+input_glob=s?.jsonl", *OUTPUT, nobody)
    assert ran.code == 0, ran.err
    assert ran.out.startswith("Key metrics for x:\n")
    assert json.loads(ran.out.partition("\n")[2]) == {"mean/reward": 0.5}
    assert "these are the default metrics" in ran.err
    assert "1 rollouts are there more than once and count once" in ran.err
    assert "x: 3 rollouts" in ran.err
    assert "metrics: all_aggregate_metrics.json" in ran.err
    assert [json.loads(line)["_ng_task_index"] for line in Path("all.jsonl").read_text().splitlines()] == [0, 1, 2]
    assert Path("all_aggregate_details.json").exists()


def test_a_gym_that_is_asked_for_must_be_there(run, nobody):
    shard("s1.jsonl", (1, 1.0))
    ran = run("ng", "eval", "aggregate", "-i", "s1.jsonl", "-o", "all.jsonl", "--no-serve", nobody)
    assert ran.code == 1
    assert "Could not connect to the head server" in ran.err


def test_lines_that_can_not_be_read_are_counted_or_refused(run, nobody):
    shard("s1.jsonl", (1, 1.0), tail='{"torn')
    ran = run("ng_aggregate_rollouts", "+input_glob=s1.jsonl", *OUTPUT, nobody)
    assert ran.code == 0, ran.err
    assert "warning: s1.jsonl line 2 does not count: not JSON" in ran.err
    assert "1 rollouts, 1 unreadable lines left out" in ran.err
    refused = run(
        "ng_aggregate_rollouts", "+input_glob=s1.jsonl", "+output_jsonl_fpath=b.jsonl", "+strict=true", nobody
    )
    assert refused.code == 1
    assert "error: s1.jsonl: line 2: not JSON" in refused.err
    assert not Path("b.jsonl").exists()


@pytest.mark.parametrize(("choice", "reward"), [("first", 1.0), ("last", 0.0)])
def test_rollouts_that_differ_are_an_error_unless_one_is_chosen(run, nobody, choice, reward):
    shard("s1.jsonl", (1, 1.0))
    shard("s2.jsonl", (1, 0.0))
    ran = run("ng_aggregate_rollouts", TWO, *OUTPUT, nobody)
    assert ran.code == 1
    assert "task 1 rollout 0 is there twice, and differs: s1.jsonl line 1 and s2.jsonl line 1" in ran.err
    chosen = run("ng_aggregate_rollouts", TWO, *OUTPUT, f"+on_conflict={choice}", "+merge_shards=false", nobody)
    assert json.loads(chosen.out.partition("\n")[2]) == {"mean/reward": reward}
    assert not Path("all.jsonl").exists()


def test_rollouts_of_nobody_have_no_metrics(run, nobody):
    Path("s.jsonl").write_text('{"reward": 1}\n')
    ran = run("ng_aggregate_rollouts", "+input_glob=s.jsonl", *OUTPUT, nobody)
    assert (ran.code, ran.out) == (0, "")
    assert "no metrics: no rollout names an agent" in ran.err


def test_two_runs_are_compared_task_by_task(run):
    shard("a.jsonl", *((task, 0.0) for task in range(20)))
    shard("b.jsonl", *((task, float(task > 4)) for task in range(21)))
    Path("a_materialized_inputs.jsonl").write_text(Path("b.jsonl").read_text())
    ran = run("ng_compare", "+a=a.jsonl", "+b=b.jsonl")
    assert ran.code == 0, ran.err
    assert "20 tasks in both runs (0 only in a, 1 only in b)" in ran.out
    assert "difference +0.75" in ran.out
    assert "significant" in ran.out
    assert "newly solved: 15 (tasks 5, 6, 7" in ran.out
    assert "a: a.jsonl, 20 of 21 rollouts completed (95.2 %), 1 not run" in ran.err
    assert "b: b.jsonl, 21 rollouts" in ran.err


def test_a_comparison_can_be_data(run):
    shard("a.jsonl", (0, 0.4))
    shard("b.jsonl", (0, 0.6))
    ran = run("ng", "eval", "compare", "+a=a.jsonl", "+b=b.jsonl", "+pass_threshold=0.5", "--json")
    found = json.loads(ran.out)
    assert (found["paired_tasks"], found["gained_tasks"], found["difference_low"]) == (1, [0], None)


def test_a_run_that_is_not_there_can_not_be_compared(run):
    shard("a.jsonl", (0, 1.0))
    ran = run("ng_compare", "+a=a.jsonl", "+b=b.jsonl")
    assert (ran.code, ran.out) == (1, "")
    assert "error: b.jsonl: no such file\n\nhint: correct +b=<rollout file>" in ran.err
