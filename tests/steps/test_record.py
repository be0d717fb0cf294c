"""Records of steps: as JSON and back, however odd the JSON is."""

import json
from pathlib import Path

import orjson
import pytest

from nemo_gym.io.files import RunFiles, role_of
from nemo_gym.steps.record import RolloutSteps, Step, StepNote, StepNumbers, StepRetry, from_line, to_line
from nemo_gym.steps.steps_file import read_steps, timings_of_all
from nemo_gym.steps.summary import TimeSummary
from nemo_gym.steps.totals import TimeTotals, summarise

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


def test_a_line_has_calls_numbers_and_notes_in_the_agreed_order() -> None:
    line = orjson.loads(to_line(RECORD))
    assert list(line)[:3] == ["_ng_task_index", "_ng_rollout_index", "_ng_attempt"]
    assert line["calls"][0] == ["call", "simple_agent", "/v1/responses", ""]
    assert line["calls"][1] == ["model", "policy_model", "/v1/responses", "", "completed"]
    assert dict(zip(StepNumbers._fields, line["numbers"][1], strict=True)) == {
        "start": 2_000_000,
        "end": 802_000_000,
        "status": 200,
        "bytes_out": 900,
        "bytes_in": 1200,
        "tokens_in": 120,
        "tokens_out": 30,
        "tokens_cached": 64,
    }
    assert dict(zip(StepNote.__struct_fields__, line["notes"][0], strict=True)) == {
        "step": 1,
        "waited": 100_000_000,
        "waited_for": "",
        "parent": 0,
        "retries": [{"at": 0.2, "failed": "429"}],
    }
    assert len(to_line(RECORD)) <= 400 * len(RECORD.steps)


CALL = b'[["tool","s","/t","t"]]'


@pytest.mark.parametrize(
    ("calls", "numbers", "start", "duration"),
    [
        (CALL, b"[[3000,1000,200,1,2,3,4,5]]", 1e-06, 0.0),
        (b'[["tool","s","/t","t"],7]', b"[[3000,5000]]", 1e-06, 2e-06),
        (CALL, b'[[-5,"now",1e400,-1,{},null]]', 0.0, 0.0),
        (CALL, b"[]", 0.0, 0.0),
        (CALL, b'[[3000,5000,200,0,0,0,0,0],[1],"x"]', 1e-06, 2e-06),
    ],
)
def test_numbers_that_make_no_sense_are_read_as_far_as_they_do(
    tmp_path: Path, calls: bytes, numbers: bytes, start: float, duration: float
) -> None:
    head = b'{"_ng_task_index":0,"_ng_rollout_index":0,"_ng_attempt":1,"clock_ns":2000'
    line = b'%b,"calls":%b,"numbers":%b,"notes":[[9,5,"slot",0],[0,1,"",7],3]}' % (head, calls, numbers)
    record = from_line(line)
    assert record is not None
    step = record.steps[0]
    assert (step.kind, step.tool, step.start, step.duration, step.parent) == ("tool", "t", start, duration, None)
    path = tmp_path / "rollouts_steps.jsonl"
    path.write_bytes(line + b"\n")
    assert summarise(read_steps(path)).attempts == 1


def test_attempts_are_added_up_beside_one_with_more_calls_than_numbers(tmp_path: Path) -> None:
    whole = b'{"_ng_task_index":0,"_ng_rollout_index":0,"_ng_attempt":1,"calls":%b,"numbers":%b}\n'
    seconds = b"[[0,1000000000,200,0,0,0,0,0]]"
    path = tmp_path / "rollouts_steps.jsonl"
    two = b'[["tool","s","/t","t"],["tool","s","/t","t"]]'
    path.write_bytes(whole % (CALL, seconds) + whole % (two, seconds) + whole % (CALL, b"[[1, 2,3,4,5,6,7,-8]]"))
    [tool] = summarise(read_steps(path)).steps
    assert (tool.count, round(tool.own_s, 6)) == (3, 2.0)


def test_values_at_the_end_of_a_step_may_be_missing() -> None:
    line = b'{"_ng_task_index":0,"_ng_rollout_index":0,"_ng_attempt":1,"steps":[["tool","s","/t","t",1.5,2.0],["gpu"]]}'
    record = from_line(line)
    assert record is not None
    assert record.steps == [Step("tool", "s", "/t", "t", 1.5, 2.0), Step("gpu")]


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


