"""Which files a viewer shows: paths and patterns in, rollout files out; mistakes are reported before it starts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from nemo_gym.errors import ConfigError, ConfigPathNotFoundError
from nemo_gym.io.files import RunFiles, find_files
from nemo_gym.io.lines import parse_line

_MOST_FILES: Final = 200  # each is kept open, with its index
_LOOKED_AT: Final = 10  # lines, before a file is refused
_LONGEST: Final = 64 << 20  # bytes of a line that is looked at


def check_files(patterns: Sequence[str], *, waits: bool = False) -> list[Path]:
    """The files that paths and patterns name. Every problem that a user can do something about is an error.

    With ``waits``, files that do not exist yet, or hold nothing yet, are left for later.
    """
    paths = find_files(patterns)
    if waits and patterns:
        paths = [path for path in paths if path.exists()]
    elif not paths:
        raise ConfigPathNotFoundError(
            f"no file matches {', '.join(patterns) or 'nothing'}", hint="+jsonl_fpath=<rollout file or pattern>"
        )
    if len(paths) > _MOST_FILES:
        raise ConfigError(
            f"{len(paths)} files match, more than {_MOST_FILES}",
            hint="merge them first with ng_aggregate_rollouts, or show fewer",
        )
    for path in paths:
        _check(path, waits=waits)
    return paths


def _check(path: Path, *, waits: bool) -> None:
    if path.is_dir():
        raise ConfigError(f"{path} is a folder", hint=f"+jsonl_fpath='{path}/*.jsonl' takes all files in it")
    if not path.exists():
        raise ConfigPathNotFoundError(f"{path}: no such file", hint="correct +jsonl_fpath=<rollout file>")
    try:
        with path.open("rb") as file:
            heads = [line for _ in range(_LOOKED_AT) if (line := file.readline(_LONGEST))]
    except PermissionError:
        raise ConfigError(f"{path}: no permission to read it", hint="ask its owner, or copy it") from None
    if not b"".join(heads).strip():
        if not waits:
            _check_empty(path)
        return
    whole = [line for line in heads if line.strip() and line.endswith(b"\n")]
    reasons = [_reason(line) for line in whole]
    if whole and all(reasons):
        raise ConfigError(
            f"{path}: not a file of JSON lines: {reasons[0]}",
            hint="each line must be one JSON object; a JSON array becomes such a file with: jq -c '.[]'",
        )


def _check_empty(path: Path) -> None:
    files = RunFiles.of(path)
    if not any(beside.is_file() and beside.stat().st_size for beside in (files.plan, files.failures, files.lock)):
        raise ConfigError(f"{path} is empty", hint="start the viewer when the first rollouts are there")


def _reason(line: bytes) -> str | None:
    """Why a line is not a record; None if it is one, or is too long to check."""
    if len(line) >= _LONGEST:
        return None
    try:
        value = parse_line(line)
    except ValueError as error:
        return f"line 1 is {error}"
    return None if isinstance(value, dict) else f"line 1 is not an object but {type(value).__name__}"


def display_names(paths: Sequence[Path]) -> list[str]:
    """Short names by which the files can be told apart."""
    names = [path.name for path in paths]
    return [name if names.count(name) == 1 else str(path) for name, path in zip(names, paths, strict=True)]
