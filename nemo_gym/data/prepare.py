"""Collates the datasets of several agents into one task file per type, with metrics beside every file.

Everything is checked before anything is written: that all data exists, that every sample is valid, and that no metrics
contradict those of an earlier preparation, which would mean that data changed but kept its name. Files are replaced as
a whole.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nemo_gym.config.datasets import BenchmarkDatasetConfig
from nemo_gym.config.keys import RESPONSES_API_AGENTS
from nemo_gym.config.locate import find_readable
from nemo_gym.data.agent_datasets import (
    AgentDataset,
    Backend,
    InvalidSample,
    InvalidSamplesError,
    Render,
    Row,
    Sample,
    backend_of,
    download,
    read_samples,
)
from nemo_gym.data.dataset_metrics import (
    DatasetTally,
    conflict_error,
    conflict_path,
    write_conflicts,
    write_dataset_metrics,
)
from nemo_gym.data.task_schemas import TaskDataValidator, find_server_dir, load_task_data_schema
from nemo_gym.errors import ConfigError
from nemo_gym.io.files import replacing
from nemo_gym.io.json import to_json
from nemo_gym.schemas.rows import AGENT_REF_KEY_NAME

logger = logging.getLogger(__name__)


class TaskDataError(ConfigError, ValueError):
    """Rows that do not contain what their server says a task contains."""


class MissingDatasetError(ConfigError, AssertionError):
    """Data is missing and may not, or cannot, be downloaded."""


@dataclass(frozen=True, slots=True)
class PreparationOptions:
    """How to prepare. ``template`` turns the path of a prompt template into a function that fills it."""

    output: Path
    template: Callable[[str], Render]
    may_download: bool = False
    preferred: Backend = "huggingface"
    token: str | None = None
    overwrite_conflicts: bool = False
    skip_invalid: bool = False
    task_data: Literal["off", "warn", "error"] = "warn"  # what to do about rows that do not fit the schema of a server


@dataclass(frozen=True, slots=True)
class TypeFiles:
    """The files that were written for one type of dataset."""

    tasks: Path
    metrics: Path
    rows: int


@dataclass(frozen=True, slots=True)
class Preparation:
    """The result: the files by type, and the samples that were left out."""

    files: dict[str, TypeFiles]
    skipped: list[InvalidSample]


@dataclass(frozen=True, slots=True)
class _Checked:
    """A dataset whose samples have been read once."""

    dataset: AgentDataset
    found: Path
    render: Render | None
    tally: DatasetTally
    invalid: list[InvalidSample] = field(default_factory=list)

    def samples(self) -> Iterator[Sample]:
        """Read the samples again."""
        optional = isinstance(self.dataset.config, BenchmarkDatasetConfig)
        return read_samples(self.found, render=self.render, input_optional=optional)


def prepare_datasets(datasets: Sequence[AgentDataset], options: PreparationOptions) -> Preparation:
    """Check everything, then write. Datasets of one type are collated in the given order."""
    fetch_missing(datasets, options)
    # Every file is read twice, first to check it and again to copy it: datasets may be larger than memory.
    tallies: dict[str, DatasetTally] = {}
    checked = [
        _check(dataset, options, tallies.setdefault(dataset.config.type, DatasetTally())) for dataset in datasets
    ]
    invalid = [sample for item in checked for sample in item.invalid]
    if invalid and not options.skip_invalid:
        raise InvalidSamplesError(invalid)
    for sample in invalid:
        logger.warning("left out: %s", sample)
    metrics = {item.dataset.metrics_path: _metrics(item.dataset, item.tally) for item in checked}
    for kind, tally in tallies.items():
        first = next(item.dataset for item in checked if item.dataset.config.type == kind)
        metrics[options.output / f"{kind}_metrics.json"] = _metrics(first, tally)
    conflicts = write_conflicts(metrics)
    if conflicts and not options.overwrite_conflicts:
        raise conflict_error(conflicts)
    for path, content in metrics.items():
        write_dataset_metrics(path, content)
        if path not in conflicts:  # one from an earlier preparation has been settled
            conflict_path(path).unlink(missing_ok=True)
    return Preparation({kind: _collate(kind, checked, options.output) for kind in tallies}, invalid)


def fetch_missing(datasets: Sequence[AgentDataset], options: PreparationOptions) -> None:
    """Download missing data. Nothing is downloaded unless everything that is missing can be."""
    missing = [dataset for dataset in datasets if find_readable(dataset.path) is None]
    sources = {id(dataset): backend_of(dataset, options.preferred) for dataset in missing}
    hopeless = [
        dataset
        for dataset in missing
        if not options.may_download or dataset.config.type == "example" or sources[id(dataset)] is None
    ]
    if hopeless:
        raise MissingDatasetError(
            "\n".join(["missing data:", *(f"  {dataset}" for dataset in hopeless)]),
            hint="correct jsonl_fpath, run the benchmark's prepare script (ng_prepare_benchmark), or download what has "
            "a source with +should_download=true",
        )
    for dataset in missing:
        backend = sources[id(dataset)]
        assert backend is not None, "what has no source is hopeless"
        logger.info("downloading the %s", dataset)
        download(dataset, backend, token=options.token)


def _check(dataset: AgentDataset, options: PreparationOptions, of_type: DatasetTally) -> _Checked:
    found = find_readable(dataset.path)
    assert found is not None, "missing data has been fetched"
    prompt = dataset.prompt_config
    item = _Checked(dataset, found, options.template(prompt) if prompt else None, DatasetTally())
    validator = _validator(dataset, options)
    for sample in item.samples():
        if validator is not None and sample.problem is None:
            validator.validate_row(sample.line, sample.row)
        if sample.problem is not None:
            item.invalid.append(InvalidSample(dataset.path, sample.line, sample.problem))
        elif sample.complete:  # a row that still needs a template has no request to describe
            for tally in (item.tally, of_type):
                tally.add(sample.row, dataset.config.num_repeats)
    if validator is not None and not validator.report.clean:
        if options.task_data == "error" and validator.report.error_rows:
            raise TaskDataError(validator.report.summary(), hint="correct the rows, or pass +task_data_validation=warn")
        logger.warning("%s", validator.report.summary())
    return item


def _validator(dataset: AgentDataset, options: PreparationOptions) -> TaskDataValidator | None:
    """Checks rows against what their server says a task contains; None if it says nothing, or nobody asks."""
    if dataset.environment is None or options.task_data == "off":
        return None
    adapter = load_task_data_schema(find_server_dir(dataset.environment))
    return None if adapter is None else TaskDataValidator(dataset.environment, adapter, dataset.path)


def _metrics(dataset: AgentDataset, tally: DatasetTally) -> dict[str, Any]:
    return {**dataset.config.model_dump(mode="json"), **tally.report()}


def _collate(kind: str, checked: Sequence[_Checked], output: Path) -> TypeFiles:
    target = TypeFiles(output / f"{kind}.jsonl", output / f"{kind}_metrics.json", 0)
    rows = 0
    with replacing(target.tasks) as collated:
        for item in checked:
            if item.dataset.config.type != kind:
                continue
            with replacing(item.dataset.prepared_path) as own:
                for sample in item.samples():
                    if sample.problem is None:
                        lines = _line(sample.row, item.dataset.agent) * item.dataset.config.num_repeats
                        own.write(lines)
                        collated.write(lines)
                        rows += item.dataset.config.num_repeats
    return TypeFiles(target.tasks, target.metrics, rows)


def _line(row: Row, agent: str) -> bytes:
    return to_json({**row, AGENT_REF_KEY_NAME: {"type": RESPONSES_API_AGENTS, "name": agent}}) + b"\n"
