"""Runs commands the way a user does: in this process for speed, in a process of their own where that matters."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nemo_gym.cli.main import main
from nemo_gym.global_config import reset_global_config
from tests.forked_commands import ForkedCommands, Ran

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
def spawn(workspace: Path, commands: ForkedCommands) -> Run:
    def spawn_command(*argv: str, **environment: str) -> Ran:
        return commands.run(*argv, folder=workspace, environment={**os.environ, **environment})

    return spawn_command
