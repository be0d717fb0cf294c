"""Grouped statistics against the standard library's, and the rules for values that are missing or not finite.

The quick look at a rollout file, as a script.
"""

import json
import math
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.io.files import RunFiles
from nemo_gym.metrics.builder import MetricsBuilder
from nemo_gym.metrics.report import Coverage, Report, coverage, details, write_details
from nemo_gym.metrics.statistics import (
    bootstrap_means,
    clustered_wilson,
    describe,
    effective_size,
    mean_intervals,
    overall,
    share_fields,
    wilson,
)
from nemo_gym.metrics.table import Column, RowKeys
from nemo_gym.schemas.rows import RolloutKey

NUMBERS = st.one_of(st.floats(-1e6, 1e6), st.sampled_from([0.0, 1.0, 0.5]))
GROUPS = st.lists(
    st.lists(st.one_of(NUMBERS, st.none(), st.just(math.nan)), min_size=1, max_size=7), min_size=1, max_size=8
)


def close(got: float, expected: float | None, scale: float) -> bool:
    if expected is None:
        return math.isnan(got)
    return math.isclose(got, expected, rel_tol=1e-9, abs_tol=1e-9 * max(scale, 1.0))


def column_of(groups: list[list[float | None]]) -> tuple[Column, np.ndarray]:
    flat = [value for group in groups for value in group]
    values = np.array(flat, dtype=np.float64)
    present = np.array([value is not None for value in flat])
    starts = np.cumsum([0, *map(len, groups[:-1])])
    return Column(values, present), starts


@settings(deadline=None)
@given(GROUPS)
def test_every_group_has_the_statistics_of_its_known_values(groups: list[list[float | None]]) -> None:
    stats = describe(*column_of(groups))
    for i, group in enumerate(groups):
        known = [value for value in group if value is not None and not math.isnan(value)]
        scale = max(map(abs, known), default=0.0)
        alone = 0.0 if len(group) == len(known) == 1 else None
        assert close(stats.mean[i], statistics.fmean(known) if known else None, scale)
        assert close(stats.max[i], max(known) if known else None, scale)
        assert close(stats.min[i], min(known) if known else None, scale)
        assert close(stats.median[i], statistics.median(known) if known else None, scale)
        assert close(stats.std[i], statistics.stdev(known) if len(known) > 1 else alone, scale)


def test_very_uneven_groups_are_sorted_without_padding() -> None:
    groups: list[list[float | None]] = [[float(i % 7) for i in range(1000)], *([float(i)] for i in range(500))]
    stats = describe(*column_of(groups))
    assert stats.median[0] == statistics.median(groups[0])  # type: ignore[type-var]
    assert stats.median[1:].tolist() == [float(i) for i in range(500)]


@pytest.mark.parametrize(
    ("values", "mean", "median"),
    [
        ([math.inf, 1.0], math.inf, math.inf),
        ([math.inf, math.inf], math.inf, math.inf),
        ([math.inf, -math.inf], None, None),
        ([-math.inf, 0.0, 1.0], -math.inf, 0.0),
    ],
)
def test_infinities_do_not_crash(values: list[float], mean: float | None, median: float | None) -> None:
    stats = describe(Column(np.array(values), np.ones(len(values), bool)), np.zeros(1, np.int64))
    assert close(stats.mean[0], mean, 1.0) or stats.mean[0] == mean
    assert close(stats.median[0], median, 1.0) or stats.median[0] == median
    assert math.isnan(stats.std[0])


def test_each_rollout_counts_once_however_many_its_task_has() -> None:
    builder = MetricsBuilder()
    for task, rewards in enumerate([[1.0], [0.0, 0.0, 0.0]]):
        for reward in rewards:
            builder.add({"_ng_task_index": task, "reward": reward})
    assert overall(builder.table())["mean/reward"] == 0.25


def test_keys_are_grouped_by_statistic_and_fields_in_order_of_appearance() -> None:
    builder = MetricsBuilder()
    builder.add({"reward": 1.0, "b": 1, "a": 2, "response": {"usage": {"t": 3}}})
    assert list(overall(builder.table()))[:5] == ["mean/reward", "mean/b", "mean/a", "mean/t", "max/reward"]


SCRIPT = Path(__file__).parents[2] / "scripts" / "print_aggregate_results.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


