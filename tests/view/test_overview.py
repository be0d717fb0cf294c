"""The numbers of the first page are those of the metrics file and of the details beside it."""

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.io.files import RunFiles
from nemo_gym.metrics.pass_at_k import compute_pass_majority_metrics
from nemo_gym.rollouts.run_metrics import aggregate_run
from nemo_gym.view.library import Library
from nemo_gym.view.overview import current_numbers, overview_numbers
from nemo_gym.view.selection import Query, select


async def test_they_are_the_numbers_of_the_metrics_file(write, record, failure, library):
    rows = [
        record(task, repeat, ((task * 7 + repeat * 3) % 5) / 4, agent="math" if task % 3 else "code")
        for task in range(30)
        for repeat in range(4)
        if (task, repeat) != (4, 2)
    ]
    path = write("run.jsonl", rows)
    write("run_failures.jsonl", [failure(4, 2), failure(5, 1, "auth"), failure(4, 2, "model_error")])
    write("run_materialized_inputs.jsonl", [record(task, repeat) for task in range(30) for repeat in range(4)])
    await aggregate_run(RunFiles.of(path), None)
    found = library(path)
    numbers = overview_numbers(select(found.snapshot(), Query()), whole=True)
    files = RunFiles.of(path)
    metrics = {entry["agent_ref"]["name"]: entry for entry in json.loads(files.metrics.read_text())}
    details = {
        entry["agent_ref"]["name"]: entry
        for entry in json.loads(path.with_name("run_aggregate_details.json").read_text())
    }
    for agent in numbers["agents"]:
        name = agent["agent"]
        assert agent["mean_reward"] == metrics[name]["agent_metrics"]["mean/reward"]
        interval = details[name]["intervals"]["mean/reward"]
        assert agent["interval"] == [interval["low"], interval["high"]]
        assert agent["rollouts"] == details[name]["rollouts"]
    assert numbers["failed"] == {"model_error": 1}
    assert (numbers["planned"], numbers["completed"]) == (120, 119)
    shown = current_numbers(found.snapshot().runs, numbers, whole=True)["metrics"]
    assert [entry["agent_metrics"] for entry in shown] == [metrics[name]["agent_metrics"] for name in metrics]


async def test_pass_at_k_is_that_of_the_environments(write, record, library):
    rewards = [[1, 0, 0, 1], [0, 0, 0], [1, 1, 1, 1], [0, 1]]
    rows = [record(task, n, float(reward)) for task, group in enumerate(rewards) for n, reward in enumerate(group)]
    numbers = overview_numbers(select(library(write("a.jsonl", rows)).snapshot(), Query()), whole=True)
    tasks = [[{"reward": float(reward)} for reward in group] for group in rewards]
    expected = compute_pass_majority_metrics(tasks, lambda rollout: {"reward": rollout["reward"]}).metrics
    for point in numbers["pass_at_k"]:
        assert 100 * point["value"] == pytest.approx(expected[f"pass@{point['k']}/reward"])


def test_shards_are_one_run_and_repeated_rollouts_count_once(write, record, library):
    first, second = [record(0, 0, 0.0), record(0, 1, 1.0)], [record(1, 0, 1.0), record(1, 0, 0.0)]
    found = library(write("a.jsonl", first), write("b.jsonl", second)).snapshot()
    numbers = overview_numbers(select(found, Query()), whole=True)
    assert (numbers["rollouts"], numbers["completed"], numbers["mean_reward"]) == (4, 3, 1 / 3)
    assert (numbers["pass_at_k"], numbers["pass_tasks"]) == ([{"k": 1, "value": 0.25}], 2)


def test_runs_over_the_same_tasks_do_not_share_them(write, record, library):
    first, second = ([record(0, n, reward) for n in range(2)] for reward in (0.0, 1.0))
    found = library(write("a.jsonl", first), write("b.jsonl", second)).snapshot()
    numbers = overview_numbers(select(found, Query()), whole=True)
    assert (numbers["completed"], [point["value"] for point in numbers["pass_at_k"]]) == (4, [0.5, 0.5])


