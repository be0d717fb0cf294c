"""Downloads missing datasets. The libraries for that are imported only when something has to be downloaded.

A dataset arrives complete or not at all. A folder on disk with the layout of a Hugging Face repository works like a
repository on the hub, for machines without a network.
"""

import importlib
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from nemo_gym.config.datasets import BenchmarkDatasetConfig, HuggingFaceIdentifier
from nemo_gym.data.samples import AgentDataset
from nemo_gym.errors import ConfigError
from nemo_gym.io.files import replacing
from nemo_gym.io.json import to_json

Backend = Literal["gitlab", "huggingface"]


def backend_of(dataset: AgentDataset, preferred: Backend) -> Backend | None:
    """Where a dataset can be downloaded from, or None. If there is a choice, the preference decides."""
    config = dataset.config
    if isinstance(config, BenchmarkDatasetConfig):
        return None
    gitlab, huggingface = config.gitlab_identifier is not None, config.huggingface_identifier is not None
    if gitlab and huggingface:
        return preferred
    return "gitlab" if gitlab else "huggingface" if huggingface else None


def download(dataset: AgentDataset, backend: Backend, *, token: str | None = None) -> None:
    """Download a dataset to the path in its configuration."""
    config = dataset.config
    if backend == "gitlab":
        raise ConfigError(
            f"the {dataset} is in a GitLab registry, and downloading from there is not supported",
            hint=f"download it by hand to {dataset.path}, or give it a huggingface source",
        )
    assert not isinstance(config, BenchmarkDatasetConfig), "a benchmark is prepared by its script"
    assert config.huggingface_identifier is not None, "the backend was chosen by the identifier"
    if config.huggingface_identifier.artifact_fpath is not None:
        _fetch_file(config.huggingface_identifier, dataset.path, token)
    else:
        _fetch_split(config.huggingface_identifier.repo_id, config.type, dataset.path, token)


def _fetch_file(source: HuggingFaceIdentifier, target: Path, token: str | None) -> None:
    assert source.artifact_fpath is not None, "without a file the whole split is fetched"
    if Path(source.repo_id).is_dir():
        found = Path(source.repo_id) / source.artifact_fpath
        if not found.is_file():
            raise ConfigError(f"{found}: no such file", hint="correct the dataset's artifact_fpath")
    else:
        hub = _load("huggingface_hub")
        try:
            found = Path(hub.hf_hub_download(source.repo_id, source.artifact_fpath, repo_type="dataset", token=token))
        except (OSError, ValueError) as error:  # the hub's own errors are subclasses of these
            raise _not_fetched(f"{source.repo_id}/{source.artifact_fpath}", error) from error
    with found.open("rb") as original, replacing(target) as copy:
        shutil.copyfileobj(original, copy)


def _fetch_split(repository: str, split: str, target: Path, token: str | None) -> None:
    library = _load("datasets")
    try:
        rows: Iterable[Mapping[str, Any]] = library.load_dataset(repository, split=split, token=token)
    except (OSError, ValueError, library.exceptions.DatasetsError) as error:
        raise _not_fetched(f"split '{split}' of {repository}", error) from error
    with replacing(target) as file:
        for row in rows:
            file.write(to_json(dict(row)) + b"\n")


def _load(library: str) -> Any:
    try:
        return importlib.import_module(library)
    except ModuleNotFoundError:
        raise ConfigError(
            f"downloading a dataset needs the library '{library}'", hint="pip install 'rollout-gym[data]'"
        ) from None


def _not_fetched(what: str, error: Exception) -> ConfigError:
    return ConfigError(f"could not download {what}: {error}", hint="check the name, the network and hf_token")
