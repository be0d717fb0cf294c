"""Runs that earlier versions wrote, one of each kind, as they wrote them: all of them are read, resumed and converted.

``without_steps`` and ``first_steps`` are the oldest; ``steps_as_lists`` had a short-lived form of the steps file; the
other two store prompts as what they add, one of them compressed.
"""

import json
import shutil
from pathlib import Path

import pytest

import nemo_gym
from nemo_gym.exporting.pipeline import export_rollouts
from nemo_gym.exporting.recipe import Recipe
from nemo_gym.io.compressed import open_lines
from nemo_gym.io.files import RunFiles
from nemo_gym.rollouts.store.history import AttemptPolicy
from nemo_gym.rollouts.store.output import Request
from nemo_gym.rollouts.store.rollout_store import ResumeMode, open_plan, open_store
from nemo_gym.schemas.call_tokens import read_calls
from nemo_gym.schemas.record import Record
from nemo_gym.steps.screen import profile_of
from nemo_gym.view.transcript import render_transcript

RUNS = Path(__file__).parent / "earlier_runs"
NAMES = sorted(path.name for path in RUNS.iterdir())
COMPRESSED = "compressed"


@pytest.fixture(params=NAMES)
def output(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The rollouts of a run in a folder of its own."""
    if request.param == COMPRESSED:
        pytest.importorskip("zstandard", reason="needs the extra zstd")
    folder = shutil.copytree(RUNS / request.param, tmp_path / request.param)
    return next(path for path in folder.iterdir() if path.name.startswith("rollouts.jsonl"))


def lines(path: Path) -> list[bytes]:
    with open_lines(path) as file:
        return list(file)


def test_its_rollouts_are_read_with_the_tokens_of_every_call(output: Path) -> None:
    rollouts = list(nemo_gym.load(output))
    assert [rollout.reward for rollout in rollouts] == [1.0, 1.0]
    for rollout, line in zip(rollouts, lines(output), strict=True):
        [sequence] = rollout.sequences
        calls = list(read_calls(Record.parse(line).items))
        assert len(calls) == 3
        assert all(call.continues for call in calls)
        assert sum(sequence.mask) == sum(len(call.generation) for call in calls)
        assert "get_weather(" in render_transcript(json.loads(line))


def test_it_is_complete_for_a_run_that_resumes_it(output: Path) -> None:
    asked = json.loads(RunFiles.of(output).manifest.read_text())
    with open_store(output) as store:
        plan = open_plan(
            store,
            list,
            Request(asked["settings"]),
            resume=True,
            mode=ResumeMode.FORCE,
            policy=AttemptPolicy(),
        )
        assert (plan.planned, plan.done, list(plan)) == (2, 2, [])


def test_its_steps_are_read_unless_it_has_none_in_a_known_form(output: Path) -> None:
    attempts = profile_of(RunFiles.of(output)).summary.attempts
    assert attempts == (0 if output.parent.name in ("without_steps", "steps_as_lists") else 2)


def test_its_prompts_are_converted_back_and_forth_without_a_trace(output: Path, tmp_path: Path) -> None:
    forms = {}
    for source, prompts in ((output, "full"), (output, "added")):
        made = tmp_path / f"{prompts}.jsonl"
        export_rollouts(Recipe(input=str(source), output=str(made), format="rollouts", prompts=prompts))
        forms[prompts] = lines(made)
    assert lines(output) in forms.values()
    again = tmp_path / "again.jsonl"
    export_rollouts(Recipe(input=str(tmp_path / "added.jsonl"), output=str(again), format="rollouts", prompts="full"))
    assert lines(again) == forms["full"]


def test_rows_of_all_versions_in_one_file_become_training_data(tmp_path: Path) -> None:
    mixed = tmp_path / "mixed.jsonl"
    plain = [name for name in NAMES if name != COMPRESSED]
    mixed.write_bytes(b"".join(line for name in plain for line in lines(RUNS / name / "rollouts.jsonl")))
    made = tmp_path / "rl.jsonl"
    export_rollouts(Recipe(input=str(mixed), output=str(made), format="rl"))
    rows = [json.loads(line) for line in lines(made)]
    assert len(rows) == 2 * len(plain)
    assert {len(row["input_ids"]) for row in rows} == {493, 496}
