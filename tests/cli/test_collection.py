"""Collections from the command line, with a Gym whose only server is an agent that answers by itself."""

import errno
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from nemo_gym.api.gyms import saved_rollouts
from nemo_gym.cli.command import exit_code
from nemo_gym.errors import ConfigError, UnfinishedRunError

AGENT = """\
import asyncio
import os
from typing import Any

from fastapi import Body

from nemo_gym.base_resources_server import BaseRunRequest
from nemo_gym.base_responses_api_agent import SimpleResponsesAPIAgent

RESPONSE = {
    "id": "r", "object": "response", "created_at": 0, "model": "m", "output": [],
    "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
}


class Scripted(SimpleResponsesAPIAgent):
    async def responses(self, body: dict[str, Any] = Body()) -> dict[str, Any]:
        return RESPONSE

    async def run(self, body: dict[str, Any] = Body()) -> dict[str, Any]:
        if body.get("do") == "fail":
            raise ValueError("as asked")
        if body.get("do") == "wait":
            await asyncio.sleep(3600)
        if body.get("do") == "die":
            os._exit(7)
        return {**body, "response": RESPONSE, "reward": 1.0}


if __name__ == "__main__":
    Scripted.run_webserver()
"""
CONFIG = {"my_agent": {"responses_api_agents": {"scripted": {"entrypoint": "app.py"}}}}
OUTPUT = ("+output_jsonl_fpath=results/out.jsonl", "+input_jsonl_fpath=in.jsonl", "+agent_name=my_agent")
HOSTED = ("+config_paths=[gym.yaml]", *OUTPUT)


@pytest.fixture(autouse=True)
def gym(write_gym):
    write_gym("responses_api_agents/scripted", AGENT, CONFIG)


