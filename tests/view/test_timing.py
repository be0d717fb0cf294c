"""Where the time went: the waterfall of a rollout and the times of a run, whatever the steps file holds."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.io.files import RunFiles
from nemo_gym.steps.rollout_steps import Step
from nemo_gym.steps.screen import profile_of
from nemo_gym.steps.steps_file import read_steps
from nemo_gym.steps.timing_text import run_lines, waterfall_lines
from nemo_gym.steps.totals import TimeTotals, summarise
from nemo_gym.view.export_html import embedded_data
from nemo_gym.view.library import Library, Snapshot
from nemo_gym.view.listing import code_of, to_bytes
from nemo_gym.view.rollout import rollout
from nemo_gym.view.selection import Query, select
from nemo_gym.view.timing import run_timing
from nemo_gym.view.waterfall import nested

Make = Callable[..., dict[str, Any]]
HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m\u202e"


def times(snapshot: Snapshot, filter_text: str = "", run: int = 0) -> dict[str, Any]:
    found = run_timing(select(snapshot, Query(filter=filter_text)), run, whole=not filter_text)
    json.loads(to_bytes(found))
    return found


def waterfall(snapshot: Snapshot, name: str) -> dict[str, Any]:
    code = code_of(snapshot, name)
    assert code is not None
    found: dict[str, Any] = rollout(select(snapshot, Query()), code)["timing"]
    return found


@pytest.fixture
def recorded(write, record, failure, steps, library) -> Library:
    """Thirty rollouts, the last twice as slow and one that failed twice before."""
    path = write("run.jsonl", [record(task, 0, question=f"Q{task}") for task in range(30)])
    write("run_failures.jsonl", [failure(3, 0, "timeout"), failure(3, 0, "rate_limited")])
    found = [steps(task, 0, at=task, scale=2.0 if task == 29 else 1.0) for task in range(30)]
    lost = [
        steps(3, 0, at=0.5, outcome=kind, steps=[], duration=0.25 + i)
        for i, kind in enumerate(("timeout", "rate_limited"))
    ]
    write("run_steps.jsonl", [*found[:3], *lost, *found[3:]])
    return library(path)


def test_the_waterfall_nests_calls_and_tells_waits_retries_and_speed(recorded: Library) -> None:
    found = waterfall(recorded.snapshot(), "0.0")
    assert [(step["label"], step["depth"]) for step in found["steps"]] == [
        ("seed", 0),
        ("model policy", 0),
        ("lookup", 0),
        ("verify", 0),
        ("judge judge", 1),
    ]
    model = found["steps"][1]
    assert model["waited"] == 0.4
    assert model["retries"] == [{"at": 0.3, "failed": "429"}]
    assert model["tokens_per_s"] == pytest.approx(30 / 0.6)
    assert found["duration"] == 2.1
    assert found["waited_s"] == pytest.approx(0.4)


def test_a_failed_attempt_has_its_own_steps(recorded: Library) -> None:
    snapshot = recorded.snapshot()
    assert [waterfall(snapshot, name)["outcome"] for name in ("0.f0", "0.f1", "0.3")] == [
        "timeout",
        "rate_limited",
        "completed",
    ]


def test_the_numbers_of_a_run_are_those_of_its_profile(recorded: Library) -> None:
    run = recorded.snapshot().runs[0]
    found, profile = times(recorded.snapshot()), profile_of(RunFiles.of(run.path))
    summary = profile.summary
    assert {each["name"]: each["share"] for each in found["shares"]} == pytest.approx(summary.shares())
    assert found["attempts"] == summary.attempts == 32
    assert found["failures"] == summary.failures
    assert found["at_once"] == pytest.approx(summary.at_once)
    assert found["spread"]["p95"] == pytest.approx(summary.spread.p95)
    assert found["finding"] == list(profile.finding.lines())
    assert [each["p99"] for each in found["steps"]] == pytest.approx([each.spread.p99 for each in summary.steps])
    assert {each["server"]: each["count"] for each in found["servers"]} == {"lab": 90, "policy": 30, "judge": 30}


def test_slow_rollouts_and_stragglers_are_linked(recorded: Library) -> None:
    found = times(recorded.snapshot())
    assert found["slowest"][0] == {
        "id": "0.29",
        "task": 29,
        "rollout": 0,
        "outcome": "completed",
        "duration": 4.2,
        "mostly": {"name": "model", "share": pytest.approx(0.6 / 2.1)},
    }
    assert found["tail"]["rollouts"][0]["id"] == "0.29"
    assert found["tail"]["seconds"] == pytest.approx(4.2 + 29 - (28 + 2.1), abs=1e-3)


def test_what_runs_over_time_adds_up(recorded: Library) -> None:
    found = times(recorded.snapshot())
    over_time = found["over_time"]
    width = over_time["edges"][1]
    assert sum(over_time["finished_per_s"]) * width == pytest.approx(32)
    assert sum(over_time["at_once"]) * width == pytest.approx(found["seconds"])


def test_a_filter_selects_whose_time_is_added_up(recorded: Library) -> None:
    snapshot = recorded.snapshot()
    assert times(snapshot, "task < 10 and failure is null")["attempts"] == 10
    assert times(snapshot, 'failure == "timeout"')["seconds"] == pytest.approx(0.25)
    assert times(snapshot, "task > 100")["attempts"] == 0


def test_totals_that_grow_are_those_of_the_whole(recorded: Library) -> None:
    path = recorded.snapshot().runs[0].files.steps
    totals = TimeTotals()
    for each in read_steps(path):
        totals.add(each)
        totals.summary()
    grown, whole = totals.summary(), summarise(read_steps(path))
    assert grown.shares() == pytest.approx(whole.shares())
    assert [(each.name, each.count, each.spread) for each in grown.steps] == [
        (each.name, each.count, each.spread) for each in whole.steps
    ]


# ---- files that are not as they should be ----------------------------------------------------------------------------
def test_a_growing_file_is_followed_and_a_torn_line_waits(write, record, steps, library) -> None:
    path = write("run.jsonl", [record(0, 0), record(1, 0)])
    line = json.dumps(steps(1, 0)).encode()
    found = write("run_steps.jsonl", [steps(0, 0)])
    with found.open("ab") as file:
        file.write(line[:100])
    library = library(path)
    assert times(library.snapshot())["attempts"] == 1
    assert waterfall(library.snapshot(), "0.1")["missing"] == "run_steps.jsonl has no steps of this rollout"
    os.utime(path, (1_700_000_000, 1_700_000_000))  # nobody writes it any more
    assert times(library.snapshot())["read"] == 1
    assert times(library.snapshot())["notes"] == [
        "the last line of run_steps.jsonl is incomplete",
        "1 of 2 rollouts have no steps in run_steps.jsonl",
    ]
    with found.open("ab") as file:
        file.write(line[100:] + b"\nnot steps\n")
    library.index_all()
    assert times(library.snapshot())["attempts"] == 2
    assert times(library.snapshot())["notes"] == ["run_steps.jsonl: 1 line is not steps and was skipped"]
    assert waterfall(library.snapshot(), "0.1")["duration"] == 2.1


def test_a_file_that_is_replaced_or_removed_is_forgotten(recorded: Library, steps: Make) -> None:
    path = recorded.snapshot().runs[0].files.steps
    path.write_text(json.dumps(steps(5, 0)) + "\n")
    recorded.index_all()
    assert times(recorded.snapshot())["attempts"] == 1
    assert "missing" in waterfall(recorded.snapshot(), "0.4")
    path.unlink()
    recorded.index_all()
    assert times(recorded.snapshot())["attempts"] == 0
    assert "there is no run_steps.jsonl" in times(recorded.snapshot())["notes"][0]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no run_steps.jsonl"),
        ("", "holds no steps"),
        (
            '[1]\n{"_ng_task_index": 99999999999999999999, "_ng_rollout_index": 0, "steps": []}\n',
            "2 lines are not steps",
        ),
        ('{"_ng_task_index": 7, "_ng_rollout_index": 7, "_ng_attempt": 1, "steps": []}\n', "belongs to another run"),
        (
            '{"_ng_task_index": 0, "_ng_rollout_index": 0, "_ng_attempt": 1, "agent": "other", "steps": []}\n',
            "belongs to another run",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_said(write, record, library, content: str | None, said: str) -> None:
    path = write("run.jsonl", [record(0, 0)])
    if content is not None:
        path.with_name("run_steps.jsonl").write_text(content)
    snapshot = library(path).snapshot()
    assert said in times(snapshot)["notes"][0]
    assert times(snapshot)["attempts"] == 0
    assert "missing" in waterfall(snapshot, "0.0")
    assert said in "\n".join(run_lines(times(snapshot), 80))


def test_steps_of_rollouts_that_are_not_here_are_counted(write, record, steps, library) -> None:
    path = write("run.jsonl", [record(0, 0)])
    old = 1_700_000_000
    write("run_steps.jsonl", [steps(task, 0) for task in range(5)])
    os.utime(path, (old, old))
    (note,) = times(library(path).snapshot())["notes"]
    assert note.startswith("4 of 5 attempts")
    assert "another run" in note


def test_rollouts_without_steps_are_counted(write, record, steps, library) -> None:
    path = write("run.jsonl", [record(task, 0) for task in range(4)])
    write("run_steps.jsonl", [steps(0, 0)])
    os.utime(path, (1_700_000_000, 1_700_000_000))
    assert times(library(path).snapshot())["notes"] == ["3 of 4 rollouts have no steps in run_steps.jsonl"]


def hostile_steps(steps: Make) -> list[dict[str, Any]]:
    wild = steps(0, 0, duration=0, started_at=1e12, agent=HOSTILE)
    wild["steps"] = [
        {
            "kind": HOSTILE,
            "server": HOSTILE,
            "tool": HOSTILE,
            "start": 0,
            "duration": 1e9,
            "waited": 1e9,
            "parent": 9,
        },
        {
            "kind": "model",
            "start": 1e9,
            "duration": 1e9,
            "tokens_out": 2**53,
            "retries": [{"at": 1e9, "failed": HOSTILE}],
        },
        {},
        {"kind": "tool", "duration": 0, "parent": 2},
    ]
    many = steps(1, 0)
    many["steps"] = [{"kind": "call", "server": "deep", "start": n, "duration": 1} for n in range(10_000)]
    for index, step in enumerate(many["steps"][1:]):
        step["parent"] = index
    return [wild, many]


def test_strange_values_break_nothing(write, record, steps, library) -> None:
    path = write("run.jsonl", [record(0, 0, agent=HOSTILE), record(1, 0)])
    write("run_steps.jsonl", hostile_steps(steps))
    snapshot = library(path).snapshot()
    found = times(snapshot)
    assert found["attempts"] == 2
    for name, count in (("0.0", 4), ("0.1", 10_000)):
        shown = waterfall(snapshot, name)
        assert len(shown["steps"]) == count
        assert all(0 <= step["waited"] <= step["duration"] for step in shown["steps"] if "waited" in step)
        text = "\n".join([*run_lines(found, 80), *waterfall_lines(shown, 80)])
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert waterfall(snapshot, "0.1")["steps"][-1]["depth"] == 9_999


def test_two_files_have_times_of_their_own(write, record, steps, library) -> None:
    paths = [write(f"{name}.jsonl", [record(0, 0)]) for name in "ab"]
    write("a_steps.jsonl", [steps(0, 0, scale=3)])
    write("b_steps.jsonl", [steps(0, 0)])
    snapshot = library(*paths).snapshot()
    assert [times(snapshot, run=number)["seconds"] for number in (0, 1)] == pytest.approx([6.3, 2.1])


# ---- everywhere the same ---------------------------------------------------------------------------------------------
def test_an_exported_page_holds_the_same_times(recorded: Library) -> None:
    snapshot = recorded.snapshot()
    selection = select(snapshot, Query())
    data = json.loads(embedded_data(selection, title="", limit=10**9, whole=True, threshold=1.0))
    assert data["timings"] == [json.loads(to_bytes(times(snapshot)))]
    rows = {row["id"]: row["timing"] for row in data["rollouts"]}
    for name in ("0.0", "0.29", "0.f1"):
        assert rows[name] == json.loads(to_bytes(waterfall(snapshot, name)))


def test_text_shows_the_same_times(recorded: Library) -> None:
    text = "\n".join(run_lines(times(recorded.snapshot()), 100))
    for words in ("32 attempts, 30 completed", "tool lookup", "0.29 task 29, rollout 0", "judge"):
        assert words in text
    lines = list(waterfall_lines(waterfall(recorded.snapshot(), "0.0"), 100))
    model = next(line for line in lines if line.startswith("model policy"))
    assert "50 tokens/s" in model
    assert all(sign in model for sign in "█░!")
    assert any(line.startswith("  judge judge") for line in lines)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_narrow_terminal_shows_the_run_to_its_end(recorded: Library, width: int) -> None:
    found = times(recorded.snapshot())
    found["over_time"] = {"edges": range(81), "at_once": [1.0] * 72 + [9.0] * 8, "finished_per_s": [0.125] * 80}
    lines = [line for line in run_lines(found, width) if line.endswith(" at most") and "over time" in line]
    assert [len(line) <= width for line in lines] == [True]
    assert lines[0].split("  ")[-2][-1] in "▄▅▆▇█"


def test_the_files_of_a_run_need_no_steps(write, record, library, tmp_path: Path) -> None:
    snapshot = library(write("run.jsonl", [record(0, 0)])).snapshot()
    assert snapshot.runs[0].state()["attempts"] == 0
    assert not (tmp_path / "run_steps.jsonl").exists()


def test_siblings_are_shown_in_the_order_in_which_they_began() -> None:
    """The steps of calls over MCP to another process arrive with a later call."""
    steps = [
        Step("seed", start=0.0),
        Step("verify", start=3.0),
        Step("tool", start=1.0),
        Step("call", start=1.1, parent=2),
    ]
    assert [(placed.step.kind, placed.depth) for placed in nested(steps)] == [
        ("seed", 0),
        ("tool", 0),
        ("call", 1),
        ("verify", 0),
    ]
