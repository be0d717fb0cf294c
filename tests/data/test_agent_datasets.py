"""Fetching datasets, from folders that are laid out like repositories."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.train_data_utils import TrainDataProcessor

ROW = {"responses_create_params": {"input": [{"role": "user", "content": "hi"}]}, "level": 3}


def run(**source: Any):
    dataset = {"name": "a", "type": "train", "jsonl_fpath": "d/a.jsonl", "license": "MIT", **source}
    agent = {"entrypoint": "app.py", "datasets": [dataset]}
    config = {"output_dirpath": "out", "mode": "train_preparation", "should_download": True}
    return TrainDataProcessor().run({**config, "ag": {"responses_api_agents": {"simple_agent": agent}}})


@pytest.fixture(autouse=True)
def _repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "train.jsonl").write_text(json.dumps(ROW) + "\n")


def test_a_file_of_a_repository_is_copied() -> None:
    done = run(source={"type": "huggingface", "repo_id": "repository", "artifact_fpath": "train.jsonl"})
    assert done.files["train"].rows == 1
    assert json.loads(Path("d/a.jsonl").read_text()) == ROW


def test_a_file_that_the_repository_lacks_is_named() -> None:
    with pytest.raises(ConfigError, match=r"repository/other.jsonl: no such file"):
        run(source={"type": "huggingface", "repo_id": "repository", "artifact_fpath": "other.jsonl"})


@pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="the library 'datasets' is an extra")
@pytest.mark.filterwarnings("default")
def test_without_a_file_the_split_of_the_type_is_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    done = run(source={"type": "huggingface", "repo_id": str(tmp_path / "repository")})
    assert done.files["train"].rows == 1
    assert json.loads(Path("d/a.jsonl").read_text()) == ROW


@pytest.mark.skipif(importlib.util.find_spec("datasets") is not None, reason="the library 'datasets' is installed")
def test_without_the_library_it_is_said_what_to_install() -> None:
    with pytest.raises(ConfigError, match="needs the library 'datasets'") as caught:
        run(source={"type": "huggingface", "repo_id": "repository"})
    assert "pip install" in (caught.value.hint or "")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_of_two_sources_the_preferred_one_is_used() -> None:
    both = {
        "gitlab_identifier": {"dataset_name": "d", "version": "1", "artifact_fpath": "x.jsonl"},
        "huggingface_identifier": {"repo_id": "repository", "artifact_fpath": "train.jsonl"},
    }
    assert run(**both).files["train"].rows == 1


def test_gitlab_is_refused_with_what_to_do_instead() -> None:
    source = {"type": "gitlab", "dataset_name": "d", "version": "1", "artifact_fpath": "x.jsonl"}
    with pytest.raises(ConfigError, match="GitLab") as caught:
        run(source=source)
    assert "d/a.jsonl" in (caught.value.hint or "")
