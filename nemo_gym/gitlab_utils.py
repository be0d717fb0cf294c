"""Front door: datasets in a model registry of GitLab, which this project does not download."""

from typing import NoReturn

from nemo_gym.config_types import DownloadJsonlDatasetGitlabConfig
from nemo_gym.errors import ConfigError

__all__ = ["download_jsonl_dataset"]


def download_jsonl_dataset(config: DownloadJsonlDatasetGitlabConfig) -> NoReturn:
    """Say how to get the file instead."""
    raise ConfigError(
        f"{config.dataset_name} {config.version}: datasets in GitLab registries are not downloaded here",
        hint=f"download {config.artifact_fpath} with GitLab's own tools to {config.output_fpath}, or use Hugging Face",
    )
