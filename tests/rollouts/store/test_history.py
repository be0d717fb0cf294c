import json
from pathlib import Path

import pytest

from nemo_gym.rollouts.store.history import (
    AttemptPolicy,
    Attempts,
    History,
    PastFailures,
    parse_max_attempts,
    read_completed,
    read_failures,
    read_saved,
)
from nemo_gym.rollouts.store.output import RunFiles
from nemo_gym.schemas.rows import RolloutKey

ONE = {"_ng_task_index": 0, "_ng_rollout_index": 0}


def line(task: int, rollout: int = 0, **fields: object) -> bytes:
    return json.dumps({"_ng_task_index": task, "_ng_rollout_index": rollout, **fields}).encode() + b"\n"


def test_everything_in_the_main_file_is_done_even_if_it_looks_like_a_failure(tmp_path: Path) -> None:
    path, history = tmp_path / "f", History()
    path.write_bytes(line(0) + line(1, _ng_failure_class="x") + line(-5, 7))
    assert read_completed(path, history) == []
    assert all(history.is_done(RolloutKey(*key)) for key in [(0, 0), (1, 0), (-5, 7)])
    assert not history.is_done(RolloutKey(0, 1))


def test_what_is_no_rollout_is_pointed_out(tmp_path: Path) -> None:
    path, history = tmp_path / "f", History()
    path.write_bytes(line(0) + b"\n" + line(0) + b"garbage\n" + b'{"reward": 1}\n' + b'{"_ng_ta')
    strays = read_completed(path, history)
    assert [span.why for span in strays] == [
        "blank line",
        "repeated rollout",
        "unreadable line",
        "line without a usable key",
        "torn line",
    ]
    assert [span.line for span in strays] == [2, 3, 4, 5, 6]
    assert history.done == {0}


def test_a_saved_run_has_what_is_owed_and_what_is_done(tmp_path: Path) -> None:
    files = RunFiles.of(tmp_path / "r.jsonl")
    files.plan.write_bytes(b"".join(line(task, rollout, question="q") for task in range(2) for rollout in range(3)))
    files.rollouts.write_bytes(line(0, 1, reward=1.0) + line(9, reward=1.0) + line(1, 0, reward=0.5))
    saved = read_saved(files, AttemptPolicy(max_attempts=2))
    assert [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in saved.owed] == [(0, 0), (0, 2), (1, 1), (1, 2)]
    assert [row["question"] for row in saved.rows] == ["q", "q"]
    assert [result["reward"] for result in saved.results] == [1.0, 0.5]
    assert saved.texts[0] == line(0, 1, reward=1.0).strip()
    files.failures.write_bytes(line(0, 2, _ng_failure_class="timeout") * 2 + line(1, 1, _ng_failure_class="timeout"))
    saved = read_saved(files, AttemptPolicy(max_attempts=2))
    assert [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in saved.owed] == [(0, 0), (1, 1), (1, 2)]


def test_failed_attempts_are_counted(tmp_path: Path) -> None:
    path, history = tmp_path / "f", History()
    path.write_bytes(
        line(0, _ng_failure_class="timeout")
        + b"\n   \n"
        + line(0, _ng_failure_class="connection")
        + b'{"reward": 0}\n'
        + line(1, _ng_failure_class="skipped", _ng_failure_terminal=True)
        + b'{"torn'
    )
    assert [span.why for span in read_failures(path, history)] == ["blank line", "blank line", "torn line"]
    assert list(history.failures.values()) == [PastFailures(2, False, "connection"), PastFailures(1, True, "skipped")]
    assert list(history.failed.values()) == [2, 1]


@pytest.mark.parametrize(
    ("past", "attempts"),
    [
        (None, Attempts(1, 3)),
        (PastFailures(1), Attempts(2, 3)),
        (PastFailures(2), Attempts(3, 3)),
        (PastFailures(3), None),
        (PastFailures(9), None),
        (PastFailures(1, terminal=True), None),
    ],
)
def test_a_rollout_is_tried_so_many_times_over_all_runs(past: PastFailures | None, attempts: Attempts | None) -> None:
    assert AttemptPolicy(3).attempts(past) == attempts


def test_a_reopened_class_gets_a_fresh_set_of_attempts() -> None:
    policy = AttemptPolicy(3, frozenset({"timeout"}))
    assert policy.attempts(PastFailures(3, terminal=True, kind="timeout")) == Attempts(4, 6)
    assert policy.attempts(PastFailures(3, kind="connection")) is None


@pytest.mark.parametrize(
    ("text", "number"), [("", 3), ("5", 5), (" +1_0 ", 10), ("0", 3), ("1", 1), ("-2", 3), ("many", 3)]
)
def test_the_number_of_attempts(text: str, number: int) -> None:
    assert parse_max_attempts(text, 3) == number


def test_a_deeply_nested_failure_is_set_aside_like_any_other_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "out_failures.jsonl"
    path.write_bytes(b'{"_ng_task_index":0,"deep":' + b"[" * 100_000 + b"]" * 100_000 + b',"_ng_rollout_index":0}\n')
    history = History()
    assert [span.why for span in read_failures(path, history)] == ["unreadable line"]


def test_a_failure_from_outside_is_no_attempt(tmp_path: Path) -> None:
    path = tmp_path / "out_failures.jsonl"
    lines = [{"_ng_failure_class": "connection", "_ng_owed": True}, {"_ng_failure_class": "timeout"}]
    path.write_text("".join(json.dumps({**ONE, **line}) + "\n" for line in lines))
    history = History()
    read_failures(path, history)
    assert [(past.count, past.kind) for past in history.failures.values()] == [(1, "timeout")]
