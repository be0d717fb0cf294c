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

from tests.training.gym_config import ROOT, write_tasks

SCRIPT = ROOT / "examples" / "train.py"


@pytest.fixture
def arguments(tiny_model: Path, tmp_path: Path) -> list[str]:
    train, heldout = write_tasks(tmp_path / "train.jsonl", 12), write_tasks(tmp_path / "heldout.jsonl", 4)
    files = ["--output", str(tmp_path / "out"), "--model", str(tiny_model)]
    files += ["--train", str(train), "--heldout", str(heldout)]
    small = "++policy_model.responses_api_models.local_model.n_ctx=1024"
    return [*files, "--tasks", "6", "--batch", "1", "--max-output-tokens", "12", "--overrides", small]


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


def test_a_killed_loop_goes_on_where_it_was(arguments: list[str], loop: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = [*arguments, "--rounds", "2"]
    checkpoint = out / "grpo_1.checkpoint"
    killed_when(checkpoint.exists, arguments)
    assert not (out / "grpo_1.gguf").exists()
    before, rollouts = ((out / name).read_bytes() for name in ("before.jsonl", "train.jsonl"))
    loop.main(arguments)
    assert (out / "before.jsonl").read_bytes() == before
    assert (out / "train.jsonl").read_bytes() == rollouts
    assert not checkpoint.exists()
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


def test_a_folder_of_other_settings_is_refused(arguments: list[str], loop: ModuleType, tmp_path: Path) -> None:
    loop.keep_settings(loop.read_options(arguments))
    with pytest.raises(SystemExit, match="other settings"):
        loop.main([*arguments, "--seed", "1"])