def test_a_filter_changes_neither_what_counts_nor_which_task_it_is(write, record, library):
    first = [record(0, 0, 0.0), record(0, 1, 0.5)]
    second = [record(0, 0, 1.0), record(0, 0, 0.25), record(0, 1, 1.0)]
    found = library(write("a.jsonl", first), write("b.jsonl", second)).snapshot()
    numbers = overview_numbers(select(found, Query(filter="reward >= 0")), whole=False)
    assert (numbers["completed"], numbers["mean_reward"], numbers["pass_tasks"]) == (4, 0.4375, 2)
    # The rollout that a later one replaces does not come back because a filter hides the later one.
    assert overview_numbers(select(found, Query(filter="reward == 1")), whole=False)["completed"] == 1
    # The two files stay two runs although no rollout of this selection is in both.
    some = overview_numbers(select(found, Query(filter="reward == 1 or reward == 0.5")), whole=False)
    assert (some["completed"], some["pass_tasks"]) == (2, 2)


def test_grades_have_a_share_that_passes_and_apart_from_it_the_best_reward(write, record, library):
    rewards = [[0.0, 4.0], [10.0, 2.0], [6.0, 6.0]]
    rows = [record(task, n, reward) for task, group in enumerate(rewards) for n, reward in enumerate(group)]
    found = select(library(write("a.jsonl", rows)).snapshot(), Query())
    numbers = overview_numbers(found, whole=True, threshold=5.0)
    assert [point["value"] for point in numbers["pass_at_k"]] == pytest.approx([0.5, 2 / 3])
    assert [point["value"] for point in numbers["reward_at_k"]] == pytest.approx([28 / 6, 20 / 3])
    assert (numbers["pass_threshold"], numbers["pass_tasks"], numbers["pass_tasks_left_out"]) == (5.0, 3, 0)


def test_a_running_collection_has_a_pace_and_an_end(write, record, library):
    write("run_materialized_inputs.jsonl", [record(0, number) for number in range(10)])
    path = write("run.jsonl", [record(0, 0)])
    found = library(path)

    def progress():
        numbers = overview_numbers(select(found.snapshot(), Query()), whole=True)
        return current_numbers(found.snapshot().runs, numbers, whole=True)["progress"]

    assert progress() == {"rate_per_s": 0.0, "eta_s": None, "done": 1, "planned": 10}
    write("run.jsonl", [record(0, number) for number in range(1, 4)], append=True)
    found.index_all()
    running = progress()
    assert (running["done"], running["planned"]) == (4, 10)
    assert running["rate_per_s"] > 0
    assert running["eta_s"] > 0
    os.utime(path, (0, 0))
    assert progress() is None


def test_nothing_is_a_number_too(write, record, library):
    found = library(write("a.jsonl", [record(reward=None)])).snapshot()
    numbers = overview_numbers(select(found, Query()), whole=True)
    assert (numbers["mean_reward"], numbers["interval"], numbers["pass_at_k"]) == (None, None, [])
    empty = overview_numbers(select(found, Query(filter="task == 99")), whole=False)
    assert (empty["rollouts"], empty["completed"], empty["agents"], empty["failed"]) == (0, 0, [], {})


@settings(max_examples=20)
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "_ng_task_index": st.integers(0, 3),
                "_ng_rollout_index": st.integers(0, 3),
                "reward": st.floats(-1, 1) | st.sampled_from([0, 1, None, "x", float("nan"), float("inf")]),
                "agent_ref": st.sampled_from([None, {"name": "a"}, {"name": "b"}, {}]),
            },
        ),
        min_size=1,
        max_size=12,
    )
)
def test_any_rollouts_have_an_overview(rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("any") / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with Library([str(path)], cache=path.parent) as library:
        library.index_all()
        numbers = overview_numbers(select(library.snapshot(), Query()), whole=True)
    assert numbers["rollouts"] == len(rows)
