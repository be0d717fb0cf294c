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

from nemo_gym.metrics.builder import MetricsBuilder
from nemo_gym.metrics.statistics import describe, overall
from nemo_gym.metrics.table import Column

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
    assert "(no agent): 1 rollouts" in done.stdout


def test_mistakes_are_explained(tmp_path: Path) -> None:
    assert "usage:" in run().stderr
    missing = run(f"+jsonl_fpath={tmp_path / 'none.jsonl'}")
    assert (missing.returncode, "none.jsonl: no such file" in missing.stderr) == (1, True)
    assert "--jsonl_fpath" not in missing.stderr
    (tmp_path / "bad.jsonl").write_text("{\n")
    assert "bad.jsonl:1: not JSON" in run(f"++jsonl_fpath={tmp_path / 'bad.jsonl'}").stderr
