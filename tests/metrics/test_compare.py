"""Rewards of the same rollouts are compared, however the files are ordered.

Two runs side by side, difficulty, and how both look in a terminal or picture.
"""

import json
import math
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from nemo_gym.metrics.builder import MetricsBuilder
from nemo_gym.metrics.compare import ComparedRun, RewardChange, compare_runs, read_contents, reward_changes
from nemo_gym.metrics.difficulty import difficulty_of, solve_rate_counts, solve_rate_svg, solve_rates
from nemo_gym.metrics.report import bars, interval_table, solve_rate_table, text_histogram
from nemo_gym.metrics.statistics import Interval
from nemo_gym.metrics.table import RolloutTable
from nemo_gym.rollouts.store.shards import Shards


def table(path: Path, *rewards: tuple[int, int, object]) -> RolloutTable:
    rows = [{"_ng_task_index": t, "_ng_rollout_index": r, "reward": reward} for t, r, reward in rewards]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Shards([path], strict=False).table()


def test_changes_are_counted_by_what_became_what(tmp_path: Path) -> None:
    old = table(tmp_path / "a", (0, 0, 0.0), (0, 1, 1.0), (1, 0, 0.0), (2, 0, 0.5), (3, 0, 1.0))
    new = table(tmp_path / "b", (3, 0, 1), (2, 0, 1.0), (1, 0, 1.0), (0, 0, 1.0), (0, 1, 1.0), (9, 9, 0.0))
    found = reward_changes(old, new)
    assert (found.rollouts, found.changed, found.mean_old, found.mean_new) == (5, 3, 0.5, 1.0)
    assert found.changes == [RewardChange(0.0, 1.0, 2), RewardChange(0.5, 1.0, 1)]
    assert found.text().splitlines() == [
        "3 of 5 rewards changed; mean 0.5 → 1",
        "  old → new  rollouts",
        "    0 → 1           2",
        "  0.5 → 1           1",
    ]


def test_rewards_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    old = table(tmp_path / "a", (0, 0, None), (1, 0, 1.0), (2, 0, float("nan")))
    new = table(tmp_path / "b", (0, 0, 1.0), (1, 0, 1.0), (2, 0, 1.0))
    found = reward_changes(old, new)
    assert (found.rollouts, found.changed, found.changes) == (1, 0, [])
    assert found.text() == "0 of 1 rewards changed; mean 1 → 1"


@pytest.mark.parametrize("other", [RolloutTable.empty(), None])
def test_nothing_in_common_is_said(tmp_path: Path, other: RolloutTable | None) -> None:
    found = reward_changes(table(tmp_path / "a", (0, 0, 1.0)), other or table(tmp_path / "b", (1, 0, 1.0)))
    assert found.rollouts == 0
    assert np.isnan(found.mean_old)
    assert found.text() == "no rollout has a reward in both files"


def test_many_different_changes_are_summed_up(tmp_path: Path) -> None:
    numbers = range(30)
    old = table(tmp_path / "a", *((n, 0, 0.0) for n in numbers))
    new = table(tmp_path / "b", *((n, 0, n / 100 + 0.01) for n in numbers))
    lines = reward_changes(old, new).text().splitlines()
    assert len(lines) == 13
    assert lines[-1].split() == ["other", "→", "other", "20"]


def run(rewards: dict[int, list[float | None]]) -> RolloutTable:
    builder = MetricsBuilder()
    for task, values in rewards.items():
        for reward in values:
            builder.add({"_ng_task_index": task, "reward": reward})
    return builder.table()


def test_only_common_tasks_are_compared_each_with_its_mean() -> None:
    a = run({0: [1.0, 0.0], 1: [0.0], 2: [1.0], 5: [1.0]})
    b = run({0: [1.0], 1: [1.0, 1.0], 2: [0.0], 7: [0.0], 8: [0.0]})
    result = compare_runs(ComparedRun(a), ComparedRun(b))
    assert (result.tasks, result.only_a, result.only_b) == (3, 1, 2)
    assert (result.mean_a, result.mean_b) == (0.5, pytest.approx(2 / 3))
    assert result.difference == pytest.approx(1 / 6)
    assert (result.gained, result.lost) == ([1], [2])
    assert not result.significant
    text = result.text()
    assert "3 tasks in both runs, matched by index (1 only in a, 2 only in b)" in text
    assert "newly solved: 1 (tasks 1)" in text


