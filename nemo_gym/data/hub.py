"""Files of datasets on the Hugging Face hub, fetched by the hub's own library, which caches, resumes and verifies them.

The library reads ``HF_TOKEN``, ``HF_ENDPOINT`` and the place of its cache (``HF_HOME``) from the environment. It is an
extra, imported only when something is downloaded or uploaded. Machines without a network set ``ROLLOUT_GYM_HUB_FOLDER``
to a folder that holds repositories as ``owner/name/path``; a folder can also be named in place of a repository.
"""

import csv
import importlib
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nemo_gym.errors import ConfigError
from nemo_gym.io.files import replacing

Row = dict[str, Any]

FOLDER_VARIABLE: Final = "ROLLOUT_GYM_HUB_FOLDER"
# The hub's own conversion of any dataset; file names follow from configuration and split.
AS_PARQUET: Final = "refs/convert/parquet"


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a dataset repository; ``rows`` is the number of rows in the published file."""

    repo_id: str
    path: str
    rows: int
    revision: str = "main"

    def __str__(self) -> str:
        return f"{self.repo_id}/{self.path}"


def data_library(name: str) -> Any:
    """A library of the extra ``data``."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise ConfigError(f"this needs the library '{name}'", hint="pip install 'rollout-gym[data]'") from None


def hub_api(token: str | None) -> Any:
    """The client of the hub. Without a token the library looks for one in the environment."""
    # The address is given, because the library remembers the one that was set when it was imported.
    return data_library("huggingface_hub").HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=token)


@contextmanager
def hub_errors(doing: str) -> Iterator[None]:
    """Turn errors of the hub's library into one that says what could not be done."""
    library = data_library("huggingface_hub")
    # What its HTTP client raises if there is no reply; which client that is depends on the library's version.
    client = type(library.get_session()).__module__.partition(".")[0]
    no_reply: type[Exception] = sys.modules[client].HTTPError
    try:
        yield
    except (OSError, ValueError, library.errors.EntryNotFoundError, no_reply) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ConfigError(
            f"could not {doing}: {' '.join(lines[:2]) or type(error).__name__}",
            hint="check the names, the network and the token (HF_TOKEN, or hf_token in env.yaml); for gated data, "
            f"accept its terms on the hub. Without a network, set {FOLDER_VARIABLE}",
        ) from error


def fetch_hub_file(repo_id: str, path: str, *, revision: str = "main", token: str | None = None) -> Path:
    """A file of a dataset on disk: from a local folder, from the library's cache, or from the hub.

    ``revision`` is a branch, tag or commit. Without a token the library looks for one in the environment.
    """
    if folder := _local(repo_id):
        if not (folder / path).is_file():
            raise ConfigError(f"{folder / path}: no such file", hint=f"correct the path, or unset {FOLDER_VARIABLE}")
        return folder / path
    cache = os.environ.get("HF_HUB_CACHE")
    with hub_errors(f"download {repo_id}/{path} (revision {revision})"):
        return Path(
            hub_api(token).hf_hub_download(repo_id, path, repo_type="dataset", revision=revision, cache_dir=cache)
        )


def list_hub_files(repo_id: str, *, revision: str = "main", token: str | None = None) -> list[str]:
    """The names of the files that a dataset has."""
    if folder := _local(repo_id):
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    with hub_errors(f"list the files of {repo_id}"):
        return sorted(hub_api(token).list_repo_files(repo_id, repo_type="dataset", revision=revision))


def _local(repo_id: str) -> Path | None:
    if folder := os.environ.get(FOLDER_VARIABLE):
        return Path(folder) / repo_id
    return Path(repo_id) if Path(repo_id).is_dir() else None


def read_rows(path: Path) -> list[Row]:
    """The rows of a JSONL, CSV or Parquet file."""
    if path.suffix == ".parquet":
        rows: list[Row] = data_library("pyarrow.parquet").read_table(path).to_pylist()
        return rows
    text = path.read_text("utf-8")
    if path.suffix == ".csv":
        return [dict(row) for row in csv.DictReader(io.StringIO(text))]
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def fetch_rows(file: HubFile) -> list[Row]:
    """The rows of a file. It is an error if their number differs from that of the published file."""
    rows = read_rows(fetch_hub_file(file.repo_id, file.path, revision=file.revision))
    if len(rows) != file.rows:
        raise ConfigError(
            f"{file} has {len(rows)} rows, not {file.rows}",
            hint="the dataset has changed: compare results only with others of the same data",
        )
    return rows


def write_rows(rows: Iterable[Row], path: Path) -> Path:
    """Write a benchmark's task file, whole or not at all, and return its path."""
    with replacing(path) as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    return path
