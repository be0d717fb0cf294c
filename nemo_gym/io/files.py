"""The names of all files of a run, and atomic replacement of a file.

Every file of a run is beside its rollouts and named after them. All code that writes, finds or recognizes such a file
takes its name from ``RunFiles``; a new kind of file is added there and nowhere else. Links are followed: the files of a
run are beside the file that a link points to.

While a file is being replaced, a reader sees its old content or its new content, never a part of either.
"""

import errno
import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import BinaryIO, Final, Self

from nemo_gym.errors import ConfigError, ConfigPathNotFoundError
from nemo_gym.io.compressed import ZSTD_SUFFIX

BUFFER_BYTES: Final = 1 << 20
# What only the user can change. Anything else that the operating system refuses is our bug.
STORAGE_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM})

_OTHER_OUTPUT: Final = "choose another output"

# What each file beside the rollouts adds to their stem.
_SUFFIXES: Final = {
    "plan": "_materialized_inputs.jsonl",
    "failures": "_failures.jsonl",
    "steps": "_steps.jsonl",
    "timing": "_timing.json",
    "metrics": "_aggregate_metrics.json",
    "details": "_aggregate_details.json",
    "manifest": "_manifest.json",
    "profile": "_reward_profiling.jsonl",
    "agent_metrics": "_agent_metrics.json",
    "difficulty": "_difficulty.jsonl",
    "solve_rates": "_solve_rates.svg",
    "audit": "_audit.jsonl",
    "marks": "_marks.jsonl",
    "status": "_status.json",
    "lock": ".lock",
}
# What is added to the whole name of the rollouts.
INDEX_SUFFIX: Final = ".view.sqlite"
_MAGIC: Final = frozenset("*?[")


class StorageError(ConfigError):
    """A file of the run can't be read or written: no space, no permission, a broken disk."""