def write_tasks(*actions: str) -> None:
    rows = [{"responses_create_params": {"input": f"task {n}"}, "do": action} for n, action in enumerate(actions)]
    Path("in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def results() -> list[dict]:
    return [json.loads(line) for line in Path("results/out.jsonl").read_text().splitlines()]


def results_lines() -> list[bytes]:
    return Path("results/out.jsonl").read_bytes().splitlines(keepends=True)


def test_rollouts_are_collected_in_a_gym_of_the_commands_own(run):
    write_tasks("", "")
    ran = run("ng_collect_rollouts", *HOSTED, "+num_repeats=2")
    assert ran.code == 0, ran.err
    assert len(results()) == 4
    assert ran.out.startswith("Key metrics for my_agent:\n{\n")
    assert json.loads(ran.out.partition("\n")[2])["mean/reward"] == 1.0
    assert "Collecting rollouts: 100%" in ran.err
    assert "4 of 4 rollouts completed" in ran.err


def test_rollouts_that_fail_have_their_own_exit_code(run):
    write_tasks("", "fail")
    ran = run(
        "ng", "eval", "run", "--config", "gym.yaml", "-i", "in.jsonl", "-o", "results/out.jsonl", "-a", "my_agent"
    )
    assert ran.code == 3, ran.err
    assert len(results()) == 1
    assert "1 of 2 rollouts completed (1 failed)" in ran.err
    assert "as asked" in ran.err
    assert "Traceback (most recent call last)" not in ran.err.partition("rollouts completed")[2]


def test_an_interrupted_collection_saves_what_it_has(workspace, commands):
    write_tasks("", "wait")
    with commands.start("ng_collect_rollouts", *HOSTED, "+drain_timeout_s=0") as process:
        output = workspace / "results" / "out.jsonl"
        while not (output.exists() and output.read_text().endswith("\n")):
            assert process.is_running
            time.sleep(0.02)
        ran = process.interrupt()
    assert (ran.code, ran.out) == (130, "")
    assert len(results()) == 1
    assert "SIGINT: starting no more rollouts" in ran.err
    assert "+resume_from_cache=true" in ran.err


def test_a_collection_whose_terminal_is_closed_saves_what_it_has(workspace, commands):
    write_tasks("", "wait")
    with commands.start("ng_collect_rollouts", *HOSTED, "+drain_timeout_s=0") as process:
        output = workspace / "results" / "out.jsonl"
        while not (output.exists() and output.read_text().endswith("\n")):
            assert process.is_running
            time.sleep(0.02)
        process.signal(signal.SIGHUP)
        ran = process.wait()
    assert ran.code == 130, ran.err
    assert len(results()) == 1
    assert "SIGHUP: starting no more rollouts" in ran.err


def test_a_task_that_kills_its_server_fails_alone(spawn):
    write_tasks("", "die", "")
    isolated = {"my_agent": {"responses_api_agents": {"scripted": {"entrypoint": "app.py", "isolation": "process"}}}}
    Path("gym.yaml").write_text(json.dumps(isolated))
    ran = spawn("ng_collect_rollouts", *HOSTED, "+num_samples_in_parallel=1", PYTHONPATH=str(Path.cwd()))
    assert ran.code == 3, ran.err
    assert "warning: my_agent ended and is started again in 0.1 s: exit code 7" in ran.err
    assert "2 of 3 rollouts completed (1 failed)" in ran.err
    failures = [json.loads(line) for line in Path("results/out_failures.jsonl").read_text().splitlines()]
    assert {each["_ng_failure_class"] for each in failures} == {"server_crashed"}
    assert [each.get("_ng_owed", False) for each in failures] == [True, True, False, False, False]


def test_an_unknown_agent_is_named_with_the_nearest(run):
    write_tasks("")
    ran = run("ng_collect_rollouts", *HOSTED[:-1], "+agent_name=my_agnet")
    assert (ran.code, ran.out) == (1, "")
    assert "error: the plan needs agent 'my_agnet'" in ran.err
    assert "'my_agent'" in ran.err


def test_no_head_server_is_an_error_that_says_what_to_start(run):
    write_tasks("")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    ran = run("ng_collect_rollouts", *OUTPUT, f"+head_server={{host: 127.0.0.1, port: {port}}}")
    assert ran.code == 1
    assert f"error: Could not connect to the head server at http://127.0.0.1:{port}" in ran.err
    assert "hint: start the servers with ng_run" in ran.err
    assert not Path("results").exists()


def test_a_running_gym_is_used_even_if_files_are_given(run):
    write_tasks("")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    ran = run("ng", "eval", "run", "--no-serve", *HOSTED, f"+head_server={{host: 127.0.0.1, port: {port}}}")
    assert ran.code == 1
    assert "Could not connect to the head server" in ran.err


def test_missing_and_misspelt_parameters_are_usage_errors(run):
    ran = run("ng_collect_rollouts", "+num_repeats=0", "+limit=x")
    assert ran.code == 2
    assert "error: missing parameters: input_jsonl_fpath\ninvalid parameters:\n" in ran.err
    assert "  limit (expected int or null): " in ran.err
    assert "  num_repeats (expected int or dict): num_repeats must be at least 1, got 0" in ran.err
    misspelt = run("ng_collect_rollouts", *OUTPUT, "+num_repeat=2")
    assert misspelt.code == 2
    assert "unknown parameter 'num_repeat'. Did you mean: 'num_repeats'" in misspelt.err


def test_a_missing_task_file_is_a_configuration_error(run):
    ran = run("ng_collect_rollouts", *HOSTED)
    assert (ran.code, ran.out) == (1, "")
    assert "in.jsonl" in ran.err
    assert "Traceback" not in ran.err


def test_shards_are_merged_and_measured(run):
    write_tasks("")
    assert run("ng_collect_rollouts", *HOSTED, "+disable_aggregation=true").code == 0
    ran = run(
        "ng_aggregate_rollouts",
        "+config_paths=[gym.yaml]",
        "+input_glob=results/o*t.jsonl",
        "+output_jsonl_fpath=all.jsonl",
    )
    assert ran.code == 0, ran.err
    assert json.loads(ran.out.partition("\n")[2])["mean/reward"] == 1.0
    assert "metrics: all_aggregate_metrics.json" in ran.err


def test_shards_that_do_not_exist_are_an_error(run):
    ran = run("ng", "eval", "aggregate", "--config", "gym.yaml", "-i", "nothing*.jsonl", "-o", "all.jsonl")
    assert ran.code == 1
    assert "error: no file matches 'nothing*.jsonl'" in ran.err


def test_rewards_are_profiled(run):
    write_tasks("", "")
    assert run("ng_collect_rollouts", *HOSTED).code == 0
    ran = run(
        "ng", "eval", "profile", "--inputs", "results/out_materialized_inputs.jsonl", "--rollouts", "results/out.jsonl"
    )
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[:6] == [
        "Rollouts: 2 of 2 (100.00%)",
        "Tasks: 2 (2 complete, 0 partial, 0 missing)",
        "Profile of each task: results/out_reward_profiling.jsonl",
        "Metrics of each agent: results/out_agent_metrics.json",
        "Difficulty of each task: results/out_difficulty.jsonl",
        "Chart: results/out_solve_rates.svg",
    ]
    assert "always  2  100.0 %" in ran.out


def test_profiling_a_file_that_does_not_exist_is_an_error(run):
    ran = run("ng_reward_profile", "+materialized_inputs_jsonl_fpath=a.jsonl", "+rollouts_jsonl_fpath=b.jsonl")
    assert ran.code == 1
    assert "error: a.jsonl: no such file" in ran.err


def test_without_an_output_path_rollouts_go_to_a_new_file_named_after_the_only_agent(run):
    write_tasks("", "")
    ran = run("ng_collect_rollouts", "+config_paths=[gym.yaml]", "+input_jsonl_fpath=in.jsonl")
    assert ran.code == 0, ran.err
    (output,) = [path for path in Path("results/my_agent").glob("*.jsonl") if "_" not in path.stem[19:]]
    assert ran.err.startswith(f"rollouts: {output}\n")
    assert len(output.read_text().splitlines()) == 2
    resumed = run("ng_collect_rollouts", *HOSTED[:1], HOSTED[2], "+resume_from_cache=true")
    assert (resumed.code, "+output_jsonl_fpath=" in resumed.err) == (2, True)


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ("+limit=-1", "limit (expected int or null)"),
        ("+num_samples_in_parallel=-3", "num_samples_in_parallel"),
        ("+patience_s=-1", "patience_s"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(run, argument, told):
    write_tasks("")
    ran = run("ng_collect_rollouts", *HOSTED, argument)
    assert ran.code == 2
    assert told in ran.err
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("argument", "instead"),
    [
        ("+max_in_flight=64", "use num_samples_in_parallel=<number>"),
        ("+fsync=always", "forced to the disk every few seconds"),
        ("+ray_address=auto", "ray_head_node_address"),
        ("+rollout_collection_driver=my:function", "ng_e2e_collect_rollouts"),
    ],
)
def test_removed_parameters_are_refused_with_what_to_use_instead(run, argument, instead):
    write_tasks("")
    name = argument[1:].partition("=")[0]
    ran = run("ng_collect_rollouts", *HOSTED, argument)
    assert ran.code == 2
    assert f"error: the parameter {name} was removed" in ran.err
    assert instead in ran.err
    Path("env.yaml").write_text(f"{name}: x\n")
    assert f"the parameter {name} was removed" in run("ng_collect_rollouts", *HOSTED).err


@pytest.mark.parametrize(
    ("argument", "instead"), [("+dispatch_budget_s=9", "budget_minutes"), ("+fan_out={}", "agent_ref")]
)
def test_parameters_of_newer_releases_are_refused_with_what_to_use_instead(run, argument, instead):
    write_tasks("")
    ran = run("ng_collect_rollouts", *HOSTED, argument)
    assert ran.code == 2
    assert "error: NeMo Gym 0.7.0 has the parameter" in ran.err
    assert instead in ran.err


def test_an_input_without_tasks_is_an_error(run):
    write_tasks()
    ran = run("ng_collect_rollouts", *HOSTED)
    assert ran.code == 1
    assert "in.jsonl has no tasks, so there is nothing to run" in ran.err
    assert not Path("results/out_materialized_inputs.jsonl").exists()


def test_a_misspelt_class_of_failures_is_refused_instead_of_reopening_nothing(run):
    write_tasks("")
    ran = run("ng_collect_rollouts", *HOSTED, "+retry_failed=[timeouts]")
    assert ran.code == 1
    assert "retry_failed: no rollout failed with class 'timeouts'" in ran.err
    assert "Did you mean: 'timeout'" in ran.err
    assert not Path("results/out_materialized_inputs.jsonl").exists()


def test_a_pipe_is_not_taken_for_a_missing_file(run):
    os.mkfifo("tasks.jsonl")
    ran = run("ng_collect_rollouts", HOSTED[0], HOSTED[1], "+input_jsonl_fpath=tasks.jsonl")
    assert ran.code == 1
    assert "tasks.jsonl is not a regular file" in ran.err


@pytest.mark.parametrize(("path", "told"), [("/proc/self/mem", "can't read the input"), (".", "is a folder")])
def test_an_input_that_cannot_be_read_is_what_is_blamed(run, path, told):
    ran = run("ng_collect_rollouts", HOSTED[0], HOSTED[1], f"+input_jsonl_fpath={path}")
    assert ran.code == 1
    assert told in ran.err
    assert "materialized" not in ran.err


def test_an_output_that_holds_rollouts_is_never_overwritten(run):
    write_tasks("", "")
    assert run("ng_collect_rollouts", *HOSTED).code == 0
    before = Path("results/out.jsonl").read_bytes()
    for number, changed in enumerate(("+num_repeats=2", "+num_repeats=1", "+overwrite=true"), 1):
        ran = run("ng_collect_rollouts", *HOSTED, changed)
        assert ran.code == 0, ran.err
        assert ran.err.count("backup-") == 1
        assert f"out.jsonl is now in results/out.jsonl.backup-{number}" in ran.err
    assert Path("results/out.jsonl.backup-1/out.jsonl").read_bytes() == before


def test_an_unfinished_run_is_not_moved_aside_by_a_forgotten_resume(run):
    write_tasks("", "")
    assert run("ng_collect_rollouts", *HOSTED).code == 0
    Path("results/out.jsonl").write_bytes(results_lines()[0])
    refused = run("ng_collect_rollouts", *HOSTED)
    assert refused.code == 1
    assert "already holds 1 rollout of the same plan, 1 left" in refused.err
    assert "add +resume_from_cache=true" in refused.err
    assert len(results_lines()) == 1
    assert run("ng_collect_rollouts", *HOSTED, "+resume_from_cache=true").code == 0
    assert len(results_lines()) == 2
    assert not list(Path("results").glob("*.backup-*"))


def test_what_a_profile_leaves_beside_the_rollouts_is_not_counted_with_them(run):
    write_tasks("", "")
    assert run("ng_collect_rollouts", *HOSTED).code == 0
    plan, rollouts = "results/out_materialized_inputs.jsonl", "results/out.jsonl"
    assert run("ng", "eval", "profile", "--inputs", plan, "--rollouts", rollouts).code == 0
    ran = run(
        *("ng_aggregate_rollouts", "+config_paths=[gym.yaml]", "+input_glob=results/*.jsonl"),
        "+output_jsonl_fpath=all.jsonl",
    )
    assert ran.code == 0, ran.err
    assert "\n2 rollouts\n" in f"\n{ran.err}"


def test_commands_as_functions_return_when_they_succeed(run, monkeypatch):
    write_tasks("")
    monkeypatch.setattr(sys, "argv", ["ng_collect_rollouts", *HOSTED])
    with pytest.deprecated_call():
        from nemo_gym.rollout_collection import collect_rollouts
    assert collect_rollouts.__name__ == "collect_rollouts"
    assert "rollouts" in (collect_rollouts.__doc__ or "")
    assert collect_rollouts() is None
    assert len(results()) == 1
    Path("results/out.jsonl").write_text("something else\n")
    with pytest.raises(SystemExit) as ended:
        collect_rollouts()
    assert ended.value.code == 1


def test_shards_have_an_output_each_and_are_aggregated_together(run):
    write_tasks("", "", "")
    for shard in range(4):
        ran = run("ng_collect_rollouts", *HOSTED, f"+shard={shard}/4", "+num_repeats=2")
        assert ran.code == 0, ran.err
    parts = sorted(Path("results").glob("out-*-of-4.jsonl"))
    indices = [[json.loads(line)["_ng_task_index"] for line in part.read_text().splitlines()] for part in parts]
    assert indices == [[0, 0], [1, 1], [2, 2], []]
    ran = run("ng_aggregate_rollouts", "+input_glob=results/out-*-of-4.jsonl", *HOSTED[:2])
    assert ran.code == 0, ran.err
    assert "6 rollouts" in ran.err
    refused = run("ng_collect_rollouts", *HOSTED, "+shard=4/4")
    assert "write 0/16 for the first of 16" in refused.err


def test_the_second_job_with_the_same_shard_refuses(run):
    from nemo_gym.rollouts.store.rollout_store import open_store

    write_tasks("", "")
    with open_store(Path("results/out-0-of-2.jsonl")):
        ran = run("ng_collect_rollouts", *HOSTED, "+shard=0/2")
        assert "is collecting to this output" in ran.err
        assert run("ng_collect_rollouts", *HOSTED, "+shard=1/2").code == 0
    assert run("ng_collect_rollouts", *HOSTED, "+shard=0/2").code == 0
    assert "out-0-of-2.jsonl.backup-1" in run("ng_collect_rollouts", *HOSTED, "+shard=0/2").err


def test_starting_over_and_continuing_are_refused_together(run):
    write_tasks("")
    ran = run("ng_collect_rollouts", *HOSTED, "+overwrite=true", "+resume_from_cache=true")
    assert ran.code == 2
    assert "choose one of them" in ran.err


def test_a_limit_of_zero_is_said_to_be_none(run):
    write_tasks("", "")
    ran = run("ng_collect_rollouts", *HOSTED, "+limit=0")
    assert ran.code == 0, ran.err
    assert "limit=0 is no limit: all tasks are run\n" in ran.err
    assert len(results()) == 2


def test_an_error_after_rollouts_were_saved_has_the_code_of_a_run_that_has_some(run):
    write_tasks("", "")
    Path("results/out_aggregate_metrics.json").mkdir(parents=True)
    ran = run("ng_collect_rollouts", *HOSTED)
    assert ran.code == 1, "nothing was run"
    Path("results/out_aggregate_metrics.json").rmdir()
    with saved_rollouts() as saved, pytest.raises(ConfigError) as before:
        raise ConfigError("nothing yet")
    assert exit_code(before.value) == 1
    for error, code in ((ConfigError("a server ended"), 3), (OSError(errno.ENOSPC, "no space", "x.json"), 3)):
        with pytest.raises(UnfinishedRunError) as caught, saved_rollouts() as saved:  # noqa: PT012
            saved.any = True
            raise error
        assert exit_code(caught.value) == code


def test_a_part_that_is_named_is_not_named_twice(run):
    write_tasks("", "")
    for output in ("results/out.jsonl", "results/out-1-of-2.jsonl"):
        ran = run("ng_collect_rollouts", *HOSTED, f"++output_jsonl_fpath={output}", "+shard=1/2")
        assert ran.code == 0, ran.err
    assert [path.name for path in Path("results").glob("out*of-2.jsonl")] == ["out-1-of-2.jsonl"]
