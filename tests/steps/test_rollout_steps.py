"""Records of steps: as JSON and back."""

from pathlib import Path

import orjson
import pytest

from nemo_gym.io.files import RunFiles, role_of
from nemo_gym.steps.rollout_steps import RolloutSteps, Step, StepRetry, from_line, to_line
from nemo_gym.steps.steps_file import read_steps
from nemo_gym.steps.totals import summarise

RECORD = RolloutSteps(
    task=3,
    rollout=1,
    attempt=2,
    agent="simple_agent",
    started_at=1763300000.123456,
    duration=2.5,
    waited=0.1,
    outcome="completed",
    steps=[
        Step("call", "simple_agent", "/v1/responses", start=0.001, duration=2.0, status=200),
        Step(
            "model",
            "policy_model",
            "/v1/responses",
            start=0.002,
            duration=0.8,
            waited=0.1,
            parent=0,
            status=200,
            retries=[StepRetry(0.2, "429")],
            tokens_in=120,
            tokens_out=30,
            tokens_cached=64,
            bytes_out=900,
            bytes_in=1200,
            finish="completed",
        ),
        Step("tool", "weather", "/get_weather", "get_weather", start=1.0, duration=0.1, parent=0, status=500),
    ],
)


def test_a_record_survives_its_line() -> None:
    assert from_line(to_line(RECORD)) == RECORD


def test_a_line_names_what_is_known_of_each_step() -> None:
    line = orjson.loads(to_line(RECORD))
    assert list(line)[:3] == ["_ng_task_index", "_ng_rollout_index", "_ng_attempt"]
    agent, model, _ = line["steps"]  # what has its default is left out
    assert agent == {
        "server": "simple_agent",
        "route": "/v1/responses",
        "start": 0.001,
        "duration": 2.0,
        "status": 200,
    }
    assert model == {
        "kind": "model",
        "server": "policy_model",
        "route": "/v1/responses",
        "start": 0.002,
        "duration": 0.8,
        "status": 200,
        "bytes_out": 900,
        "bytes_in": 1200,
        "tokens_in": 120,
        "tokens_out": 30,
        "tokens_cached": 64,
        "finish": "completed",
        "waited": 0.1,
        "parent": 0,
        "retries": [{"at": 0.2, "failed": "429"}],
    }
    assert len(to_line(RECORD)) <= 400 * len(RECORD.steps)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"{}",
        b"[1, 2]",
        b'{"_ng_task_index":0,"_ng_rollout_index":0,"_ng_attempt":1}',  # a failure
        b'{"_ng_task_index":0,"response":{},"_ng_rollout_index":0}',
        b'{"_ng_task_index":"0","_ng_rollout_index":0,"steps":[]}',
        to_line(RECORD)[:-7],
        b"\0" * 40,
    ],
)
def test_what_is_not_a_record_is_none(line: bytes) -> None:
    assert from_line(line) is None


@pytest.mark.parametrize(
    "steps",
    [b'"none"', b"[7]", b'[{"start":-3}]', b'[{"duration":1e400}]', b'[{"status":"ok"}]', b'[{"tokens_in":-1}]'],
)
def test_a_line_with_impossible_values_is_skipped_and_counted(tmp_path: Path, steps: bytes) -> None:
    path = tmp_path / "rollouts_steps.jsonl"
    impossible = b'{"_ng_task_index":0,"_ng_rollout_index":0,"_ng_attempt":1,"steps":%b}\n' % steps
    path.write_bytes(impossible + to_line(RECORD) + b"\n")
    summary = summarise(read_steps(path))
    assert (summary.attempts, summary.skipped) == (1, 1)


def test_a_step_is_never_its_own_ancestor() -> None:
    steps = [Step("call", parent=1), Step("call", parent=1), Step("call", parent=1)]
    record = from_line(to_line(RolloutSteps(task=0, rollout=0, attempt=1, steps=steps)))
    assert record is not None
    assert [step.parent for step in record.steps] == [None, None, 1]


def test_fields_of_a_later_version_are_ignored() -> None:
    line = b'{"_ng_task_index":0,"_ng_rollout_index":0,"_ng_attempt":1,"queue":3,"steps":[{"kind":"gpu","colour":7}]}'
    record = from_line(line)
    assert record is not None
    assert record.steps == [Step("gpu")]


def test_the_reader_skips_and_counts_what_is_torn_or_foreign(tmp_path: Path) -> None:
    path = tmp_path / "rollouts_steps.jsonl"
    whole = to_line(RECORD)
    path.write_bytes(whole + b"\nnot JSON\n" + whole + b'\n{"reward":1}\n' + whole[:50])
    reading = read_steps(path)
    assert list(reading) == [RECORD, RECORD]
    assert (reading.exists, reading.skipped) == (True, 3)


def test_a_file_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    reading = read_steps(tmp_path / "rollouts_steps.jsonl")
    assert list(reading) == []
    assert (reading.exists, reading.skipped) == (False, 0)


def test_nobody_takes_a_steps_file_for_rollouts(tmp_path: Path) -> None:
    files = RunFiles.of(tmp_path / "rollouts.jsonl")
    assert role_of(files.steps) == "steps"
    assert role_of(files.timing) == "timing"
    assert {files.steps, files.timing} <= set(files.beside)


def test_inner_calls_and_waiting_are_not_the_own_time_of_a_step(tmp_path: Path) -> None:
    path = tmp_path / "rollouts_steps.jsonl"
    steps = [
        Step("tool", "s", "/t", "t", 0.5, 1.0, 500, 1, 2),
        Step("model", "m", "/v1", "", 0.6, 0.25, 200, 1, 2, 9, 7, waited=0.1, waited_for="slot", parent=0),
    ]
    record = RolloutSteps(task=0, rollout=0, attempt=1, duration=2.0, outcome="completed", steps=steps)
    path.write_bytes(to_line(record) + b"\n")
    times = {each.kind: each for each in summarise(read_steps(path)).steps}
    assert times["tool"].own_s == pytest.approx(0.75)
    assert (times["tool"].failed, times["model"].tokens_out) == (1, 7)
    assert times["model"].waited == pytest.approx({"slot": 0.1})