def test_nonsense_is_left_out_and_the_rest_kept() -> None:
    line = b"""{"_ng_task_index":0,"_ng_rollout_index":0,"agent":5,"started_at":"now","duration":1e300,
        "outcome":"timeout","steps":[{"kind":"model","start":-3,"duration":NaN,"status":"ok","tokens_in":-1,"parent":0,"retries":[1]},
                 "step", {"kind":"tool","tool":"look","start":1,"duration":0.5,"parent":99,"tokens_out":1e400},
                 {"kind":"tool","tool":"look","parent":2,"bytes_in":123456789012345678901234567890},
                 ["tool","s","/t",7,-1,0.5,"ok"]]}"""
    record = from_line(line)
    assert record is not None
    assert (record.agent, record.started_at, record.duration, record.attempt) == ("", 0.0, 0.0, 1)
    assert record.steps == [
        Step("model"),
        Step(),
        Step("tool", tool="look", start=1.0, duration=0.5),
        Step("tool", tool="look", parent=2),
        Step("tool", "s", "/t", duration=0.5),
    ]


def test_a_step_is_never_its_own_ancestor() -> None:
    steps = [Step("call", parent=1), Step("call", parent=1), Step("call", parent=1)]
    record = from_line(to_line(RolloutSteps(task=0, rollout=0, attempt=1, steps=steps)))
    assert record is not None
    assert [step.parent for step in record.steps] == [None, None, 1]


def test_fields_of_a_later_version_are_ignored() -> None:
    line = b'{"_ng_task_index":0,"_ng_rollout_index":0,"_ng_attempt":1,"queue":3,"steps":%b}'
    later = b'["gpu","","","",0,0,0,0,0,0,0,0,"",0,"",null,[],"blue"]'
    record = from_line(line % (b"[%b]" % later))
    assert record is not None
    assert record.steps == [Step("gpu")]


def test_steps_of_an_earlier_version_are_read() -> None:
    line = (
        b'{"_ng_task_index":0,"_ng_rollout_index":0,"_ng_attempt":1,"steps":[{"kind":"model","server":"m","start":0.5,'
        b'"duration":1.5,"status":200,"retries":[{"at":0.7,"failed":"429"}],"tokens_in":3}]}'
    )
    record = from_line(line)
    assert record is not None
    retries = [StepRetry(0.7, "429")]
    assert record.steps == [Step("model", "m", start=0.5, duration=1.5, status=200, tokens_in=3, retries=retries)]


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


def test_the_times_of_an_earlier_version_are_added_up(tmp_path: Path) -> None:
    path = tmp_path / "rollouts_steps.jsonl"
    head = b'{"_ng_task_index":0,"_ng_rollout_index":0,"_ng_attempt":1,"duration":2.0,"outcome":"completed","steps":'
    rows = b'[["tool","s","/t","t",0.5,1.0,500,1,2],["model","m","/v1","",0.6,0.25,200,1,2,9,7,0,"",0.1,"slot",0]]'
    path.write_bytes(head + rows + b"}\n")
    times = {each.kind: each for each in summarise(read_steps(path)).steps}
    assert times["tool"].own_s == pytest.approx(0.75)
    assert (times["tool"].failed, times["model"].tokens_out) == (1, 7)
    assert times["model"].waited == pytest.approx({"slot": 0.1})


def test_eight_numbers_for_every_step_as_earlier_versions_wrote_them_mean_the_same() -> None:
    steps = [
        Step("tool", "s", "/t", "t", 0.1, 0.2, 200, 5, 6),
        Step("model", "m", "/v1", "", 0.4, 0.5, 200, 7, 8, 9, 10),
    ]
    record = RolloutSteps(task=0, rollout=0, attempt=1, duration=1.0, outcome="completed", steps=steps)
    line = json.loads(to_line(record))
    assert [len(row) for row in line["numbers"]] == [5, 8]
    line["numbers"][0] += [0, 0, 0]
    earlier = json.dumps(line).encode()
    assert from_line(earlier) == from_line(to_line(record)) == record
    assert summary_of(earlier) == summary_of(to_line(record))
    assert summary_of(to_line(record)).steps[0].tokens_out == 10


def summary_of(line: bytes) -> TimeSummary:
    totals = TimeTotals()
    totals.add_all(timings_of_all([line]))
    return totals.summary()
