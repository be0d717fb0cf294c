"""``ng_profile``: what is known is said, also about runs of which little is known."""

import json
from pathlib import Path

import pytest

from nemo_gym.cli.main import main
from nemo_gym.io.files import RunFiles
from nemo_gym.steps.facts import RunFacts, add_facts
from nemo_gym.steps.rollout_steps import RolloutSteps, Step, to_line
from nemo_gym.steps.steps_file import read_steps
from nemo_gym.steps.totals import summarise


def record(task: int, started_at: float, **changes: object) -> RolloutSteps:
    steps = [
        Step("call", "agent", "/v1/responses", start=0.0, duration=0.9, status=200),
        Step("model", "policy", "/v1/responses", start=0.1, duration=0.5, waited=0.2, parent=0, status=200),
        Step("tool", "env", "/look", "look", start=0.7, duration=0.1, parent=0, status=500),
    ]
    fields = {"duration": 1.0, "outcome": "completed", "agent": "a", **changes}
    return RolloutSteps(task=task, rollout=0, attempt=1, started_at=started_at, steps=steps, **fields)  # type: ignore[arg-type]


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    """Eight rollouts, four at once, each of a second."""
    files = RunFiles.of(tmp_path / "rollouts.jsonl")
    files.rollouts.write_text("{}\n" * 8)
    files.plan.write_text("{}\n" * 8)
    records = [record(number, 1000.0 + number // 4) for number in range(8)]
    files.steps.write_bytes(b"".join(to_line(each) + b"\n" for each in records))
    return files


def test_time_is_counted_once(files: RunFiles) -> None:
    summary = summarise(read_steps(files.steps))
    own = {times.kind: round(times.own_s, 6) for times in summary.steps}
    assert own == {"call": 2.4, "model": 2.4, "tool": 0.8}  # 0.9 - 0.5 - 0.1, 0.5 - 0.2, 0.1; eight times
    assert round(summary.other_s, 6) == 0.8
    assert round(summary.waited_s, 6) == 1.6
    assert round(own["call"] + own["model"] + own["tool"] + summary.other_s + summary.waited_s, 6) == summary.seconds
    assert sum(summary.shares().values()) == pytest.approx(1.0)


def test_how_many_ran_at_once(files: RunFiles) -> None:
    summary = summarise(read_steps(files.steps))
    assert (summary.peak, summary.wall_s, summary.concurrency) == (4, 2.0, 4.0)
    assert summary.at_once == pytest.approx(4.0)


def test_percentiles_and_failures_are_told_by_kind(files: RunFiles) -> None:
    times = {each.name: each for each in summarise(read_steps(files.steps)).steps}
    assert times["look"].failed == 8
    assert times["look"].spread.p99 == pytest.approx(0.1)
    assert times["model policy"].waited == {"call": pytest.approx(1.6)}


def test_clocks_that_lie_break_nothing() -> None:
    records = [record(0, 0.0), record(1, 1e12, duration=1e9), record(2, 5.0, duration=0.0), record(3, 4.0, outcome="")]
    summary = summarise(records)
    assert summary.attempts == 4
    assert all(share >= 0 for share in summary.shares().values())
    assert summarise([]).shares() == {}
    assert summarise([RolloutSteps(task=0, rollout=0, attempt=1, steps=[])]).attempts == 1


def test_the_screen_and_the_json_say_the_same(files: RunFiles, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ng_profile", f"+rollouts={files.rollouts}"]) == 0
    screen = capsys.readouterr().out
    assert main(["ng_profile", f"+rollouts={files.rollouts}", "+json=true"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "8 attempts, 8 completed" in screen
    assert found["summary"]["attempts"] == 8
    assert found["finding"]["figure"] in screen
    for name, share in found["shares"].items():
        assert f"{name:<26} {share:>6.1%}" in screen


def test_lines_that_are_not_steps_are_counted(files: RunFiles, capsys: pytest.CaptureFixture[str]) -> None:
    files.steps.write_bytes(files.steps.read_bytes() + b'{"reward":1}\n{"torn')
    assert main(["ng_profile", f"+rollouts={files.rollouts}"]) == 0
    assert "2 lines are not steps" in capsys.readouterr().out


def test_steps_that_do_not_fit_the_rollouts_are_remarked_on(
    files: RunFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    for rollouts, remark in ((8, None), (40, "the others have no steps"), (3, "the steps of another run")):
        files.rollouts.write_text("{}\n" * rollouts)
        assert main(["ng_profile", f"+rollouts={files.rollouts}"]) == 0
        said = capsys.readouterr().out
        assert (f"has {rollouts} rollouts" in said) == (remark is not None)
        assert (remark or "") in said


def test_nothing_is_concluded_from_the_steps_of_another_run(
    files: RunFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    def rollouts(*tasks: int) -> None:
        rows = [{"_ng_task_index": task, "_ng_rollout_index": 0, "reward": 1.0} for task in tasks]
        files.rollouts.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def profile() -> str:
        assert main(["ng_profile", f"+rollouts={files.rollouts}"]) == 0
        return capsys.readouterr().out

    rollouts(*range(8))
    assert "another run" not in profile()
    rollouts(8, *range(8), 9)  # two that were collected without steps
    assert "the others have no steps" in profile()
    for order in ((0, 1, 3, 2, 4, 5, 6, 7), range(1, 9)):
        rollouts(*order)
        said = profile()
        assert "these are the steps of another run: rollout 0 of task" in said
        assert "nothing is concluded" in said
        assert "limited by" not in said

    rollouts(*range(8))
    add_facts(files.timing, RunFacts(started_at=1000.0, wall_s=2.0, attempts=8), resumed=False)
    assert "another run" not in profile()
    add_facts(files.timing, RunFacts(started_at=90_000.0, wall_s=2.0, attempts=8), resumed=False)
    assert "these are the steps of another run: none of these attempts began while" in profile()
    add_facts(files.timing, RunFacts(started_at=90_000.0, wall_s=2.0), resumed=False)  # which had nothing to do
    assert "another run" not in profile()


def test_one_attempt_and_unknown_durations_are_called_that(files: RunFiles, capsys: pytest.CaptureFixture[str]) -> None:
    lines = files.steps.read_bytes().splitlines(keepends=True)
    files.steps.write_bytes(lines[0])
    assert main(["ng_profile", f"+rollouts={files.rollouts}"]) == 0
    said = capsys.readouterr().out
    assert "1 attempt, 1 completed" in said
    assert "1 attempt is too few to tell" in said
    files.steps.write_bytes(b"".join(lines).replace(b'"duration":1.0', b'"duration":0'))
    assert main(["ng_profile", f"+rollouts={files.rollouts}"]) == 0
    assert "it is unknown how long the attempts took" in capsys.readouterr().out


def test_a_run_without_steps_has_what_its_files_tell(files: RunFiles, capsys: pytest.CaptureFixture[str]) -> None:
    files.steps.unlink()
    assert main(["ng_profile", f"+rollouts={files.rollouts}"]) == 0
    said = capsys.readouterr().out
    assert "+steps=true" in said
    assert "8 rollouts" in said


def test_a_run_that_is_not_there_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ng_profile", f"+rollouts={tmp_path / 'none.jsonl'}"]) == 1
    assert "no such file" in capsys.readouterr().err
