"""The steps file of a run: one line for each attempt whose outcome is on disk, whatever happened in between."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.io.files import RunFiles
from nemo_gym.rollouts.attempt import recorded
from nemo_gym.rollouts.classify import failed, outcome_of_record
from nemo_gym.rollouts.concurrency import FixedLimit
from nemo_gym.rollouts.run import CollectionRun, RunControl, run_collection
from nemo_gym.rollouts.store.outcome import Failure, Outcome, PlannedRollout, Vanished
from nemo_gym.rollouts.store.output import Request
from nemo_gym.steps.facts import read_facts
from nemo_gym.steps.rollout_steps import from_line
from nemo_gym.steps.steps_file import read_steps

TASKS = 4


def rows() -> list[dict[str, Any]]:
    agent = {"agent_ref": {"name": "a"}}
    return [{"_ng_task_index": task, "_ng_rollout_index": 0, **agent} for task in range(TASKS)]


async def collect(output: Path, *, fail: frozenset[int] = frozenset(), steps: bool = True) -> None:
    async def attempt(planned: PlannedRollout) -> Outcome:
        if planned.key.task in fail:
            return failed(planned, Failure(kind="agent_error", message="no"), 0.1)
        if planned.key.task == 99:
            return Vanished(planned, b"{}", 0.1, "gone")
        return outcome_of_record(planned, {"reward": 1.0}, 0.1)

    run = CollectionRun(output=output, rows=rows, request=Request({"n": TASKS}), resume=True)
    await run_collection(run, attempt, RunControl(limit=FixedLimit(2), steps=steps))


def forget_last_line(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def attempts(output: Path) -> list[tuple[int, int, str]]:
    return sorted((steps.task, steps.attempt, steps.outcome) for steps in read_steps(RunFiles.of(output).steps))


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


async def test_every_attempt_has_one_line_over_all_sessions(output: Path) -> None:
    await collect(output, fail=frozenset({1, 2}))
    first = [(0, 1, "completed"), (1, 1, "agent_error"), (2, 1, "agent_error"), (3, 1, "completed")]
    assert attempts(output) == first
    await collect(output, fail=frozenset({2}))
    assert attempts(output) == sorted([*first, (1, 2, "completed"), (2, 2, "agent_error")])
    assert [facts.attempts for facts in read_facts(RunFiles.of(output).timing)] == [4, 2]


async def test_a_torn_tail_is_set_aside_and_nothing_else(output: Path) -> None:
    await collect(output, fail=frozenset({2}))
    path = RunFiles.of(output).steps
    before = path.read_bytes()
    path.write_bytes(before + before[:70])
    await collect(output)
    assert path.read_bytes().startswith(before)
    assert len(attempts(output)) == TASKS + 1
    assert path.with_name(f"{path.name}.torn").read_bytes() == before[:70] + b"\n"


async def test_steps_whose_outcome_a_crash_prevented_are_set_aside(output: Path) -> None:
    await collect(output, fail=frozenset({1}))
    files = RunFiles.of(output)
    forget_last_line(files.rollouts)
    forget_last_line(files.failures)
    await collect(output)
    assert attempts(output) == [(task, 1, "completed") for task in range(TASKS)]


async def test_a_file_that_is_not_ours_does_not_stop_a_run(output: Path) -> None:
    await collect(output, fail=frozenset({1}))
    RunFiles.of(output).steps.write_bytes(b"what is this\n\xff\xfe\n[]\n")
    await collect(output)
    assert attempts(output) == [(1, 2, "completed")]


async def test_turned_off_there_is_no_file(output: Path) -> None:
    await collect(output, steps=False)
    files = RunFiles.of(output)
    assert not files.steps.exists()
    assert not files.timing.exists()


async def test_a_rollout_that_must_leave_no_trace_leaves_no_steps() -> None:
    async def vanish(planned: PlannedRollout) -> Outcome:
        return Vanished(planned, b"{}", 0.1, "gone")

    outcome = await recorded(vanish)(PlannedRollout.of(rows()[0], last_attempt=3))
    assert not outcome.steps


async def test_a_verdict_after_the_recording_is_in_the_steps() -> None:
    planned = PlannedRollout.of(rows()[0], last_attempt=3)

    async def completed(planned: PlannedRollout) -> Outcome:
        return outcome_of_record(planned, {"reward": 1.0}, 0.1)

    done = await recorded(completed)(planned)

    async def judged(planned: PlannedRollout) -> Outcome:
        return replace(failed(planned, Failure(kind="stale", message="old"), 0.1), steps=done.steps)

    outcome = await recorded(judged)(planned)
    record = from_line(outcome.steps)
    assert record is not None
    assert record.outcome == "stale"