def test_averages_are_over_all_rollouts_of_an_agent(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(
        '{"agent_ref": {"name": "a"}, "reward": 1, "_ng_task_index": 3, "_x": 9}\n\n'
        '{"agent_ref": {"name": "a"}, "reward": NaN, "n": 2}\n{"reward": true}\n'
    )
    done = run(f"+jsonl_fpath={path}")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == "a: 2 rollouts"
    assert json.dumps({"reward": 0.5, "n": 1.0}, indent=4) in done.stdout
    assert "(no agent): 1 rollout" in done.stdout


def test_mistakes_are_explained(tmp_path: Path) -> None:
    assert "usage:" in run().stderr
    missing = run(f"+jsonl_fpath={tmp_path / 'none.jsonl'}")
    assert (missing.returncode, "none.jsonl: no such file" in missing.stderr) == (1, True)
    assert "--jsonl_fpath" not in missing.stderr
    (tmp_path / "bad.jsonl").write_text("{\n")
    assert "bad.jsonl:1: not JSON" in run(f"++jsonl_fpath={tmp_path / 'bad.jsonl'}").stderr


def table_with(rewards: list[list[float]], **fields: float):
    builder = MetricsBuilder()
    for task, values in enumerate(rewards):
        for reward in values:
            builder.add({"_ng_task_index": task, "reward": reward, **fields})
    return builder.table()


def interval_of(rewards: list[list[float]], seed: int = 0):
    table = table_with(rewards)
    fields = table.metrics()
    return mean_intervals(fields, table.task_starts(), shares=share_fields(fields), seed=seed).get("reward")


@pytest.mark.parametrize(
    ("share", "size", "low", "high"),
    [(0.5, 10, 0.2366, 0.7634), (0.0, 10, 0.0, 0.2775), (1.0, 10, 0.7225, 1.0), (0.9, 100, 0.8256, 0.9448)],
)
def test_wilson_has_the_values_of_the_books(share: float, size: float, low: float, high: float) -> None:
    assert wilson(share, size) == pytest.approx((low, high), abs=5e-5)


def test_zeros_and_ones_get_wilson_with_one_trial_per_task() -> None:
    interval = interval_of([[1.0], [0.0], [1.0], [1.0]])
    assert interval is not None
    assert interval.method == "wilson"
    assert (interval.low, interval.high) == pytest.approx(wilson(0.75, 3.0), abs=1e-12)


def test_repeats_that_always_agree_are_worth_one_trial() -> None:
    successes, trials = np.array([8.0, 0.0, 8.0, 0.0] * 50), np.full(200, 8.0)
    assert effective_size(successes, trials) == pytest.approx(200, rel=0.01)
    assert effective_size(np.full(200, 4.0), trials) == 1600


def test_an_interval_stays_open_when_everything_succeeded() -> None:
    interval = clustered_wilson(np.full(10, 4.0), np.full(10, 4.0))
    assert (interval.mean, interval.high) == (1.0, 1.0)
    assert interval.low == pytest.approx(0.7225, abs=5e-5)


def test_graded_scores_are_resampled_by_task_and_repeatably() -> None:
    rewards = [[0.1 * (i % 10), 0.05 * (i % 7)] for i in range(60)]
    first, second, other = interval_of(rewards), interval_of(rewards), interval_of(rewards, seed=1)
    assert first == second
    assert first is not None
    assert other is not None
    assert first.method == "bootstrap"
    assert first.low < first.mean < first.high
    assert (first.low, first.high) != (other.low, other.high)


def test_the_bootstrap_matches_theory_for_many_tasks() -> None:
    values = np.random.default_rng(3).normal(2.0, 1.0, 4000)
    low, high = bootstrap_means(values[:, None], np.ones((4000, 1)))[:, 0]
    expected = 1.96 * values.std(ddof=1) / math.sqrt(4000)
    assert high - low == pytest.approx(2 * expected, rel=0.1)
    assert low < values.mean() < high


@pytest.mark.parametrize("rewards", [[[0.5, 0.7]], [[math.inf], [0.5]], [[math.nan], [math.nan]]])
def test_where_nothing_can_be_said_there_is_no_interval(rewards: list[list[float]]) -> None:
    assert interval_of(rewards) is None


def test_a_single_task_of_zeros_and_ones_says_little() -> None:
    interval = interval_of([[1.0, 1.0, 1.0]])
    assert interval is not None
    assert interval.low < 0.3


def test_a_field_that_few_tasks_have_gets_no_interval() -> None:
    builder = MetricsBuilder()
    for task in range(20):
        builder.add({"_ng_task_index": task, "reward": 0.3 * task} | ({"rare": 0.5} if task == 3 else {}))
    table = builder.table()
    assert list(mean_intervals(table.metrics(), table.task_starts())) == ["reward"]


def test_details_have_intervals_coverage_tool_use_and_difficulty() -> None:
    builder = MetricsBuilder()
    for task in range(4):
        for repeat in range(2):
            output = [{"type": "function_call"}] * task
            builder.add({"_ng_task_index": task, "reward": float(repeat), "response": {"output": output}})
    found = details(builder.table(), coverage=Coverage(10, 8, {"transient": 1}))
    assert found["avg_tool_calls"] == 1.5
    assert found["intervals"]["mean/reward"]["method"] == "wilson"
    assert found["coverage"] == {
        "planned": 10, "completed": 8, "failed": {"transient": 1}, "pending": 1, "completed_pct": 80.0,
    }  # fmt: skip
    assert found["tasks_by_difficulty"] == {"never": 0, "hard": 0, "medium": 4, "easy": 0, "always": 0}


def test_coverage_counts_each_rollout_by_its_last_failure() -> None:
    keys = [RolloutKey(task, 0) for task in range(5)]
    failures = [(keys[1], "transient"), (keys[1], "timeout"), (keys[0], "transient"), (RolloutKey(9, 9), "other")]
    found = coverage(RowKeys.of(keys * 2), RowKeys.of([keys[2], keys[0], RolloutKey(9, 0)]), failures)
    assert found == Coverage(5, 2, {"timeout": 1})
    assert str(found) == "2 of 5 rollouts completed (40.0 %), 1 failed (timeout 1), 2 not run"
    assert coverage(RowKeys.of([]), RowKeys.of([]), [(keys[0], "timeout")]) == Coverage(0, 0)
    assert str(Coverage(0, 0)) == "0 of 0 rollouts completed (100.0 %)"


def test_details_are_written_beside_the_rollouts_sorted_by_agent(tmp_path: Path) -> None:
    path = RunFiles.of(tmp_path / "run.v1.jsonl").details
    write_details(path, {"b": details(table_with([[math.inf]])), "a": details(table_with([]))})
    assert path.name == "run.v1_aggregate_details.json"
    entries = json.loads(path.read_text())
    assert [entry["agent_ref"]["name"] for entry in entries] == ["a", "b"]
    assert [entry["rollouts"] for entry in entries] == [0, 1]
    assert entries[1]["intervals"] == {}


def test_token_counts_are_no_shares() -> None:
    builder = MetricsBuilder()
    for task in range(3):
        builder.add({"_ng_task_index": task, "reward": 1.0, "response": {"usage": {"cached_tokens": 0}, "output": []}})
    intervals = details(builder.table())["intervals"]
    assert intervals["mean/cached_tokens"] == {"mean": 0.0, "low": 0.0, "high": 0.0, "method": "bootstrap"}
    assert intervals["avg_tool_calls"]["method"] == "bootstrap"
    assert intervals["mean/reward"]["method"] == "wilson"


def test_the_same_numbers_have_the_same_interval_whatever_they_are_called() -> None:
    builder = MetricsBuilder()
    for task in range(12):
        right = float(task % 3 == 0)
        builder.add(
            {"_ng_task_index": task, "_ng_rollout_index": 0, "reward": right, "accuracy": right, "ok": bool(right)}
        )
    intervals = details(builder.table())["intervals"]
    assert intervals["mean/reward"] == intervals["mean/accuracy"] == intervals["mean/ok"]


def test_the_screen_shows_the_reward_first_and_nothing_that_never_varies() -> None:
    builder = MetricsBuilder()
    for task in range(12):
        row = {"_ng_task_index": task, "_ng_rollout_index": 0, "difficulty": 1, "level": 3, "size": task, "reward": 1.0}
        builder.add(row)
    lines = Report.of("a", builder.table()).text().splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["mean/reward", "mean/size", "(2"]


@pytest.mark.parametrize(
    ("field", "values", "method"),
    [
        ("solved", [True, False, True], "wilson"),
        ("reward", [1.0, 0.0, 1.0], "wilson"),
        ("reward", [True, False, True], "wilson"),
        ("reward", [1.0, 0.5, 0.0], "bootstrap"),
        ("accuracy", [1.0, 0.0, 1.0], "wilson"),
        ("accuracy", [1, 0, 1], "wilson"),
        ("accuracy", [1.0, 1.0, 1.0], "wilson"),
        ("tool_errors", [0, 0, 0], "bootstrap"),
        ("tool_errors", [0, 1, 2], "bootstrap"),
        ("solved", [True, False, 2], "bootstrap"),
    ],
)
@pytest.mark.parametrize("as_lines", [False, True])
def test_the_method_follows_from_what_a_field_is(field: str, values: list[float], method: str, as_lines: bool) -> None:
    builder = MetricsBuilder()
    for task, value in enumerate(values * 8):
        row = {"_ng_task_index": task, "_ng_rollout_index": 0, "reward": 0.5, field: value}
        builder.add_line(json.dumps(row).encode()) if as_lines else builder.add(row)
    assert details(builder.table())["intervals"][f"mean/{field}"]["method"] == method
