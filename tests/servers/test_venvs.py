"""Environments of servers that need packages of their own: how they are built, and when one is used as it is."""

import logging
import platform
import sys
import zipfile
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.servers.venvs import COMPLETE, VenvOptions, ensure_venv


def make_wheel(folder: Path, name: str) -> str:
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "")
        about = f"{name}-1.0.dist-info"
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return f"{name} @ file://{path}"


async def test_pip_is_told_what_the_configuration_says(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wheels = [make_wheel(tmp_path, name) for name in ("needed", "for_all")]
    given = {"uv_cache_dir": str(tmp_path / "pip"), "pip_install_verbose": True, "head_server_deps": wheels[1:]}
    with caplog.at_level(logging.INFO):
        python = await ensure_venv("s", tmp_path, wheels[:1], tmp_path / "cache", VenvOptions.of(given))
    assert "Successfully installed for_all-1.0 needed-1.0" in caplog.text.replace("for-all", "for_all")
    packages = next(python.parents[1].glob("lib/python*/site-packages"))
    assert {path.name for path in packages.glob("*.py")} >= {"needed.py", "for_all.py"}
    assert VenvOptions.of(given).pip_install()[-2:] == ["--cache-dir", str(tmp_path / "pip")]


async def test_an_environment_that_is_there_is_used_as_it_is_on_request(tmp_path: Path) -> None:
    folder, cache = tmp_path / "my_server", tmp_path / "cache"
    reuse = VenvOptions.of({"skip_venv_if_present": True})
    built = cache / "venvs" / "my_server-0123"
    for home in (built, folder / ".venv"):
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "python").symlink_to(sys.executable)
        if home is built:
            (home / COMPLETE).touch()
        assert await ensure_venv("s", folder, ["no-such-package"], cache, reuse) == home / "bin" / "python"


def test_environments_are_built_with_the_running_interpreter() -> None:
    version = platform.python_version()
    assert VenvOptions.of({"python_version": version}) == VenvOptions.of({"python_version": version.rpartition(".")[0]})
    with pytest.raises(ConfigError, match=r"python_version is 3\.1, but"):
        VenvOptions.of({"python_version": "3.1"})
