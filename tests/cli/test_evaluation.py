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
    assert "1 rollouts occur more than once and count once" in ran.err
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
    assert "task 1 rollout 0 occurs twice, with different content: s1.jsonl line 1 and s2.jsonl line 1" in ran.err
    chosen = run("ng_aggregate_rollouts", TWO, *OUTPUT, f"+on_conflict={choice}", "+merge_shards=false", nobody)
    assert json.loads(chosen.out.partition("\n")[2]) == {"mean/reward": reward}
    assert not Path("all.jsonl").exists()


def test_rollouts_of_nobody_have_no_metrics(run, nobody):
    Path("s.jsonl").write_text('{"reward": 1}\n')
    ran = run("ng_aggregate_rollouts", "+input_glob=s.jsonl", *OUTPUT, nobody)
    assert (ran.code, ran.out) == (0, "")
    assert "no metrics: the rollouts do not name an agent" in ran.err


def test_two_runs_are_compared_task_by_task(run):
    shard("a.jsonl", *((task, 0.0) for task in range(20)))
    shard("b.jsonl", *((task, float(task > 4)) for task in range(21)))
    Path("a_materialized_inputs.jsonl").write_text(Path("b.jsonl").read_text())
    ran = run("ng_compare", "+a=a.jsonl", "+b=b.jsonl")
    assert ran.code == 0, ran.err
    assert "20 tasks in both runs, matched by what they ask (0 only in a, 1 only in b)" in ran.out
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


@pytest.fixture(autouse=True)
def files(workspace):
    def write(name, rows):
        (workspace / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    keys = [{"_ng_task_index": task, "_ng_rollout_index": n} for task in range(3) for n in range(4)]
    write("plan.jsonl", [{**key, "question": key["_ng_task_index"], "agent_ref": {"name": "x"}} for key in keys])
    write("r.jsonl", [{**key, "reward": 0.4 * key["_ng_task_index"], "agent_ref": {"name": "x"}} for key in keys])
    write("tasks.jsonl", [{"question": task} for task in range(3)])


def difficulty(path):
    return {row["_ng_task_index"]: row["difficulty"] for row in map(json.loads, Path(path).read_text().splitlines())}


def test_a_run_is_profiled_against_its_plan_with_bands_and_a_picture(run):
    ran = run(
        "ng_reward_profile", "+materialized_inputs_jsonl_fpath=plan.jsonl", "+rollouts_jsonl_fpath=r.jsonl",
        "+pass_threshold=0.4",
    )  # fmt: skip
    assert (ran.code, ran.err) == (0, "")
    assert "Rollouts: 12 of 12 (100.00%)" in ran.out
    assert "(reward of at least 0.4):" in ran.out
    assert "Sometimes solved: 0" in ran.out
    assert difficulty("r_difficulty.jsonl") == {0: "never", 1: "always", 2: "always"}
    assert Path("r_solve_rates.svg").read_text().startswith("<svg")
    assert len(Path("r_reward_profiling.jsonl").read_text().splitlines()) == 3


def test_the_older_parameters_write_the_tasks_with_their_rewards(run):
    ran = run(
        "ng_reward_profile", "+input_jsonl_fpath=tasks.jsonl", "+rollouts_jsonl_fpath=r.jsonl",
        "+output_jsonl_fpath=out/profile.jsonl", "+pass_threshold=0.8",
    )  # fmt: skip
    assert (ran.code, ran.err) == (0, "")
    rows = [json.loads(line) for line in Path("out/profile.jsonl").read_text().splitlines()]
    assert [(row["question"], row["avg_reward"], row["pass_rate"]) for row in rows] == [
        (0, 0.0, 0.0), (1, 0.4, 0.0), (2, 0.8, 1.0),
    ]  # fmt: skip
    assert difficulty("out/profile_difficulty.jsonl") == {0: "never", 1: "never", 2: "always"}
    assert Path("out/profile_solve_rates.svg").exists()


@pytest.mark.parametrize(
    "given",
    [[], ["+input_jsonl_fpath=tasks.jsonl"], ["+materialized_inputs_jsonl_fpath=plan.jsonl", "+output_jsonl_fpath=o"]],
)
def test_half_a_set_of_parameters_is_a_usage_error(run, given):
    ran = run("ng_reward_profile", "+rollouts_jsonl_fpath=r.jsonl", *given)
    assert ran.code == 2
    assert "hint: add +materialized_inputs_jsonl_fpath=<plan>, or +input_jsonl_fpath=<tasks>" in ran.err


def test_missing_rollouts_have_to_be_accepted(run):
    Path("r.jsonl").write_text(Path("r.jsonl").read_text().partition("\n")[2])
    parameters = ("+materialized_inputs_jsonl_fpath=plan.jsonl", "+rollouts_jsonl_fpath=r.jsonl")
    refused = run("ng_reward_profile", *parameters)
    assert refused.code == 1
    assert "1 materialized inputs have no result: [(0, 0)]" in refused.err
    assert "Rollouts: 11 of 12 (91.67%)" in run("ng_reward_profile", *parameters, "+allow_partial_rollouts=true").out


def test_files_of_rollouts_can_be_typed_bare(run):
    assert run("ng_compare", "r.jsonl", "r.jsonl").code == 0
    ran = run("ng_compare", "r.jsonl", "r.jsonl", "plan.jsonl")
    assert (ran.code, "3 files are given, but two runs are compared" in ran.err) == (2, True)
    assert "r.jsonl: no such file" not in run("ng_profile", "r.jsonl").err
    assert "nope_steps.jsonl: no such file" in run("ng_export_traces", "nope.jsonl", "+endpoint=http://x").err
    Path("plan.jsonl").rename("r_materialized_inputs.jsonl")
    assert run("ng_reward_profile", "r.jsonl").code == 0
    assert "12 of 12" in run("ng_reward_profile", "rollouts_jsonl_fpath=r.jsonl").out
