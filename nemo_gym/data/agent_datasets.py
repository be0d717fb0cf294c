"""The datasets of the configured agents: finds those of a mode, downloads what is missing, reads and checks their rows.

A sample is a JSON object whose ``responses_create_params`` is a complete request. A benchmark's rows become complete
through its prompt template; without one, they may leave the input out, and a template is given when they are collected.

A download arrives complete or not at all. A folder on disk with the layout of a Hugging Face repository works like a
repository on the hub, for machines without a network.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Literal, Never

from omegaconf import DictConfig
from pydantic import ValidationError

from nemo_gym.config.addresses import server_settings, server_type
from nemo_gym.config.datasets import BenchmarkDatasetConfig, DatasetConfig, HuggingFaceIdentifier
from nemo_gym.config.environments import routing_of
from nemo_gym.config.keys import RESOURCES_SERVERS, RESPONSES_API_AGENTS
from nemo_gym.config.servers import blocks, maybe_get_server_instance_config
from nemo_gym.data.hub import data_library, fetch_hub_file
from nemo_gym.errors import ConfigError
from nemo_gym.io.files import replacing
from nemo_gym.io.json import to_json
from nemo_gym.schemas.responses import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.schemas.rows import RESPONSES_CREATE_PARAMS_KEY_NAME

Row = dict[str, Any]
Render = Callable[[Row], Row]
Backend = Literal["gitlab", "huggingface"]

_SHOWN: Final = 20


class Mode(StrEnum):
    """The purpose of a preparation."""

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
    environment: str | None = None  # the folder of the resources server whose tasks they are

    @property
    def path(self) -> Path:
        """The path of the data, possibly still to be downloaded; related files are written beside it."""
        return Path(self.config.jsonl_fpath)

    @property
    def metrics_path(self) -> Path:
        return self.path.with_name(f"{self.path.stem}_metrics.json")

    @property
    def prepared_path(self) -> Path:
        """The data as it goes into the collated file."""
        return self.path.with_name(f"{self.path.stem}_prepare.jsonl")

    @property
    def prompt_config(self) -> str | None:
        """The prompt template that turns a benchmark's rows into complete requests."""
        return self.config.prompt_config if isinstance(self.config, BenchmarkDatasetConfig) else None

    def __str__(self) -> str:
        return f"{self.config.type} dataset '{self.config.name}' of agent '{self.agent}' ({self.path})"


def datasets_in_scope(config: DictConfig, mode: Mode) -> list[AgentDataset]:
    """The datasets to prepare, in the order of the configuration."""
    return [dataset for dataset in _datasets(config) if dataset.config.type in TYPES[mode]]


def _datasets(config: DictConfig) -> Iterator[AgentDataset]:
    agents = routing_of(config).sources
    for name, block in blocks(config):
        if RESPONSES_API_AGENTS not in block and RESOURCES_SERVERS not in block:
            continue
        server, error = maybe_get_server_instance_config(name, block)
        if error is not None and RESPONSES_API_AGENTS in block:
            raise ConfigError(f"agent '{name}' is not valid: {_first_problem(error)}", hint="correct its configuration")
        for dataset in (server.datasets if server is not None else None) or ():
            agent = dataset.agent or agents.get(name)
            if agent is None or agents.get(agent) != agent:
                raise ConfigError(
                    f"dataset '{dataset.name}' of '{name}': it is not clear which agent runs it",
                    hint="name it in the dataset, as 'agent: <instance>', or list the dataset under the agent",
                )
            yield AgentDataset(agent, dataset, environment_folder(config, name))


def environment_folder(config: DictConfig, name: str) -> str | None:
    """The implementation of a resources server, or of the one that an agent refers to."""
    kind = server_type(config, name)
    if kind == RESOURCES_SERVERS:
        return str(next(iter(config[name][kind])))
    referred = server_settings(config, name).get("resources_server")
    target = referred.get("name") if isinstance(referred, DictConfig) else None
    return environment_folder(config, target) if target and server_type(config, target) == RESOURCES_SERVERS else None


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
    found = fetch_hub_file(source.repo_id, source.artifact_fpath, token=token)
    with found.open("rb") as original, replacing(target) as copy:
        shutil.copyfileobj(original, copy)


def _fetch_split(repository: str, split: str, target: Path, token: str | None) -> None:
    library = data_library("datasets")
    try:
        rows: Iterable[Mapping[str, Any]] = library.load_dataset(repository, split=split, token=token)
    except (OSError, ValueError, library.exceptions.DatasetsError) as error:
        raise ConfigError(
            f"could not download split '{split}' of {repository}: {error}",
            hint="check the name, the network and hf_token",
        ) from error
    with replacing(target) as file:
        for row in rows:
            file.write(to_json(dict(row)) + b"\n")


@dataclass(frozen=True, slots=True)
class Sample:
    """A line of a dataset, with what is wrong with it if anything is."""

    line: int
    row: Row
    problem: str | None
    complete: bool  # whether it is a request even without a template


@dataclass(frozen=True, slots=True)
class InvalidSample:
    """The place of an invalid sample, and what is wrong with it."""

    path: Path
    line: int
    problem: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.problem}"


class InvalidSamplesError(ConfigError, ValueError):
    """There are samples that no agent could use."""

    def __init__(self, samples: list[InvalidSample]) -> None:
        shown = [f"  {sample}" for sample in samples[:_SHOWN]]
        if len(samples) > _SHOWN:
            shown.append(f"  and {len(samples) - _SHOWN} more")
        super().__init__(
            "\n".join([f"{len(samples)} invalid samples:", *shown]),
            hint="correct these lines, or leave them out with +skip_invalid=true",
        )


def read_samples(path: Path, *, render: Render | None = None, input_optional: bool = False) -> Iterator[Sample]:
    """Every line that is not blank. ``render`` fills the prompt template."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _sample(number, line, render, input_optional=input_optional)


def _sample(number: int, line: bytes, render: Render | None, *, input_optional: bool) -> Sample:
    try:
        row = json.loads(line, parse_constant=_refuse)
        if not isinstance(row, dict):
            return Sample(number, {}, f"must be an object, not {type(row).__name__}", complete=False)
        problem = request_problem(row)
        complete = problem is None  # decided before the template is filled
        if render is not None:
            row = render(row)
            problem = request_problem(row)
        elif input_optional and not complete:
            problem = request_problem(_with_any_input(row))
    except (ConfigError, ValueError, RecursionError) as error:
        return Sample(number, {}, _reason(error), complete=False)
    return Sample(number, row, problem, complete)


def request_problem(row: Mapping[str, Any]) -> str | None:
    """Why ``responses_create_params`` is not a request; None if it is one."""
    if RESPONSES_CREATE_PARAMS_KEY_NAME not in row:
        return f"has no {RESPONSES_CREATE_PARAMS_KEY_NAME}"
    try:
        NeMoGymResponseCreateParamsNonStreaming.model_validate(row[RESPONSES_CREATE_PARAMS_KEY_NAME])
    except ValidationError as error:
        return f"{RESPONSES_CREATE_PARAMS_KEY_NAME}.{_first_problem(error)}"
    return None


def _with_any_input(row: Row) -> Row:
    params = row.get(RESPONSES_CREATE_PARAMS_KEY_NAME, {})
    return {RESPONSES_CREATE_PARAMS_KEY_NAME: {"input": "", **params} if isinstance(params, dict) else params}


def _reason(error: Exception) -> str:
    return f"not JSON ({error})" if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) else str(error)


def _refuse(constant: str) -> Never:
    raise ValueError(f"not JSON ({constant} is not a JSON number)")


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
