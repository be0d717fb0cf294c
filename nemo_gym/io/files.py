"""Files that are replaced as a whole, so that a reader sees the old content or the new, never a part.

The files of a run: their names, all derived from that of the output, and how a file is replaced as a whole.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

from nemo_gym.errors import ConfigError

BUFFER_BYTES = 1 << 20


class StorageError(ConfigError):
    """A file of the run can't be read or written: no space, no permission, a broken disk."""


@dataclass(frozen=True, slots=True)
class RunFiles:
    """Where everything about one run is."""

    rollouts: Path  # completed rollouts, one line each, in the order of completion
    plan: Path  # every rollout that is owed or was
    failures: Path  # one line for each failed attempt
    metrics: Path
    manifest: Path  # what the run was asked to do
    lock: Path

    @classmethod
    def of(cls, output: Path) -> Self:
        """The files that belong to an output path."""
        return cls(
            rollouts=output,
            plan=output.with_name(f"{output.stem}_materialized_inputs.jsonl"),
            failures=output.with_name(f"{output.stem}_failures.jsonl"),
            metrics=output.with_name(f"{output.stem}_aggregate_metrics.json"),
            manifest=output.with_name(f"{output.stem}_manifest.json"),
            lock=output.with_name(f"{output.stem}.lock"),
        )


def torn_path(path: Path) -> Path:
    """Where bytes go that turned out not to be lines of this file."""
    return path.with_name(f"{path.name}.torn")


def old_path(path: Path) -> Path:
    """Where a file goes that a fresh run replaces."""
    return path.with_name(f"{path.name}.old")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write a file anew. It takes its place only once it is complete and on disk; an exception leaves no trace."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("wb", buffering=BUFFER_BYTES) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync_directory(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Make the names in a directory as durable as the files."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def storage_errors(path: Path, doing: str) -> Iterator[None]:
    """Turn an error of the operating system into one that says which file and what now."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"can't {doing} {path}: {error.strerror or error}",
            hint="everything saved before is intact; make room or correct the permissions, then run again with "
            "+resume_from_cache=true",
        ) from error
