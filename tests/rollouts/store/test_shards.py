import json
import logging
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.errors import ConfigError, ConfigPathNotFoundError
from nemo_gym.io.files import RunFiles
from nemo_gym.io.json import decode
from nemo_gym.metrics.report import coverage
from nemo_gym.rollouts.run_metrics import PlannedKeys, find_shards, write_merged
from nemo_gym.rollouts.store.saved_lines import OnConflict
from nemo_gym.rollouts.store.shards import Shards


def shard(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def record(task: int, rollout: int = 0, **fields: Any) -> dict[str, Any]:
    return {"_ng_task_index": task, "_ng_rollout_index": rollout, **fields}


def keys(shards: Shards) -> list[tuple[Any, Any]]:
    return [(r.get("_ng_task_index"), r.get("_ng_rollout_index")) for r in map(decode, shards.lines())]


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
    found = list(map(decode, shards.lines()))
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
    assert [r["reward"] for r in map(decode, shards.lines())] == [kept, 0.5, 0.5, 0.5]
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


def test_files_that_repeat_the_same_tasks_count_as_further_repeats(tmp_path: Path) -> None:
    for seed in range(3):
        for chunk in range(2):
            lines = [
                json.dumps({"_ng_task_index": 10 * chunk + task, "_ng_rollout_index": repeat, "reward": float(seed)})
                for task in range(4)
                for repeat in range(2)
            ]
            (tmp_path / f"rollouts-s{seed}-c{chunk}.jsonl").write_text("\n".join(lines) + "\n")
    paths = sorted(tmp_path.glob("rollouts-s*-c*.jsonl"))
    with pytest.raises(ConfigError) as caught:
        Shards(paths)
    assert "+on_conflict=repeat" in (caught.value.hint or "")
    shards = Shards(paths, on_conflict=OnConflict.REPEAT)
    records = list(map(decode, shards.lines()))
    keys = [(record["_ng_task_index"], record["_ng_rollout_index"]) for record in records]
    assert keys == [(10 * chunk + task, repeat) for chunk in range(2) for task in range(4) for repeat in range(6)]
    assert [record["reward"] for record in records[:6]] == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]
    assert len(shards.table()) == 48


def test_further_repeats_of_what_was_planned_are_covered(tmp_path: Path) -> None:
    for seed in range(2):
        files = RunFiles.of(tmp_path / f"rs{seed}.jsonl")
        rows = [{"_ng_task_index": task, "_ng_rollout_index": 0, "agent_ref": {"name": "a"}} for task in range(3)]
        files.plan.write_text("".join(json.dumps(row) + "\n" for row in rows))
        files.rollouts.write_text("".join(json.dumps({**row, "reward": 1.0}) + "\n" for row in rows[: 3 - seed]))
        files.failures.write_text(json.dumps({**rows[2], "_ng_failure_class": "timeout"}) + "\n" if seed else "")
    shards = Shards([tmp_path / "rs0.jsonl", tmp_path / "rs1.jsonl"], on_conflict=OnConflict.REPEAT)
    planned = PlannedKeys.of(shards.paths, shards.shift)
    assert planned is not None
    found = coverage(planned.keys_of("a"), shards.table_of("a").key_columns(), planned.failures)
    assert (found.planned, found.completed, dict(found.failed)) == (6, 5, {"timeout": 1})


def test_a_merge_never_replaces_rollouts_that_are_not_in_it(tmp_path: Path) -> None:
    shard(tmp_path / "a.jsonl", record(0), record(1))
    merged = tmp_path / "all.jsonl"
    write_merged(Shards([tmp_path / "a.jsonl"]), merged)
    write_merged(Shards([tmp_path / "a.jsonl"]), merged)
    assert not (tmp_path / "all.jsonl.backup-1").exists(), "a merge of the same is only written again"
    other = '{"_ng_task_index": 99, "_ng_rollout_index": 0, "reward": 1.0}\n'
    merged.write_text(other)
    write_merged(Shards([tmp_path / "a.jsonl"]), merged)
    assert (tmp_path / "all.jsonl.backup-1" / "all.jsonl").read_text() == other
    merged.write_text(other)
    RunFiles.of(merged).plan.write_text(other)
    with pytest.raises(ConfigError, match="output of a collection"):
        write_merged(Shards([tmp_path / "a.jsonl"]), merged)
    assert merged.read_text() == other


@pytest.mark.parametrize("form", ["a-rs{}-chunk{}.jsonl", "a-rs{}-{}-of-2.jsonl", "a_rs{}_chunk{}-0-of-2.jsonl"])
def test_files_that_are_named_by_seed_hold_further_repeats(tmp_path: Path, form: str) -> None:
    names = [form.format(seed, chunk) for seed in range(2) for chunk in range(2)]
    paths = [shard(tmp_path / name, record(n % 2, reward=n)) for n, name in enumerate(names)]
    shards = Shards(paths)
    assert keys(shards) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [decode(line)["reward"] for line in shards.lines()] == [0, 2, 1, 3]


def test_chunks_of_a_seed_that_share_a_task_are_a_conflict(tmp_path: Path) -> None:
    names = ("a-rs0-chunk0.jsonl", "a-rs0-chunk1.jsonl", "a-rs1-chunk0.jsonl")
    paths = [shard(tmp_path / name, record(0, reward=n)) for n, name in enumerate(names)]
    with pytest.raises(ConfigError, match="occurs twice") as caught:
        Shards(paths)
    assert "+on_conflict=repeat" in (caught.value.hint or "")
