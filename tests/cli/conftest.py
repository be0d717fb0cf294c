"""Runs commands the way a user does: in this process for speed, in a process of their own where that matters."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nemo_gym.cli.main import main
from nemo_gym.global_config import reset_global_config


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory, and no settings of the machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NEMO_GYM_CONFIG_DICT", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # commands that run pytest start it quicker
    yield tmp_path
    reset_global_config()


@pytest.fixture
def run(workspace: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    def run_command(*argv: str) -> Ran:
        capfd.readouterr()
        code = main(argv)
        out, err = capfd.readouterr()
        return Ran(code, out, err)

    return run_command


@pytest.fixture
def spawn(workspace: Path) -> Run:
    def spawn_command(*argv: str, **environment: str) -> Ran:
        done = subprocess.run(
            [sys.executable, "-m", "nemo_gym.cli", *argv],
            cwd=workspace,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return spawn_command
