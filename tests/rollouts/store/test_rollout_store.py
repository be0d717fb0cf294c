import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.errors import ConfigError
from nemo_gym.io.files import RunFiles
from nemo_gym.rollouts.classify import failed, outcome_of_record
from nemo_gym.rollouts.store.history import AttemptPolicy
from nemo_gym.rollouts.store.outcome import Failure, Outcome, PlannedRollout
from nemo_gym.rollouts.store.output import Manifest, Request
from nemo_gym.rollouts.store.plan_file import PlanConflictError, PlanOnDisk
from nemo_gym.rollouts.store.rollout_store import PlanChangedError, ResumeMode, open_plan, open_store

Rows = list[dict[str, Any]]
THREE_ATTEMPTS = AttemptPolicy(3)


def rows(tasks: int, repeats: int = 1, text: str = "q") -> Rows:
    return [
        {
            "_ng_task_index": task,
            "responses_create_params": {"input": f"{text}{task}"},
            "agent_ref": {"name": "alpha"},
            "_ng_rollout_index": rollout,
        }
        for task in range(tasks)
        for rollout in range(repeats)
    ]


def done(planned: PlannedRollout) -> Outcome:
    return outcome_of_record(planned, {"reward": 1.0}, 0.1)


def timed_out(planned: PlannedRollout) -> Outcome:
    return failed(planned, Failure(kind="timeout", message="late"), 0.1)


def run(
    output: Path,
    plan: Rows,
    *,
    resume: bool = True,
    mode: ResumeMode = ResumeMode.STRICT,
    settings: dict[str, Any] | None = None,
    policy: AttemptPolicy = THREE_ATTEMPTS,
    outcome: Callable[[PlannedRollout], Outcome | None] = done,
) -> list[tuple[int, int]]:
    """One run; returns what it found to be owed."""
    with open_store(output) as store:
        request = Request(settings or {"rows": len(plan)})
        opened = open_plan(store, lambda: plan, request, resume=resume, mode=mode, policy=policy)
        owed = list(opened)
        store.append([o for planned in owed if (o := outcome(planned))])
    return [tuple(planned.key) for planned in owed]


def keys(path: Path) -> list[tuple[int, int]]:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [(record["_ng_task_index"], record["_ng_rollout_index"]) for record in records]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "new" / "out.jsonl"


def test_a_fresh_run_leaves_plan_rollouts_failures_and_manifest(output: Path) -> None:
    run(output, rows(2), outcome=lambda p: done(p) if p.key.task else timed_out(p))
    files = RunFiles.of(output)
    assert keys(files.plan) == [(0, 0), (1, 0)]
    assert keys(output) == [(1, 0)]
    assert keys(files.failures) == [(0, 0)]
    manifest = Manifest.read(files.manifest)
    assert manifest is not None
    assert manifest.plan.rows == 2
    assert manifest.plan.bytes == files.plan.stat().st_size
    assert not files.lock.exists()


def test_a_resumed_run_owes_what_is_neither_done_nor_given_up(output: Path) -> None:
    assert len(run(output, rows(3), outcome=lambda p: done(p) if p.key.task == 1 else timed_out(p))) == 3
    assert run(output, rows(3), outcome=timed_out) == [(0, 0), (2, 0)]
    assert run(output, rows(3), outcome=timed_out) == [(0, 0), (2, 0)]
    assert run(output, rows(3)) == [], "three attempts are enough"
    assert run(output, rows(3), policy=AttemptPolicy(3, frozenset({"timeout"}))) == [(0, 0), (2, 0)]
    assert sorted(keys(output)) == [(0, 0), (1, 0), (2, 0)]


def test_attempts_are_counted_over_all_runs(output: Path) -> None:
    attempts: list[tuple[int, int]] = []

    def note(planned: PlannedRollout) -> Outcome:
        attempts.append((planned.attempt, planned.last_attempt))
        return timed_out(planned)

    for _ in range(4):
        run(output, rows(1), outcome=note)
    assert attempts == [(1, 3), (2, 3), (3, 3)]


def test_an_owed_rollout_has_its_whole_row_and_its_record_names_agent_and_skills(output: Path) -> None:
    refs = {"agent_ref": {"name": "alpha", "type": "agent"}, "skills_ref": {"hash": "abc"}}
    plan = [{**row, **refs, "answer": [1, {"unit": "é"}]} for row in rows(2)]
    owed: Rows = []

    def note(planned: PlannedRollout) -> Outcome:
        owed.append(planned.row)
        return done(planned)

    run(output, plan, outcome=note)
    assert owed == plan
    saved = [json.loads(line) for line in output.read_text().splitlines()]
    assert [{name: record[name] for name in refs} for record in saved] == [refs, refs]


