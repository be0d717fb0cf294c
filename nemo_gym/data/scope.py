"""Which datasets a preparation is about: those of the configured agents, of the types that the mode asks for."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from omegaconf import DictConfig
from pydantic import ValidationError

from nemo_gym.config.datasets import BenchmarkDatasetConfig, DatasetConfig
from nemo_gym.config.keys import RESPONSES_API_AGENTS
from nemo_gym.config.validation import blocks, maybe_get_server_instance_config
from nemo_gym.errors import ConfigError


class Mode(StrEnum):
    """What is prepared for."""

    train_preparation = "train_preparation"
    example_validation = "example_validation"


TYPES: Final[dict[Mode, tuple[str, ...]]] = {
    Mode.train_preparation: ("train", "validation", "benchmark"),
    Mode.example_validation: ("example",),
}


@dataclass(frozen=True, slots=True)
class AgentDataset:
    """A dataset and the agent that lists it."""

    agent: str
    config: DatasetConfig | BenchmarkDatasetConfig

    @property
    def path(self) -> Path:
        """Where the data is, or will be once downloaded; what belongs to it is written beside."""
        return Path(self.config.jsonl_fpath)

    @property
    def metrics_path(self) -> Path:
        """The metrics of the data."""
        return self.path.with_name(f"{self.path.stem}_metrics.json")

    @property
    def prepared_path(self) -> Path:
        """The data as it goes into the collated file."""
        return self.path.with_name(f"{self.path.stem}_prepare.jsonl")

    @property
    def prompt_config(self) -> str | None:
        """The prompt template that makes complete requests of a benchmark's rows."""
        return self.config.prompt_config if isinstance(self.config, BenchmarkDatasetConfig) else None

    def __str__(self) -> str:
        return f"{self.config.type} dataset '{self.config.name}' of agent '{self.agent}' ({self.path})"


def datasets_in_scope(config: DictConfig, mode: Mode) -> list[AgentDataset]:
    """The datasets to prepare, in the order of the configuration."""
    return [dataset for dataset in _datasets(config) if dataset.config.type in TYPES[mode]]


def _datasets(config: DictConfig) -> Iterator[AgentDataset]:
    for name, block in blocks(config):
        if RESPONSES_API_AGENTS not in block:
            continue
        server, error = maybe_get_server_instance_config(name, block)
        if error is not None:
            raise ConfigError(f"agent '{name}' is not valid: {_first(error)}", hint="correct its configuration")
        for dataset in (server.datasets if server is not None else None) or ():
            yield AgentDataset(name, dataset)


def _first(error: ValidationError) -> str:
    problem = error.errors()[0]
    return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
