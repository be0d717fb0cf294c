import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.store.shards import Shards


def shard(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def record(task: int, rollout: int = 0, **fields: Any) -> dict[str, Any]:
    return {"_ng_task_index": task, "_ng_rollout_index": rollout, **fields}


def test_all_rollouts_come_in_the_order_of_their_keys(tmp_path: Path) -> None:
    one = shard(tmp_path / "1", record(2), record(0, 1))
    two = shard(tmp_path / "2", record(1), {"reward": 1}, record(0, 0))
    shards = Shards([one, two])
    assert [(r.get("_ng_task_index"), r.get("_ng_rollout_index")) for r in shards.records()] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (2, 0),
        (None, None),
    ]
    assert len(shards) == 5


def test_a_rollout_that_is_in_two_shards_counts_once(tmp_path: Path) -> None:
    one, two = shard(tmp_path / "1", record(0, reward=1)), shard(tmp_path / "2", record(0, reward=1), record(1))
    assert len(Shards([one, two])) == 2


def test_two_different_rollouts_with_one_key_are_an_error_that_names_both(tmp_path: Path) -> None:
    one, two = shard(tmp_path / "1", record(0, reward=1)), shard(tmp_path / "2", record(1), record(0, reward=0))
    with pytest.raises(ConfigError) as caught:
        Shards([one, two])
    assert f"{one} line 1 and {two} line 2" in str(caught.value)


def test_blank_lines_are_skipped_and_garbage_is_named(tmp_path: Path) -> None:
    (tmp_path / "1").write_text("\n\n{bad\n")
    with pytest.raises(ConfigError, match="1: line 3: not JSON"):
        Shards([tmp_path / "1"])