def test_a_fresh_run_moves_aside_what_there_was(output: Path) -> None:
    run(output, rows(2), outcome=lambda p: done(p) if p.key.task else timed_out(p))
    files = RunFiles.of(output)
    before = output.read_bytes(), files.failures.read_bytes()
    files.metrics.write_text("[]")
    run(output, rows(1), resume=False, outcome=lambda _: None)
    assert (output.read_bytes(), files.failures.read_bytes()) == (b"", b"")
    kept = output.with_name("out.jsonl.backup-1")
    assert ((kept / "out.jsonl").read_bytes(), (kept / "out_failures.jsonl").read_bytes()) == before
    assert not files.metrics.exists(), "metrics of another run would mislead"


def test_a_plan_that_is_no_good_touches_nothing(output: Path) -> None:
    run(output, rows(1))
    before = {path.name: path.read_bytes() for path in output.parent.iterdir()}

    def broken() -> Any:
        yield from rows(5)
        raise ConfigError("row 5 is no good")

    with open_store(output) as store, pytest.raises(ConfigError):
        open_plan(store, broken, Request({}), policy=AttemptPolicy())
    assert {path.name: path.read_bytes() for path in output.parent.iterdir()} == before


def test_a_plan_that_is_not_approved_touches_nothing(output: Path) -> None:
    run(output, rows(1))
    before = {path.name: path.read_bytes() for path in output.parent.iterdir()}

    def refuse(plan: PlanOnDisk) -> None:
        assert plan.agents == {"alpha": 2}
        raise ConfigError("unknown agent")

    with open_store(output) as store, pytest.raises(ConfigError):
        open_plan(store, lambda: rows(2), Request({}), policy=AttemptPolicy(), approve=refuse)
    assert {path.name: path.read_bytes() for path in output.parent.iterdir()} == before


# ---- another plan ----------------------------------------------------------------------------------------------------
def test_resuming_with_another_plan_is_refused_with_the_difference(output: Path) -> None:
    run(output, rows(2), settings={"num_repeats": 1, "limit": None})
    with pytest.raises(PlanChangedError) as caught:
        run(output, rows(2), settings={"num_repeats": 2, "limit": None})
    assert "num_repeats: 1 → 2" in str(caught.value)
    assert "limit" not in str(caught.value)
    assert "+resume_mode=extend" in (caught.value.hint or "")


def test_force_goes_on_with_the_old_plan(output: Path) -> None:
    run(output, rows(2), outcome=lambda p: done(p) if p.key.task else None)
    assert run(output, rows(9), mode=ResumeMode.FORCE) == [(0, 0)]


def test_without_a_manifest_the_plan_on_disk_is_the_plan(output: Path) -> None:
    run(output, rows(2), outcome=lambda _: None)
    RunFiles.of(output).manifest.unlink()
    assert run(output, rows(9)) == [(0, 0), (1, 0)]


@pytest.mark.parametrize(("tasks", "repeats"), [(3, 1), (2, 2), (4, 3)])
def test_a_larger_plan_runs_what_is_new(output: Path, tasks: int, repeats: int) -> None:
    run(output, rows(2))
    new = run(output, rows(tasks, repeats), mode=ResumeMode.EXTEND)
    assert new == [(t, r) for t in range(tasks) for r in range(repeats) if not (t < 2 and r == 0)]
    assert keys(RunFiles.of(output).plan) == [(t, r) for t in range(tasks) for r in range(repeats)]
    assert run(output, rows(tasks, repeats)) == [], "the extended plan is now the plan"


def test_a_smaller_plan_keeps_what_is_there_and_owes_no_more(output: Path) -> None:
    run(output, rows(4), outcome=lambda p: done(p) if p.key.task in (0, 3) else None)
    assert run(output, rows(2), mode=ResumeMode.EXTEND) == [(1, 0)]
    assert keys(RunFiles.of(output).plan) == [(0, 0), (1, 0), (3, 0)]
    assert sorted(keys(output)) == [(0, 0), (1, 0), (3, 0)]


def test_a_plan_with_other_rows_for_what_is_collected_is_no_extension(output: Path) -> None:
    run(output, rows(2))
    plan = RunFiles.of(output).plan.read_bytes()
    with pytest.raises(PlanConflictError, match="task 0 rollout 0, task 1 rollout 0"):
        run(output, rows(3, text="other"), mode=ResumeMode.EXTEND)
    assert RunFiles.of(output).plan.read_bytes() == plan


def test_a_plan_that_was_tampered_with_is_not_trusted(output: Path) -> None:
    run(output, rows(3), outcome=lambda _: None)
    plan = RunFiles.of(output).plan
    plan.write_bytes(plan.read_bytes().partition(b"\n")[0] + b"\n")
    with pytest.raises(PlanChangedError, match="not as it was written"):
        run(output, rows(3))
    plan.write_bytes(b"garbage\n")
    with pytest.raises(ConfigError, match="line 1"):
        run(output, rows(3), mode=ResumeMode.FORCE)
    assert run(output, rows(3), mode=ResumeMode.EXTEND) == [(0, 0), (1, 0), (2, 0)]


