"""The home of runs: which files are runs, and what is said about them."""

import asyncio
import json
import os

from nemo_gym.io.files import RunFiles
from nemo_gym.rollouts.run_metrics import aggregate_run
from nemo_gym.view.home import RunsHome, find_runs


def test_runs_are_found_in_folders_below_and_other_files_are_not(write, record, tmp_path):
    runs = [write(f"{name}.jsonl", [record(0, 0, 1.0)]) for name in ("a", "deep/er/b")]
    write("tasks.jsonl", [{"responses_create_params": {"input": "Hi"}}])
    write(".hidden/c.jsonl", [record(0, 0, 1.0)])
    write("a_failures.jsonl", [{"_ng_task_index": 0, "_ng_failure_class": "timeout"}])
    (tmp_path / "broken.jsonl").write_text("not JSON\n")
    assert list(find_runs(tmp_path)) == runs


def test_the_numbers_of_a_run_are_those_of_its_metrics(write, record, tmp_path):
    path = write("sub/run.jsonl", [record(task, n, float(n)) for task in range(4) for n in range(2)])
    asyncio.run(aggregate_run(RunFiles.of(path), None))
    [details] = json.loads(RunFiles.of(path).details.read_text())
    with RunsHome([tmp_path], cache=tmp_path / "cache") as home:
        [run] = home.runs()
    assert (run["name"], run["environment"], run["rollouts"], run["mean"]) == ("sub/run.jsonl", "math", 8, 0.5)
    interval = details["intervals"]["mean/reward"]
    assert run["interval"] == [interval["low"], interval["high"]]


def test_a_run_that_changes_is_read_again(write, record, tmp_path):
    path = write("run.jsonl", [record(0, 0, 1.0)])
    with RunsHome([tmp_path], cache=tmp_path / "cache") as home:
        assert home.runs()[0]["mean"] is None
        asyncio.run(aggregate_run(RunFiles.of(path), None))
        os.utime(RunFiles.of(path).metrics, (1, 1))
        assert home.runs()[0]["mean"] == 1.0


def test_only_runs_of_the_folder_can_be_opened(write, record, tmp_path):
    write("run.jsonl", [record(0, 0, 1.0)])
    with RunsHome([tmp_path], cache=tmp_path / "cache") as home:
        [run] = home.runs()
        library = home.library(run["id"])
        assert library is not None
        assert library is home.library(run["id"])
        assert home.library("../../etc/passwd") is None
