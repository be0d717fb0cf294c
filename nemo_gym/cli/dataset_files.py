"""Commands that make files from others or exchange them with the hub: ``ng_materialize_prompts``, ``ng_export``, ….

They need no servers, so nothing of those is imported here: it would take longer than exporting thousands of rollouts.
Downloads (``ng_download_dataset_from_hf``) and uploads (``ng_upload_dataset_to_hf``) go through the hub's own library.
A downloaded file appears whole; rows are checked before anything is uploaded.
"""

import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, Field, model_validator

from nemo_gym.cli import console
from nemo_gym.cli.command import Arguments, with_files
from nemo_gym.cli.parameters import check_prompt, read_parameters
from nemo_gym.config.keys import RESOURCES_SERVERS
from nemo_gym.config.locate import find_readable
from nemo_gym.config.sources import load_yaml
from nemo_gym.data.hub import fetch_hub_file, hub_api, hub_errors, list_hub_files
from nemo_gym.errors import ConfigError, ConfigPathNotFoundError, ExitCode, counted
from nemo_gym.exporting.pipeline import export_rollouts
from nemo_gym.exporting.recipe import Recipe
from nemo_gym.filters import parse_filter
from nemo_gym.io.files import replacing
from nemo_gym.io.process import settle_heap
from nemo_gym.io.progress_bars import open_bar
from nemo_gym.prompt import MaterializePromptsConfig
from nemo_gym.prompt import materialize_prompts as materialize
from nemo_gym.rollouts.tasks import read_tasks
from nemo_gym.schemas.rows import RESPONSES_CREATE_PARAMS_KEY_NAME

Split = Literal["train", "validation", "test"]
HF_ACCESS: Final = "Token for the hub; by default HF_TOKEN of the environment, or the one of hf auth login."


def materialize_prompts(arguments: Arguments) -> int:
    """Fill the template for every row and save the rows."""
    config = read_parameters(MaterializePromptsConfig, arguments)
    check_prompt(config.prompt_config)
    materialize(config.input_jsonl_fpath, config.prompt_config, config.output_jsonl_fpath)
    return ExitCode.OK


def export_dataset(arguments: Arguments) -> int:
    """Select rollouts, write them in the requested format, and report."""
    recipe = read_parameters(Recipe, with_files(arguments, "input", as_list=True))
    parse_filter(recipe.filter)  # a mistake is reported before anything is read
    settle_heap()  # rows are thousands of objects and never garbage that has to be searched for
    report = export_rollouts(recipe, _bar, command=shlex.join(["ng_export", *arguments.typed]))
    console.note(report.text())
    for path in report.paths():
        console.emit(str(path))
    return ExitCode.OK


