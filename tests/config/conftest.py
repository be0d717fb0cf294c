from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import DictConfig

from nemo_gym.config.parse import parse_config
from nemo_gym.errors import ConfigError

Write = Callable[[str, str | dict[str, Any]], Path]
Parse = Callable[..., DictConfig]


@pytest.fixture(autouse=True)
def work_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def write(work_dir: Path) -> Write:
    def write_file(name: str, content: str | dict[str, Any]) -> Path:
        path = work_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False), "utf-8")
        return path

    return write_file


@pytest.fixture
def parse(work_dir: Path) -> Parse:
    """Parse the given overrides with the directory's env.yaml, if there is one."""

    def parse_here(*overrides: str, initial: Any = None) -> DictConfig:
        env = work_dir / "env.yaml"
        return parse_config(overrides, env_path=env if env.exists() else None, initial=initial).config

    return parse_here


@pytest.fixture
def failure(parse: Parse) -> Callable[..., ConfigError]:
    """The error that parsing the overrides raises."""

    def parse_and_fail(*overrides: str, initial: Any = None) -> ConfigError:
        with pytest.raises(ConfigError) as caught:
            parse(*overrides, initial=initial)
        return caught.value

    return parse_and_fail