def test_a_clear_difference_is_significant() -> None:
    tasks = range(100)
    a, b = run({task: [0.0] for task in tasks}), run({task: [float(task % 5 > 0)] for task in tasks})
    result = compare_runs(ComparedRun(a), ComparedRun(b))
    assert result.significant
    assert result.interval is not None
    assert result.interval[0] < 0.8 < result.interval[1]
    assert "significant" in result.text()
    assert ", …)" in result.text()
    assert result.as_dict()["difference_low"] == result.interval[0]


def test_a_difference_that_goes_both_ways_is_not_significant() -> None:
    tasks = range(100)
    a, b = run({task: [0.5] for task in tasks}), run({task: [0.5 + (task % 2 or -1) / 4] for task in tasks})
    result = compare_runs(ComparedRun(a), ComparedRun(b))
    assert result.interval is not None
    assert result.interval[0] < 0 < result.interval[1] < 0.2
    assert not result.significant


def test_a_field_that_only_one_run_has_is_compared_for_no_task() -> None:
    a = run({0: [1.0], 1: [0.0]})
    builder = MetricsBuilder()
    for task in range(3):
        builder.add({"_ng_task_index": task, "reward": 0.0, "speed": 2.0})
    result = compare_runs(ComparedRun(a), ComparedRun(builder.table()), field="speed")
    assert (result.tasks, result.only_a, result.only_b, result.gained, result.lost) == (0, 0, 3, [], [])


def test_runs_without_a_common_task_say_so() -> None:
    result = compare_runs(ComparedRun(run({0: [1.0]})), ComparedRun(run({1: [1.0]})))
    assert result.interval is None
    assert math.isnan(result.difference)
    assert result.text() == "no task has a reward in both runs, matched by index"
    assert compare_runs(ComparedRun(run({})), ComparedRun(run({}))).tasks == 0


def test_one_common_task_is_too_few_to_say() -> None:
    assert "too few tasks" in compare_runs(ComparedRun(run({0: [1.0]})), ComparedRun(run({0: [0.0]}))).text()


def test_solve_rates_follow_the_threshold_and_skip_tasks_without_reward() -> None:
    table = run({0: [1.0, 0.5], 1: [None], 2: [0.0, 0.2], 3: [1.0]})
    assert solve_rates(table).rate.tolist() == [0.5, 0.0, 1.0]
    assert solve_rates(table, 0.5).rate.tolist() == [1.0, 0.0, 1.0]
    assert solve_rates(table).task.tolist() == [0, 2, 3]
    assert solve_rates(table).mixed() == [0]
    assert solve_rates(run({0: [None]})).counts()["never"] == 0


@pytest.mark.parametrize(
    ("rate", "band"), [(0, "never"), (0.1, "hard"), (0.25, "hard"), (0.5, "medium"), (0.8, "easy"), (1, "always")]
)
def test_bands_say_how_hard_a_task_is(rate: float, band: str) -> None:
    assert difficulty_of(rate) == band


def test_a_histogram_has_a_bar_per_value_or_range() -> None:
    assert text_histogram(np.array([0.0, 1.0, 1.0, math.nan, math.inf]), width=4) == (
        "0  1   33.3 %  ##\n1  2   66.7 %  ####"
    )
    assert len(text_histogram(np.linspace(0, 1, 50), bins=5).splitlines()) == 5
    assert text_histogram(np.array([math.nan])) == "no values"


def test_what_is_not_zero_shows_a_mark() -> None:
    lines = bars(["a", "b", "c"], [1000, 1, 0], width=10).splitlines()
    assert [line.count("#") for line in lines] == [10, 1, 0]