# ---- damage ----------------------------------------------------------------------------------------------------------
def test_a_rollout_that_nobody_planned_is_set_aside(output: Path) -> None:
    run(output, rows(2), outcome=lambda p: done(p) if p.key.task else None)
    with output.open("ab") as file:
        file.write(b'{"_ng_task_index": 7, "_ng_rollout_index": 0}\n')
    assert run(output, rows(2)) == [(0, 0)]
    assert sorted(keys(output)) == [(0, 0), (1, 0)]
    assert b'"_ng_task_index": 7' in output.with_name("out.jsonl.torn").read_bytes()


@settings(max_examples=25, deadline=None)
@given(
    cuts=st.lists(st.tuples(st.sampled_from(["rollouts", "failures"]), st.integers(0, 400)), max_size=4),
    noise=st.sampled_from([b"", b"\n", b"{bad\n", b"\0\0\0", b'{"_ng_task_index":0,']),
    fates=st.lists(st.sampled_from(["done", "fail", "none"]), min_size=6, max_size=6),
)
def test_however_the_files_are_cut_off_everything_ends_up_there_once(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[tuple[str, int]], noise: bytes, fates: list[str]
) -> None:
    output = tmp_path_factory.mktemp("cut") / "out.jsonl"
    files, plan = RunFiles.of(output), rows(3, 2)
    fate = {"done": done, "fail": timed_out, "none": lambda _: None}

    def mixed(planned: PlannedRollout) -> Outcome | None:
        return fate[fates[planned.key.task * 2 + planned.key.rollout]](planned)

    run(output, plan, outcome=mixed, policy=AttemptPolicy(99))
    for name, cut in cuts:
        path: Path = getattr(files, name)
        os.truncate(path, min(cut, path.stat().st_size))
        with path.open("ab") as file:
            file.write(noise)
        run(output, plan, outcome=mixed, policy=AttemptPolicy(99))
    run(output, plan, policy=AttemptPolicy(99))
    assert sorted(keys(output)) == [(t, r) for t in range(3) for r in range(2)]
    assert output.read_bytes().endswith(b"\n")
    keys(files.failures)  # readable to the last line


def test_a_line_glued_to_a_torn_one_by_another_program_is_owed_again(output: Path) -> None:
    run(output, rows(2))
    first, second = output.read_bytes().splitlines(keepends=True)
    output.write_bytes(first[:20] + second)
    assert run(output, rows(2)) == [(0, 0), (1, 0)]


def rewrite(path: Path, change: Callable[[int], Any]) -> None:
    """Write the indices of a file in another form, as other tools do."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    indices = ("_ng_task_index", "_ng_rollout_index")
    changed = [{**record, **{name: change(record[name]) for name in indices}} for record in records]
    path.write_text("".join(f"{json.dumps(record)}\n" for record in changed))


@pytest.mark.parametrize("change", [float, str])
@pytest.mark.parametrize("mode", [ResumeMode.STRICT, ResumeMode.FORCE, ResumeMode.EXTEND])
def test_rollouts_whose_indices_are_floats_or_texts_are_neither_set_aside_nor_run_again(
    output: Path, change: Callable[[int], Any], mode: ResumeMode
) -> None:
    run(output, rows(3, 2), outcome=lambda planned: done(planned) if planned.key.task < 2 else timed_out(planned))
    rewrite(output, change)
    rewrite(RunFiles.of(output).failures, change)
    if mode is not ResumeMode.STRICT:  # which refuses a plan that is not as it was written
        rewrite(RunFiles.of(output).plan, change)
    before = output.read_bytes()
    assert run(output, rows(3, 2), mode=mode, outcome=lambda _: None) == [(2, 0), (2, 1)]
    assert output.read_bytes() == before
    assert not list(output.parent.glob("*.torn"))
    with open_store(output) as store:
        opened = open_plan(store, list, Request({}), resume=True, mode=ResumeMode.FORCE, policy=THREE_ATTEMPTS)
        assert [planned.attempt for planned in opened] == [2, 2]


def test_a_rollout_whose_index_is_a_boolean_is_set_aside_with_its_line(
    output: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(output, rows(3))
    lines = output.read_text().replace('"_ng_task_index":1', '"_ng_task_index":true')
    output.write_text(lines)
    assert run(output, rows(3)) == [(1, 0)]
    assert "set aside 1 line without a usable key (from line 2 on)" in caplog.text
    assert sorted(keys(output)) == [(0, 0), (1, 0), (2, 0)]
