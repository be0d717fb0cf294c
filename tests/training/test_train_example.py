"""The whole loop with a tiny model: all methods, killed and resumed."""

import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("peft", reason="needs the extra train")
pytest.importorskip("gguf", reason="needs the extra train")
pytest.importorskip("xllamacpp", reason="needs the extra local")

from nemo_gym.errors import ConfigError
from tests.training.gym_config import ROOT, write_tasks

SCRIPT = ROOT / "examples" / "train.py"


@pytest.fixture
def arguments(tiny_model: Path, tmp_path: Path) -> list[str]:
    train, heldout = write_tasks(tmp_path / "train.jsonl", 12), write_tasks(tmp_path / "heldout.jsonl", 4)
    files = ["--output", str(tmp_path / "out"), "--model", str(tiny_model)]
    files += ["--train", str(train), "--heldout", str(heldout)]
    server = "++policy_model.responses_api_models.local_model"
    # Without a push towards the end of a turn (token 2), a random model rarely completes an answer.
    small = [f"{server}.n_ctx=1024", f"{server}.threads=1", f"{server}.extra_body.logit_bias.2=4"]
    sizes = ["--tasks", "6", "--batch", "1", "--max-output-tokens", "12"]
    return [*files, *sizes, "--overrides", *small]


@pytest.fixture(scope="module")
def loop() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_example", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def killed_when(condition: Callable[[], bool], arguments: list[str]) -> None:
    """Run the script and kill it, without warning, once the condition holds."""
    command, alone = [sys.executable, str(SCRIPT), *arguments], {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=alone, stdout=subprocess.DEVNULL) as process:
        while not condition():
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


def has_rows(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def keys(path: Path) -> list[tuple[int, int]]:
    rows = map(json.loads, path.read_text().splitlines())
    return sorted((row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows)


def test_a_loop_that_is_killed_in_every_stage_goes_on_where_it_was(
    arguments: list[str], loop: ModuleType, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    before, rollouts, after = (out / name for name in ("before.jsonl", "train.jsonl", "after_grpo.jsonl"))
    samples, checkpoint, policy = (out / name for name in ("grpo_1.jsonl", "grpo_1.checkpoint", "grpo_1.gguf"))
    killed_when(lambda: has_rows(before), arguments)
    killed_when(lambda: has_rows(rollouts), arguments)
    killed_when(samples.exists, arguments)
    killed_when(checkpoint.exists, arguments)
    assert not policy.exists()
    collected = before.read_bytes(), rollouts.read_bytes()
    killed_when(policy.exists, arguments)
    trained = policy.read_bytes()
    killed_when(lambda: has_rows(after), arguments)
    loop.main(arguments)
    assert (before.read_bytes(), rollouts.read_bytes()) == collected
    assert policy.read_bytes() == trained
    assert not checkpoint.exists()
    assert keys(before) == keys(after) == list(itertools.product(range(4), range(4)))
    assert keys(rollouts) == list(itertools.product(range(6), range(8)))


def test_a_second_round_learns_from_rollouts_of_the_first_policy(
    arguments: list[str], loop: ModuleType, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    loop.main([*arguments, "--rounds", "2"])
    sampled = json.loads((out / "train_grpo_2.jsonl").read_text().splitlines()[0])
    assert sampled["response"]["model"] == "grpo_1"
    assert (out / "grpo_2.gguf").exists()
    found = json.loads((out / "comparison_grpo.json").read_text())
    assert found["paired_tasks"] == 4
    assert "<svg" in (out / "before_and_after_grpo.svg").read_text()


@pytest.mark.parametrize("method", ["dpo", "sft"])
def test_the_other_methods_share_what_was_collected(
    arguments: list[str], loop: ModuleType, tmp_path: Path, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    loop.main([*arguments, "--method", method])
    assert "step 1/" in capsys.readouterr().out
    policy = (tmp_path / "out" / f"{method}_1.gguf").stat()
    loop.main([*arguments, "--method", method])
    assert (tmp_path / "out" / f"{method}_1.gguf").stat().st_mtime_ns == policy.st_mtime_ns


def test_rounds_share_no_task_with_each_other_or_with_the_held_out_ones(loop: ModuleType, tmp_path: Path) -> None:
    options = loop.read_options(["--output", str(tmp_path)])
    chosen = [loop.choose_tasks(options, number).read_text().splitlines() for number in (1, 2)]
    assert [len(tasks) for tasks in chosen] == [options.tasks] * 2
    prompts = [
        json.loads(line)["prompt"] for line in itertools.chain(*chosen, options.heldout.read_text().splitlines())
    ]
    assert len(set(prompts)) == len(prompts)


LETTERS = """
import nemo_gym
letters = nemo_gym.Environment(tasks=[{"prompt": f"Write {n}.", "number": n} for n in range(8)])
letters.verify(lambda task, response: float("e" not in response.text))
"""


def test_an_environment_in_one_file_is_trained_on(
    arguments: list[str], loop: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "letters.py"
    file.write_text(LETTERS)
    start = arguments.index("--train")
    rest = [*arguments[:start], *arguments[start + 4 :]]
    loop.main(["--environment", str(file), "--heldout-repeats", "1", "--repeats", "4", *rest])
    assert "step 1/" in capsys.readouterr().out
    rows = {name: (tmp_path / "out" / f"{name}.jsonl").read_text().splitlines() for name in ("before", "train")}
    numbers = {name: {json.loads(row)["number"] for row in lines} for name, lines in rows.items()}
    assert numbers == {"before": {0, 4}, "train": {1, 2, 3, 5, 6, 7}}


def test_the_name_of_an_environment_stands_for_its_options(loop: ModuleType, tmp_path: Path) -> None:
    usual, named = (
        vars(loop.read_options(["--output", str(tmp_path), *more]))
        for more in ([], ["--environment", "format_following"])
    )
    for name in ("configs", "agent"):
        assert named[name] == usual[name]
    for name in ("train", "heldout"):
        assert named[name].resolve() == (ROOT / usual[name]).resolve()
    assert loop.read_options(["--environment", "format_following", "--agent", "mine"]).agent == "mine"


def test_a_folder_of_other_settings_is_refused(arguments: list[str], loop: ModuleType, tmp_path: Path) -> None:
    loop.keep_settings(loop.read_options(arguments))
    with pytest.raises(ConfigError, match="seed was 0"):
        loop.main([*arguments, "--seed", "1"])
    # The rollouts of the base model are those of all methods.
    with pytest.raises(ConfigError, match=r"temperature was 0\.8"):
        loop.main([*arguments, "--method", "dpo", "--temperature", "1"])
    loop.keep_settings(loop.read_options([*arguments, "--method", "dpo", "--lr", "0.1"]))


@pytest.mark.parametrize(
    ("more", "error"),
    [
        (["--method", "sft", "--solved", "2"], "error: no rollout is left of 48; dropped: 48 by “min_reward=2”"),
        (
            ["--overrides", "++policy_model.responses_api_models.local_model.extra_body.speed=9"],
            "heldout.jsonl completed",
        ),
    ],
    ids=["nothing solved", "all failed"],
)
def test_a_loop_that_can_not_go_on_ends_with_an_error(arguments: list[str], more: list[str], error: str) -> None:
    command = [sys.executable, str(SCRIPT), *arguments, *more]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert error in done.stderr
    assert "Traceback" not in done.stderr
