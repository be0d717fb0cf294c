"""Runs commands the way a user does: in this process for speed, in a process of their own where that matters."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.cli.main import main
from nemo_gym.global_config import reset_global_config
from tests.forked_commands import ForkedCommands, Ran

Run = Callable[..., Ran]
WriteGym = Callable[[str, str, dict[str, Any]], None]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory, and no settings of the machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NEMO_GYM_CONFIG_DICT", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # commands that run pytest start it quicker
    yield tmp_path
    reset_global_config()


@pytest.fixture
def write_gym(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WriteGym]:
    """Writes a server folder and ``gym.yaml``; afterwards, forgets what hosting the server in this process imported."""
    monkeypatch.setattr(sys, "path", sys.path.copy())
    before, written = set(sys.modules), list[str]()

    def write(server: str, code: str, config: dict[str, Any]) -> None:
        folder = workspace / server
        folder.mkdir(parents=True)
        (folder / "app.py").write_text(code)
        (folder / "requirements.txt").touch()
        (workspace / "gym.yaml").write_text(json.dumps(config))
        written.append(server.replace("/", "."))

    yield write
    for name in set(sys.modules) - before:
        if name.startswith(tuple(written)):
            del sys.modules[name]


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