class OutputPathError(ConfigError):
    """Nothing can be written to this path, or something that is there would be lost."""


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The paths of all files of one run."""

    rollouts: Path  # completed rollouts, one line each, in the order of completion
    plan: Path  # every planned rollout, as it is sent to its agent
    failures: Path  # one line for each failed attempt
    steps: Path  # one line for each attempt: the calls it made
    timing: Path  # how long the run took, and what it had to work with
    metrics: Path  # the metrics of each agent
    details: Path  # intervals, coverage, cost: what we add to the metrics
    manifest: Path  # what the run was to do
    profile: Path  # rewards task by task
    agent_metrics: Path  # rewards agent by agent
    difficulty: Path  # how often each task was solved
    solve_rates: Path  # the same as a chart
    audit: Path  # what an audit found suspicious
    marks: Path  # labels and notes of people
    status: Path  # what a running collection is doing; removed when it ends
    lock: Path  # held by the process that writes
    index: Path  # of the viewer; can be rebuilt at any time

    @classmethod
    def of(cls, output: Path) -> Self:
        """The files that belong to an output path."""
        rollouts = follow_link(output)
        folder, stem = rollouts.parent, run_stem(rollouts)  # even if it is a folder, which is refused later
        beside = {name: folder / f"{stem}{suffix}" for name, suffix in _SUFFIXES.items()}
        return cls(rollouts=rollouts, index=folder / f"{rollouts.name}{INDEX_SUFFIX}", **beside)

    @property
    def beside(self) -> tuple[Path, ...]:
        """All files except the rollouts themselves."""
        return tuple(getattr(self, field.name) for field in fields(self) if field.name != "rollouts")

    @property
    def computed(self) -> tuple[Path, ...]:
        """The files that are computed from the rollouts and become outdated when these change."""
        return (
            self.metrics,
            self.details,
            self.profile,
            self.agent_metrics,
            self.difficulty,
            self.solve_rates,
            self.audit,
        )


def run_stem(path: Path) -> str:
    """The name of a rollout file without its endings, which the other files of its run begin with."""
    return Path(path.name.removesuffix(ZSTD_SUFFIX)).stem


def role_of(path: Path) -> str | None:
    """The role of a file beside rollouts, judged by its name (``plan``, ``failures``, …); None for all other files.

    Rollout files never have such a name, because it is refused for the output of a run.
    """
    if path.name.endswith(INDEX_SUFFIX):
        return "index"
    endings = ((role, suffix) for role, suffix in _SUFFIXES.items() if suffix != _SUFFIXES["lock"])
    return next((role for role, suffix in endings if path.name.endswith(suffix) and path.name != suffix), None)


def user_cache(environment: Mapping[str, str]) -> Path:
    """The folder for what this user downloads or can compute again."""
    base = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or Path.home()) / ".cache"
    return Path(base) / "rollout-gym"


def split_patterns(text: str | Sequence[str]) -> list[str]:
    """Paths and patterns, given as a list or separated by commas."""
    if isinstance(text, str):
        text = [text] if Path(text).exists() else text.split(",")  # the name of a file may contain a comma
    return [part.strip() for part in text if part.strip()]


def find_files(patterns: Sequence[str]) -> list[Path]:
    """The files that paths and patterns name, each once. A pattern leaves out the other files of a run."""
    found: dict[Path, None] = {}
    for pattern in patterns:
        expanded = os.path.expanduser(pattern)  # noqa: PTH111 - a pattern is not a path
        if Path(expanded).exists() or not _MAGIC & set(pattern):
            found[Path(expanded)] = None
        else:
            paths = sorted(map(Path, glob.glob(expanded, recursive=True)))  # noqa: PTH207 - absolute patterns
            found.update(dict.fromkeys(path for path in paths if path.is_file() and role_of(path) is None))
    return list(found)


def named_files(patterns: str | Sequence[str], parameter: str, *, waits: bool = False) -> list[Path]:
    """The files that a parameter names. A folder is an error, and so is no file, or one that does not exist.

    With ``waits``, files that do not exist yet are left out.
    """
    names = split_patterns(patterns)
    found = [path for path in find_files(names) if not waits or path.exists()]
    for path in found:
        if path.is_dir():
            raise ConfigError(f"{path} is a folder", hint=f"+{parameter}='{path}/*.jsonl' takes all files in it")
        if not path.exists():
            raise ConfigPathNotFoundError(f"{path}: no such file", hint=f"correct +{parameter}=<file or pattern>")
    if not found and not (waits and names):
        hint = f"correct +{parameter}=<file or pattern>"
        raise ConfigPathNotFoundError(f"no file matches {', '.join(names) or 'nothing'}", hint=hint)
    return found


def follow_link(path: Path) -> Path:
    """The file that a link points to, whether or not it exists; any other path unchanged."""
    # What /dev/stdout points to may have a name that can't be opened (pipe:[1234]).
    is_other = path.exists() and not path.is_file()
    return Path(os.path.realpath(path)) if path.is_symlink() and not is_other else path


def check_replaceable(path: Path) -> None:
    """Refuse a path where a file can't be written: renaming a new file over a device would remove the device."""
    if path.is_dir():
        example = path / "rollouts.jsonl"
        raise OutputPathError(f"the output {path} is a folder", hint=f"name a file in it, for example {example}")
    if path.exists() and not path.is_file():
        raise OutputPathError(f"the output {path} is not a file but a device or a pipe", hint=_OTHER_OUTPUT)
    existing = next(folder for folder in path.parents if folder.exists())
    if not existing.is_dir():
        raise OutputPathError(f"{existing} is a file, so {path.parent} can't be a folder", hint=_OTHER_OUTPUT)


def torn_path(path: Path) -> Path:
    """The file for bytes that turned out not to be lines of this file."""
    return path.with_name(f"{path.name}.torn")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write a new version of a file. It replaces the old one once it is complete and on disk, or not at all.

    Only a file is ever replaced: a folder, a device or a pipe of that name is an error.
    """
    path = follow_link(path)
    check_replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("wb", buffering=BUFFER_BYTES) as file:
            yield file
            # Without this a power failure could leave the new name with none of the new content.
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        is_unnamed = error.filename is None and error.errno in STORAGE_ERRORS  # as it is when writing fails
        if error.filename == str(draft) or is_unnamed:
            error.filename = str(path)  # the name that the user knows
        raise
    finally:
        with suppress(OSError):  # which would hide the error that explains more
            draft.unlink()


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable, so that a renamed file survives a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def storage_errors(path: Path, doing: str) -> Iterator[None]:
    """Turn an error of the operating system into one that names the file and says what to do."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"can't {doing} {path}: {error.strerror or error}",
            hint="everything saved before is intact; make room or correct the permissions, then run again; a "
            "collection continues with +resume_from_cache=true",
        ) from error
