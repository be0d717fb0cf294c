"""Rewards of the same rollouts are compared, however the files are ordered."""

import json
from pathlib import Path

import numpy as np
import pytest

from nemo_gym.metrics.reward_changes import Change, reward_changes
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
    assert found.changes == [Change(0.0, 1.0, 2), Change(0.5, 1.0, 1)]
    assert found.text().splitlines() == [
        "3 of 5 rewards changed; mean 0.5 → 1",
        "  old → new  rollouts",
        "    0 → 1           2",
        "  0.5 → 1           1",
    ]
    assert found.as_dict()["changes"][0] == {"old": 0.0, "new": 1.0, "rollouts": 2}


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