@contextmanager
def _bar(label: str, total: int) -> Iterator[Callable[[int], object]]:
    """A progress bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    in_bytes = label == "reading"
    with open_bar(sys.stderr, total=total, desc=label, unit="B" if in_bytes else "", unit_scale=in_bytes) as bar:
        yield bar.update


class DownloadDatasetConfig(BaseModel):
    repo_id: str = Field(description="The dataset on the hub: owner/name.")
    artifact_fpath: str | None = Field(default=None, description="One file of it.")
    split: Split | None = Field(default=None, description="One split of it: the file <split>.jsonl.")
    output_fpath: str | None = Field(default=None, description="Where to put that file.")
    output_dirpath: str | None = Field(
        default=None, description="Folder to put files into; without a file or a split, all JSONL files of the dataset."
    )
    revision: str = Field(default="main", description="Branch, tag or commit.")
    hf_token: str | None = Field(default=None, description=HF_ACCESS)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.artifact_fpath and self.split:
            raise ValueError("artifact_fpath and split name the same thing; give one of them")
        if bool(self.output_fpath) == bool(self.output_dirpath):
            raise ValueError("give either output_fpath or output_dirpath")
        if self.output_fpath and not (self.artifact_fpath or self.split):
            raise ValueError("output_fpath is for one file; name it with artifact_fpath or split")
        return self


class UploadDatasetConfig(BaseModel):
    input_jsonl_fpath: str = Field(description="The file to upload.")
    resource_config_path: str = Field(
        description="Configuration of the environment that it is for; domain and name of the dataset come from there."
    )
    hf_organization: str = Field(description="The user or organization that the dataset will belong to.")
    dataset_name: str | None = Field(default=None, description="Name of the dataset, if not that of the environment.")
    hf_dataset_prefix: str = Field(default="Nemotron-RL", description="What the name on the hub begins with.")
    split: Split = Field(default="train", description="Which split the file is.")
    hf_collection_name: str | None = Field(default=None, description="Collection to add the dataset to …")
    hf_collection_slug: str | None = Field(default=None, description="… and the last part of its address.")
    create_pr: bool = Field(default=False, description="Propose the change instead of making it.")
    revision: str | None = Field(default=None, description="Branch to upload to, if not the main one.")
    commit_message: str | None = Field(default=None, description="One line about the change.")
    commit_description: str | None = Field(default=None, description="More about it.")
    hf_token: str | None = Field(default=None, description=HF_ACCESS)


def download_dataset(arguments: Arguments) -> int:
    """Fetch the files and say where they are."""
    config = read_parameters(DownloadDatasetConfig, arguments)
    for name in _wanted(config):
        found = fetch_hub_file(config.repo_id, name, revision=config.revision, token=config.hf_token)
        target = Path(config.output_fpath) if config.output_fpath else Path(str(config.output_dirpath), *_parts(name))
        target.parent.mkdir(parents=True, exist_ok=True)
        with found.open("rb") as original, replacing(target) as copy:
            shutil.copyfileobj(original, copy)
        console.emit(str(target))
    return ExitCode.OK


def _wanted(config: DownloadDatasetConfig) -> list[str]:
    if config.artifact_fpath or config.split:
        return [config.artifact_fpath or f"{config.split}.jsonl"]
    files = list_hub_files(config.repo_id, revision=config.revision, token=config.hf_token)
    names = [name for name in files if name.endswith(".jsonl")]
    if not names:
        raise ConfigError(f"{config.repo_id} has no JSONL files", hint="name a file of it: +artifact_fpath=<path>")
    return names


def _parts(name: str) -> tuple[str, ...]:
    """The path of a file, which the hub chose, without parts that would lead out of the folder."""
    return tuple(part for part in PurePosixPath(name).parts if part not in ("..", "/"))


def upload_dataset(arguments: Arguments) -> int:
    """Check the file, upload it, and say where it is."""
    config = read_parameters(UploadDatasetConfig, arguments)
    path = Path(config.input_jsonl_fpath)
    rows = _check_rows(path, is_train=config.split == "train")
    repo_id = repository(config)
    api = hub_api(config.hf_token)
    with hub_errors(f"upload to {repo_id}"):
        api.create_repo(repo_id, repo_type="dataset", exist_ok=True)
        done = api.upload_file(
            path_or_fileobj=path,
            path_in_repo=f"{config.split}.jsonl",
            repo_id=repo_id,
            repo_type="dataset",
            revision=config.revision,
            create_pr=config.create_pr,
            commit_message=config.commit_message or f"Upload {config.split} split",
            commit_description=config.commit_description,
        )
        _add_to_collection(api, repo_id, config)
    console.note(f"{counted(rows, 'row')} uploaded to {repo_id}, {config.split}.jsonl")
    console.emit(str(getattr(done, "pr_url", None) or getattr(done, "commit_url", None) or done))
    return ExitCode.OK


def _add_to_collection(api: Any, repo_id: str, config: UploadDatasetConfig) -> None:
    if not config.hf_collection_slug:
        return
    name = (config.hf_collection_name or "").lower().replace(" ", "-")
    slug = f"{config.hf_organization}/{name}-{config.hf_collection_slug}" if name else config.hf_collection_slug
    api.add_collection_item(collection_slug=slug, item_id=repo_id, item_type="dataset", exists_ok=True)


def repository(config: UploadDatasetConfig) -> str:
    """The name on the hub: ``<organization>/<prefix>-<domain>-<name>``."""
    path = find_readable(config.resource_config_path)
    if path is None:
        raise ConfigPathNotFoundError(f"{config.resource_config_path}: no such file", hint="correct the path")
    content = load_yaml(path, label=str(path))
    for name, settings in _servers(content):
        if domain := settings.get("domain"):
            return f"{config.hf_organization}/{config.hf_dataset_prefix}-{domain}-{config.dataset_name or name}"
    raise ConfigError(f"{path} has no resources server with a domain", hint="add domain: … to its settings")


def _servers(content: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for block in content.values() if isinstance(content, dict) else ():
        servers = block.get(RESOURCES_SERVERS) if isinstance(block, dict) else None
        for name, settings in (servers or {}).items():
            if isinstance(settings, dict):
                yield str(name), settings


def _check_rows(path: Path, *, is_train: bool) -> int:
    """Count the rows; a row of training data that asks nothing is refused."""
    count = 0
    for task in read_tasks(path):
        count += 1
        if is_train and RESPONSES_CREATE_PARAMS_KEY_NAME not in task.fields:
            raise ConfigError(
                f"{path}:{task.number + 1}: the row has no {RESPONSES_CREATE_PARAMS_KEY_NAME}",
                hint="prepare the file with ng_prepare_data or ng_materialize_prompts first",
            )
    if not count:
        raise ConfigError(f"{path} has no rows")
    return count
