import json
import logging
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.errors import ConfigError, ConfigPathNotFoundError
from nemo_gym.rollouts.run_metrics import find_shards
from nemo_gym.rollouts.store.shards import OnConflict, Shards


def shard(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def record(task: int, rollout: int = 0, **fields: Any) -> dict[str, Any]:
    return {"_ng_task_index": task, "_ng_rollout_index": rollout, **fields}


def keys(shards: Shards) -> list[tuple[Any, Any]]:
    return [(r.get("_ng_task_index"), r.get("_ng_rollout_index")) for r in shards.records()]


def test_all_rollouts_come_in_the_order_of_their_keys(tmp_path: Path) -> None:
    one = shard(tmp_path / "1", record(2), record(0, 1))
    two = shard(tmp_path / "2", record(1), {"reward": 1}, record(0, 0))
    shards = Shards([one, two])
    assert keys(shards) == [(0, 0), (0, 1), (1, 0), (2, 0), (None, None)]
    assert len(shards) == 5


def test_the_lines_are_those_of_the_files(tmp_path: Path) -> None:
    path = tmp_path / "1"
    path.write_bytes(b'{"_ng_task_index": 1, "x": "\xc3\xa9"}\r\n\n  \n{"_ng_task_index": 0}')
    assert list(Shards([path]).lines()) == [b'{"_ng_task_index": 0}', b'{"_ng_task_index": 1, "x": "\xc3\xa9"}']


def test_large_files_are_read_again_where_their_lines_are(tmp_path: Path) -> None:
    paths = [
        shard(tmp_path / f"{n}", *(record(task, n, text="x" * (task % 7) * 1000) for task in reversed(range(300))))
        for n in range(2)
    ]
    shards = Shards(paths)
    found = list(shards.records())
    assert [(r["_ng_task_index"], r["_ng_rollout_index"]) for r in found] == [
        (t, n) for t in range(300) for n in (0, 1)
    ]
    assert all(len(r["text"]) == r["_ng_task_index"] % 7 * 1000 for r in found)


def test_more_shards_than_files_may_be_open(tmp_path: Path) -> None:
    paths = [shard(tmp_path / f"{n}", record(1, n), record(0, n)) for n in range(100)]
    assert keys(Shards(paths)) == [(task, n) for task in (0, 1) for n in range(100)]


def test_a_rollout_that_is_in_two_shards_counts_once(tmp_path: Path) -> None:
    one = shard(tmp_path / "1", record(0, reward=1))
    two = tmp_path / "2"
    two.write_text('{"reward":1, "_ng_rollout_index":0, "_ng_task_index":0}\n' + json.dumps(record(1)) + "\n")
    shards = Shards([one, two, two])
    assert (len(shards), shards.repeated) == (2, 3)
    assert keys(shards) == [(0, 0), (1, 0)]
    assert len(shards.table()) == 2


def test_two_different_rollouts_with_one_key_are_an_error_that_names_both(tmp_path: Path) -> None:
    one, two = shard(tmp_path / "1", record(0, reward=1)), shard(tmp_path / "2", record(1), record(0, reward=0))
    with pytest.raises(ConfigError) as caught:
        Shards([one, two])
    assert f"{one} line 1 and {two} line 2" in str(caught.value)
    assert "+on_conflict=first" in str(caught.value.hint)


@pytest.mark.parametrize(("on_conflict", "kept"), [(OnConflict.FIRST, 1.0), (OnConflict.LAST, 3.0)])
def test_a_conflict_can_be_settled_for_the_first_or_the_last(
    on_conflict: OnConflict, kept: float, tmp_path: Path
) -> None:
    paths = [shard(tmp_path / f"{n}", record(0, reward=float(n)), record(n, reward=0.5)) for n in (1, 2, 3)]
    shards = Shards([*paths, paths[2]], on_conflict=on_conflict)
    assert [r["reward"] for r in shards.records()] == [kept, 0.5, 0.5, 0.5]
    assert shards.table().top["reward"].values.tolist() == [kept, 0.5, 0.5, 0.5]


def test_blank_lines_are_skipped_and_garbage_is_named(tmp_path: Path) -> None:
    (tmp_path / "1").write_text("\n\n{bad\n")
    with pytest.raises(ConfigError, match="1: line 3: not JSON"):
        Shards([tmp_path / "1"])


def test_unless_strict_lines_that_can_not_be_read_are_told_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "1").write_text(f'{json.dumps(record(1))}\n{{bad\n\n[]\n{json.dumps(record(0))}\n{{"_ng_task_ind')
    with caplog.at_level(logging.WARNING):
        shards = Shards([tmp_path / "1"], strict=False)
    assert keys(shards) == [(0, 0), (1, 0)]
    assert [place.line for place, _ in shards.unreadable] == [2, 4, 6]
    assert f"{tmp_path / '1'} line 6 does not count: not JSON" in caplog.text
    assert "3 lines could not be read" in caplog.text


def test_what_lies_beside_rollouts_is_no_shard(tmp_path: Path) -> None:
    names = [
        "s1",
        "s1_materialized_inputs",
        "s1_failures",
        "s1_reward_profiling",
        "s1_difficulty",
        "s2",
        "alone_failures",
        "s_all",
    ]
    for name in names:
        shard(tmp_path / f"{name}.jsonl")
    found = find_shards(f"{tmp_path}/*.jsonl", tmp_path / "s_all.jsonl")
    assert [path.stem for path in found] == ["s1", "s2"]
    with pytest.raises(ConfigPathNotFoundError):
        find_shards(f"{tmp_path}/x*", tmp_path / "o")
