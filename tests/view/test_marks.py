"""Labels and notes of people: what is kept, what can be filtered by them, and how they agree with rewards."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import nemo_gym
from nemo_gym.errors import ConfigError
from nemo_gym.filters.marks import Mark, append_mark, read_marks
from nemo_gym.io.files import RunFiles
from nemo_gym.schemas.rows import RolloutKey
from nemo_gym.view.library import Library
from nemo_gym.view.marking import mark_at, marks_of, save_mark
from nemo_gym.view.rollout_files import encode_row
from nemo_gym.view.selection import Query, select


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run.jsonl"
    rows = [
        {
            "_ng_task_index": task,
            "_ng_rollout_index": rollout,
            "reward": float(rollout),
            "label": "the record's own",
            "responses_create_params": {"input": f"question {task}"},
            "response": {"output": [{"type": "message", "role": "assistant", "content": f"answer {rollout}"}]},
        }
        for task in range(5)
        for rollout in range(2)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.fixture
def library(run: Path, tmp_path: Path) -> Any:
    with Library([str(run)], cache=tmp_path / "cache") as opened:
        opened.index_all()
        yield opened


def found(library: Library, condition: str) -> list[int]:
    return [int(code) for code in select(library.snapshot(), Query(filter=condition)).rows]


def test_marks_are_columns_as_soon_as_they_are_saved_and_rows_stay_as_they_are(library: Library, run: Path) -> None:
    assert found(library, 'label == "good"') == []
    before = library.snapshot().parts[0].state.generation
    for row, label in ((1, "good"), (2, "bad"), (3, "odd")):
        save_mark(library.snapshot(), encode_row(0, row), json.dumps({"label": label, "note": f"row {row}"}).encode())
    library.index_all()
    assert found(library, 'label == "good"') == [1]
    assert found(library, 'label in ["bad", "odd"] and note contains "row"') == [2, 3]
    assert len(found(library, '`record.label` == "the record\'s own" and label is null')) == 7
    assert select(library.snapshot(), Query(sort="-label")).rows.tolist()[:3] == [3, 1, 2]
    assert library.snapshot().columns["label"].distinct == ["bad", "good", "odd"]
    save_mark(library.snapshot(), 1, b"{}")
    library.index_all()
    assert found(library, 'label == "good"') == []
    assert library.snapshot().parts[0].state.generation == before
    assert mark_at(library.snapshot(), 2)["note"] == "row 2"  # type: ignore[index]
    assert len(RunFiles.of(run).marks.read_bytes().splitlines()) == 4


def test_nothing_is_lost_when_several_people_mark_at_once(run: Path) -> None:
    def mark(number: int) -> None:
        append_mark(run, RolloutKey(number % 5, 0), Mark(f"label {number}", "x" * 3000, "someone"))

    with ThreadPoolExecutor(8) as people:
        list(people.map(mark, range(200)))
    lines = [json.loads(line) for line in RunFiles.of(run).marks.read_bytes().splitlines()]
    assert sorted(line["label"] for line in lines) == sorted(f"label {number}" for number in range(200))
    assert len(read_marks(run)) == 5


def test_a_torn_mark_is_skipped_and_the_next_one_is_whole(run: Path) -> None:
    append_mark(run, RolloutKey(0, 0), Mark("good"))
    with RunFiles.of(run).marks.open("ab") as file:
        file.write(b'{"task": 1, "rollout": 0, "lab')
    append_mark(run, RolloutKey(2, 0), Mark("bad"))
    assert {key: mark.label for key, mark in read_marks(run).items()} == {(0, 0): "good", (2, 0): "bad"}


@pytest.mark.parametrize(
    "body",
    [b"no JSON", b"[]", b'{"label": 1}', b'{"colour": "red"}', json.dumps({"label": "x" * 61}).encode()],
)
def test_what_is_not_a_mark_is_refused(library: Library, run: Path, body: bytes) -> None:
    with pytest.raises(ConfigError):
        save_mark(library.snapshot(), 1, body)
    assert not RunFiles.of(run).marks.exists()


def test_labels_are_compared_with_rewards_at_the_threshold(library: Library) -> None:
    assert marks_of(select(library.snapshot(), Query()), 1.0)["agreement"] is None
    for row, label in ((1, "good"), (2, "good"), (3, "bad"), (4, "bad"), (5, "own"), (6, "good")):
        save_mark(library.snapshot(), row, json.dumps({"label": label}).encode())
    library.index_all()
    marks = marks_of(select(library.snapshot(), Query()), 1.0)
    assert marks["labels"] == [["good", 3], ["bad", 2], ["own", 1]]
    agreement = marks["agreement"]
    assert (agreement["rollouts"], agreement["share"]) == (5, 0.6)
    assert (agreement["rewarded_but_bad"], agreement["unrewarded_but_good"]) == (1, 1)
    assert 0 < agreement["low"] < 0.6 < agreement["high"] < 1
    assert marks_of(select(library.snapshot(), Query()), 0.0)["agreement"]["share"] == 0.6


def test_marked_rollouts_can_be_exported_and_read_in_python(run: Path, tmp_path: Path) -> None:
    for task in (1, 3):
        append_mark(run, RolloutKey(task, 1), Mark("good", "keep"))
    loaded = nemo_gym.load(run)
    assert [each.key for each in loaded.select('label == "good"')] == [(1, 1), (3, 1)]
    assert [each.mark.note for each in loaded if each.mark.label] == ["keep", "keep"]
    report = loaded.export("sft", tmp_path / "sft.jsonl", filter='label == "good"')
    assert report.rows.total() == 2


def test_marks_beside_a_run_are_not_rollouts(run: Path, tmp_path: Path) -> None:
    append_mark(run, RolloutKey(0, 0), Mark("good"))
    with Library([str(tmp_path / "*.jsonl")], cache=tmp_path / "cache") as opened:
        assert [each.path.name for each in opened.runs] == ["run.jsonl"]
