import json
from pathlib import Path

import pytest


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
