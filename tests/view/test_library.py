"""Libraries: which files are shown, what lies beside them, and what is refused before anything is opened."""

import json
import os
import socket
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError, ConfigPathNotFoundError
from nemo_gym.io.files import find_files, split_patterns
from nemo_gym.rollouts.store.journal import Journal
from nemo_gym.view.library import Library, is_held
from nemo_gym.view.rollout_files import check_files
from nemo_gym.view.selection import Query, select


def test_paths_and_patterns_name_files_once(write, tmp_path, monkeypatch):
    for name in ("a.jsonl", "b.jsonl", "b_failures.jsonl", "b_materialized_inputs.jsonl", "c.txt"):
        write(name, [{"reward": 1}])
    monkeypatch.chdir(tmp_path)
    assert find_files(["*.jsonl", "a.jsonl"]) == [Path("a.jsonl"), Path("b.jsonl")]
    assert find_files(["b_failures.jsonl"]) == [Path("b_failures.jsonl")]
    assert split_patterns("a.jsonl, *.jsonl") == ["a.jsonl", "*.jsonl"]
    assert split_patterns(["a.jsonl", " "]) == ["a.jsonl"]


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(write, tmp_path):
    path = write("a[1],b.jsonl", [{"reward": 1}])
    assert split_patterns(str(path)) == [str(path)]
    assert find_files([str(path)]) == [path]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b"hello\nworld\n", "not a file of JSON lines: line 1 is not JSON"),
        (b'[{"reward": 1},\n{"reward": 1}]\n', "not a file of JSON lines"),
        (b"1\n2\n", "not a file of JSON lines: line 1 is not an object but int"),
        (b"\x80\x81\x00binary\n" * 20, "not a file of JSON lines"),
    ],
)
def test_a_file_that_is_no_rollouts_is_refused(tmp_path, content, message):
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        check_files([str(path)])
    assert caught.value.hint


def test_a_file_that_is_not_there_is_refused(tmp_path):
    for pattern in ("a.jsonl", "*.jsonl"):
        with pytest.raises(ConfigPathNotFoundError):
            check_files([str(tmp_path / pattern)])
    with pytest.raises(ConfigError, match="is a folder"):
        check_files([str(tmp_path)])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_refused(write):
    path = write("a.jsonl", [{"reward": 1}])
    path.chmod(0)
    with pytest.raises(ConfigError, match="no permission"):
        check_files([str(path)])


def test_a_run_that_has_just_begun_may_be_empty(write, record, library):
    write("run_materialized_inputs.jsonl", [record(0, 0), record(0, 1)])
    found = library(write("run.jsonl", []))
    assert found.runs[0].state()["planned"] == 2
    assert len(select(found.snapshot(), Query())) == 0
    write("run.jsonl", [record(0, 0)], append=True)
    found.index_all()
    assert len(select(found.snapshot(), Query())) == 1


def test_failures_that_come_later_are_found(write, record, failure, library):
    found = library(write("run.jsonl", [record(0, 0)]))
    assert [run.state()["failures"] for run in found.runs] == [0]
    write("run_failures.jsonl", [failure(0, 1)])
    found.index_all()
    assert [run.state()["failures"] for run in found.runs] == [1]
    assert len(select(found.snapshot(), Query(filter='failure == "timeout"'))) == 1


def test_a_shard_that_comes_later_is_shown(write, record, library, tmp_path):
    write("shard_0.jsonl", [record(0, 0)])
    found = library(tmp_path / "shard_*.jsonl")
    write("shard_1.jsonl", [record(1, 0)])
    found.look_for_files()
    found.index_all()
    assert [run.name for run in found.runs] == ["shard_0.jsonl", "shard_1.jsonl"]
    assert found.title == "shard_0.jsonl and 1 more"
    assert len(select(found.snapshot(), Query(filter='file == "shard_1.jsonl"'))) == 1


def test_large_files_are_indexed_one_after_the_other(write, record, tmp_path):
    for name in "ab":
        write(f"{name}.jsonl", [record(number, 0, pad="x" * 3_000_000) for number in range(8)])
    with Library([str(tmp_path / "*.jsonl")], cache=tmp_path / "cache") as found:
        assert found.refresh()
        done = [run.state()["rollouts"] for run in found.runs]
        assert 0 < done[0] < 8
        assert done[1] == 0
        found.index_all()
        assert [run.state()["rollouts"] for run in found.runs] == [8, 8]


def test_files_of_the_same_name_are_told_apart(write, record, library):
    found = library(write("x/run.jsonl", [record()]), write("y/run.jsonl", [record()]))
    assert [run.name for run in found.runs] == [str(run.path) for run in found.runs]


def test_sorting_puts_numbers_before_texts_and_gaps_last(write, record, library):
    values = ["b", 2, None, "a", 1.5, True]
    rows = [record(number, 0, **({} if value is None else {"v": value})) for number, value in enumerate(values)]
    other = [record(10, 0, v="aa")]
    found = library(write("a.jsonl", rows), write("b.jsonl", other))
    up, down = (select(found.snapshot(), Query(sort=sort)).values("task").numbers.tolist() for sort in ("v", "-v"))
    assert up == [5, 4, 1, 3, 10, 0, 2]
    assert down == [0, 10, 3, 1, 4, 5, 2]


def test_sorting_by_previews_and_several_columns(write, record, library):
    rows = [record(number, 0, float(number % 2), question=f"q{9 - number}") for number in range(4)]
    found = library(write("a.jsonl", rows)).snapshot()
    assert select(found, Query(sort="question")).values("task").numbers.tolist() == [3, 2, 1, 0]
    assert select(found, Query(sort="-reward,task")).values("task").numbers.tolist() == [1, 3, 0, 2]


def test_a_lock_is_held_by_a_process_that_lives(tmp_path):
    lock = tmp_path / "a.lock"
    assert not is_held(lock)
    lock.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
    assert is_held(lock)
    lock.write_text(json.dumps({"pid": 2**22 + 1, "host": socket.gethostname()}))
    assert not is_held(lock)
    lock.write_text(json.dumps({"pid": 1, "host": "another machine"}))
    assert is_held(lock)
    lock.write_text("half wri")
    assert not is_held(lock)


def test_a_pattern_leaves_out_the_files_of_a_run_that_are_no_rollouts(write, record, library):
    write("run.jsonl", [record()])
    for name in ("failures", "materialized_inputs", "difficulty", "reward_profiling"):
        write(f"run_{name}.jsonl", [{"_ng_task_index": 0}])
    found = library(str(write("other.jsonl", [record(1)]).with_name("*.jsonl")))
    assert [run.name for run in found.runs] == ["other.jsonl", "run.jsonl"]


def test_a_compressed_run_is_followed_and_searched_while_it_grows(record, library, tmp_path):
    pytest.importorskip("zstandard")
    path = tmp_path / "run.jsonl.zst"
    with Journal(path) as journal:
        journal.append([json.dumps(record(0, number)).encode() for number in range(3)])
        found = library(path)
        assert len(select(found.snapshot(), Query())) == 3
        before = path.stat().st_size
        journal.append([json.dumps(record(1, number)).encode() for number in range(2)])
        with path.open("rb") as file:
            whole = file.read()
        os.truncate(path, before + 20)  # a frame that is just being written
        found.index_all()
        assert len(select(found.snapshot(), Query())) == 3
        path.write_bytes(whole)
        found.index_all()
        snapshot = found.snapshot()
        assert len(select(snapshot, Query())) == 5
        assert len(select(snapshot, Query(search="found 1001"))) == 1
        assert found.runs[0].state()["unreadable"] == 0
