"""Programs lie in folders of their own, named after their packages; what is really there is read from the folder."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.programs.installation import COMPLETE, Installation


def test_another_version_is_another_folder(tmp_path: Path) -> None:
    one, two = (Installation.of("tool", [f"npm:tool@1.0.{number}"], tmp_path) for number in range(2))
    assert one.folder != two.folder
    assert one.folder == Installation.of("tool", ["npm:tool@1.0.0"], tmp_path).folder
    assert not one.is_complete
    assert Installation.of("tool", [], tmp_path).is_complete


def test_what_is_not_installed_is_refused(tmp_path: Path) -> None:
    installation = Installation.of("tool", ["npm:@own/tool@1.0.0"], tmp_path)
    with pytest.raises(ConfigError, match="tool is not installed: npm:@own"):
        installation.require("tool")
    installation.folder.mkdir(parents=True)
    (installation.folder / COMPLETE).touch()
    installation.require("tool")


def test_versions_are_those_in_the_folder(tmp_path: Path) -> None:
    installation = Installation.of(
        "tool", ["npm:@own/tool@1.0.0", "pip:My_Tool[extra]==2.0", "pip:gone==1.0"], tmp_path
    )
    package = installation.folder / "node_modules/@own/tool/package.json"
    package.parent.mkdir(parents=True)
    package.write_text(json.dumps({"version": "1.0.0"}))
    (installation.folder / "lib/python3.11/site-packages/my_tool-2.0.1.dist-info").mkdir(parents=True)
    assert installation.versions() == {"@own/tool": "1.0.0", "My_Tool": "2.0.1", "gone": "unknown"}


def test_an_installation_that_fails_says_what_npm_says(tmp_path: Path) -> None:
    if shutil.which("npm") is None or subprocess.run(["npm", "--version"], check=False).returncode:
        pytest.skip("npm is not installed")
    installation = Installation.of("tool", [f"npm:{tmp_path / 'no-such-package'}"], tmp_path)
    with pytest.raises(ConfigError, match="npm install") as caught:
        installation.install()
    assert "registry" in (caught.value.hint or "")
    assert not installation.is_complete