def test_tables_line_up() -> None:
    assert solve_rate_table(solve_rates(run({}))) == "no rewards"
    assert solve_rate_table(solve_rates(run({0: [1.0]}))).splitlines()[-1].startswith("always  1  100.0 %")
    assert (
        interval_table({"mean/reward": Interval(0.5, 0.25, 0.75, "wilson")}) == "mean/reward         0.5  [0.25, 0.75]"
    )


def test_the_picture_is_valid_and_counts_every_task() -> None:
    rates = solve_rates(run({0: [1.0], 1: [0.0], 2: [1.0] + 9 * [0.0], 3: [0.0] + 9 * [1.0], 4: [1.0, 0.0]}))
    assert solve_rate_counts(rates) == [1, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 1]
    root = ET.fromstring(solve_rate_svg(rates))
    assert root.tag.endswith("svg")


def ask(index: int, question: str, reward: float, *, rollout: int = 0, **params: object) -> str:
    given = {"input": [{"role": "user", "content": question}], **params}
    row = {"_ng_task_index": index, "_ng_rollout_index": rollout, "responses_create_params": given, "reward": reward}
    return json.dumps(row) + "\n"


def read(path: Path, *lines: str) -> ComparedRun:
    path.write_text("".join(lines))
    return ComparedRun(Shards([path], strict=False).table(), read_contents(path))


def test_tasks_are_paired_by_what_they_ask_not_by_their_number(tmp_path: Path) -> None:
    a = read(tmp_path / "a", ask(0, "one", 0.0), ask(1, "two", 0.25), ask(2, "three", 1.0))
    b = read(tmp_path / "b", ask(0, "three", 1.0, temperature=0.5), ask(1, "four", 1.0), ask(7, "one", 1.0))
    result = compare_runs(a, b)
    assert (result.pairs.task_a.tolist(), result.pairs.task_b.tolist()) == ([0, 2], [7, 0])
    assert (result.tasks, result.only_a, result.only_b, result.difference) == (2, 1, 1, 0.5)
    assert "2 tasks in both runs, matched by what they ask (1 only in a, 1 only in b)" in result.text()


def test_runs_over_other_tasks_have_no_pairs_however_they_are_numbered(tmp_path: Path) -> None:
    a = read(tmp_path / "a", *(ask(i, f"sum {i}", 0.0) for i in range(20)))
    b = read(tmp_path / "b", *(ask(i, f"product {i}", 1.0) for i in range(20)))
    assert compare_runs(a, b).tasks == 0
    assert compare_runs(ComparedRun(a.table), ComparedRun(b.table)).tasks == 20


def test_a_comparison_says_what_tasks_were_paired_by(tmp_path: Path) -> None:
    a, b = (read(tmp_path / name, ask(0, "one", 0.0), ask(1, "two", 1.0)) for name in "ab")
    assert compare_runs(a, b).paired_by == "content"
    for left, right in (
        (ComparedRun(a.table), b),
        (a, ComparedRun(b.table)),
        (ComparedRun(a.table), ComparedRun(b.table)),
    ):
        assert compare_runs(left, right).paired_by == "index"


def test_half_of_its_rollouts_solve_a_task(tmp_path: Path) -> None:
    a = read(tmp_path / "a", ask(0, "one", 0.0), ask(1, "two", 0.0))
    rows = [ask(0, "one", 1.0), ask(0, "one", 0.0, rollout=1), ask(1, "two", 1.0)]
    rows += [ask(1, "two", 0.0, rollout=1), ask(1, "two", 0.0, rollout=2)]
    result = compare_runs(a, read(tmp_path / "b", *rows))
    assert (result.gained, result.lost) == ([0], [])
    assert compare_runs(read(tmp_path / "b2", *rows), a).lost == [0]


def test_tasks_that_ask_the_same_are_paired_in_their_order(tmp_path: Path) -> None:
    a = read(tmp_path / "a", ask(3, "again", 0.0), ask(5, "again", 1.0))
    b = read(tmp_path / "b", ask(0, "again", 0.5), ask(1, "again", 0.5), ask(2, "again", 0.5))
    result = compare_runs(a, b)
    assert (result.pairs.task_a.tolist(), result.pairs.task_b.tolist(), result.only_b) == ([3, 5], [0, 1], 1)
