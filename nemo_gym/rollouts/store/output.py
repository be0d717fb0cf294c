"""What is at an output path before a run writes to it: whose it is, whether it can be used, how it is moved aside.

The manifest beside an output says what its run was to do. It is written before the first call, so that a later
run can find out whether it is to do the same. It holds settings and digests, never secrets.

Everything is checked before anything is touched. What a run has collected is never overwritten: it is resumed,
extended, or moved as a whole into a numbered folder beside the output, where it is still a run like any other. An
unfinished run of the same plan is moved only if the user asks for that: usually a resume was forgotten.
"""

import json
import logging
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from itertools import count, islice
from pathlib import Path
from typing import Any, Self

from nemo_gym import __version__
from nemo_gym.errors import ConfigError, counted
from nemo_gym.io.compressed import is_framed, open_compressed
from nemo_gym.io.files import (
    BUFFER_BYTES,
    OutputPathError,
    RunFiles,
    check_replaceable,
    follow_link,
    replacing,
    role_of,
    run_stem,
    storage_errors,
    sync_directory,
    torn_path,
)
from nemo_gym.io.zstd_frames import zstandard_for
from nemo_gym.rollouts.store.saved_lines import key_in_line, read_lines

FORMAT = 1


@dataclass(frozen=True, slots=True)
class InputFacts:
    """The task file as it was when it was read."""

    path: str
    bytes: int
    modified_ns: int
    digest: str  # of the lines that were read

    @classmethod
    def of(cls, path: Path, limit: int | None) -> Self:
        """The facts of a task file as it is now."""
        status = path.stat()
        digest = sha256()
        with open_compressed(path, buffering=BUFFER_BYTES) as file:
            for line in islice(file, max(limit, 0) if limit else None):
                digest.update(line)
        return cls(str(path), status.st_size, status.st_mtime_ns, digest.hexdigest())

    def still_holds(self, path: Path, limit: int | None) -> bool:
        """Whether a task file has the same content; it is read only if its size or date changed."""
        status = path.stat()
        if (status.st_size, status.st_mtime_ns) == (self.bytes, self.modified_ns):
            return True
        return InputFacts.of(path, limit).digest == self.digest


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """The plan as it was written."""

    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a run was to do."""

    settings: Mapping[str, Any]  # everything that shapes the plan
    input: InputFacts | None
    plan: PlanFacts
    output: str = ""  # the name of the file with the rollouts
    models: Mapping[str, Any] | None = None  # what the model servers ask for, by server; None if it is not known
    created_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    versions: Mapping[str, str] = field(
        default_factory=lambda: {"rollout_gym": __version__, "python": platform.python_version()}
    )
    format: int = FORMAT

    def write(self, path: Path) -> None:
        with replacing(path) as file:
            file.write(json.dumps(asdict(self), indent=2, ensure_ascii=False).encode() + b"\n")

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """The manifest of an earlier run, or None if there is none that can be read."""
        try:
            content = json.loads(path.read_bytes())
            plan = content["plan"]  # which has a digest, too, if an earlier version wrote it
            content["plan"] = PlanFacts(rows=plan["rows"], bytes=plan["bytes"])
            content["input"] = InputFacts(**content["input"]) if content["input"] else None
            return cls(**content)
        except (OSError, ValueError, TypeError, KeyError):
            return None

    @classmethod
    def owner(cls, path: Path) -> str | None:
        """The name of the output that a manifest belongs to; None if that is not known."""
        manifest = cls.read(path)
        return (manifest.output or None) if manifest is not None else None


@dataclass(frozen=True, slots=True)
class Request:
    """What a run is to do: what shapes the plan, and what determines the completions."""

    settings: Mapping[str, Any]
    input: Path | None = None  # None if the rows come from somewhere else
    limit: int | None = None
    models: Mapping[str, Any] | None = None  # what the model servers ask for, by server; None if it is not known

    def manifest(self, plan: PlanFacts, output: Path) -> Manifest:
        """The manifest of a run that is to do this."""
        facts = InputFacts.of(self.input, self.limit) if self.input else None
        return Manifest(self.settings, facts, plan, output.name, self.models)

    def differences(self, earlier: Manifest) -> Iterator[str]:
        """How this request differs from that of an earlier run, one sentence each."""
        for name in dict.fromkeys((*earlier.settings, *self.settings)):
            before, now = earlier.settings.get(name), self.settings.get(name)
            if before != now:
                yield f"{name}: {_short(before)} → {_short(now)}"
        if self.input and earlier.input and not earlier.input.still_holds(self.input, self.limit):
            yield f"input_jsonl_fpath: the content of {self.input} is not what it was on {earlier.created_at}"

    def model_differences(self, earlier: Manifest) -> Iterator[str]:
        """How the models differ from those of an earlier run. Servers that only one of the two has do not count."""
        for server, before in (earlier.models or {}).items():
            now = (self.models or {}).get(server, before)
            for name in dict.fromkeys((*before, *now)):
                if before.get(name) != now.get(name):
                    yield f"{server}.{name}: {_short(before.get(name))} → {_short(now.get(name))}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}…"


logger = logging.getLogger(__name__)

_OTHER_OUTPUT = "choose another output"  # its parameter has a different name in each command


class OutputTakenError(ConfigError):
    """The output holds something that a fresh run would replace."""


def check_output(files: RunFiles, task_file: Path | None = None) -> None:
    """Refuse an output that is not a file, that is the input, or whose files belong to another run."""
    output = files.rollouts
    check_replaceable(output)
    for path in files.beside:
        if path.exists() and not path.is_file():
            raise OutputPathError(f"the run writes to {path}, but that is a folder or a device", hint=_OTHER_OUTPUT)
    if (role := role_of(output)) is not None:
        raise OutputPathError(f"{output.name} is how the {role} file of another run is named", hint=_OTHER_OUTPUT)
    if is_framed(output):
        zstandard_for(output)
    if task_file is not None:
        _check_input(files, task_file)
    _check_neighbours(files)


def check_derived(output: Path, inputs: Iterable[Path]) -> None:
    """Refuse an output for something made from other files, if it is one of them or belongs to a run.

    What is derived can be made again, so it may replace its earlier version. What a run has collected can't.
    """
    path = follow_link(output)
    check_replaceable(path)
    if not path.exists():
        return
    if any(given.exists() and path.samefile(given) for given in inputs):
        raise OutputPathError(f"{output} is one of the inputs", hint=_OTHER_OUTPUT)
    if (role := role_of(path)) is not None:
        raise OutputPathError(f"{output} is the {role} file of a run", hint=_OTHER_OUTPUT)
    files = RunFiles.of(path)
    if (files.manifest.exists() or files.plan.exists()) and _holds_rollouts(path):
        raise OutputPathError(f"{output} holds the rollouts of a run, which would be lost", hint=_OTHER_OUTPUT)


def _check_input(files: RunFiles, task_file: Path) -> None:
    for path in (files.rollouts, *files.beside):
        if path.exists() and task_file.exists() and path.samefile(task_file):
            what = "the output" if path == files.rollouts else "a file that the run writes beside its output"
            raise OutputPathError(f"the input {task_file} is also {what}", hint=_OTHER_OUTPUT)


def _check_neighbours(files: RunFiles) -> None:
    """Two outputs that differ only in their suffix would share every other file."""
    owner = Manifest.owner(files.manifest)
    if owner is not None and owner != files.rollouts.name:
        raise OutputPathError(
            f"{files.manifest} belongs to the run with the output {owner}", hint=f"{_OTHER_OUTPUT}, with another stem"
        )
    stem = run_stem(files.rollouts)
    for other in files.rollouts.parent.glob(f"{_escaped(stem)}.*"):
        if run_stem(other) == stem and other.name != files.rollouts.name and _holds_rollouts(other):
            raise OutputPathError(
                f"{other} is the output of another run, whose files have the same names",
                hint=f"{_OTHER_OUTPUT}, with another stem",
            )


def _escaped(stem: str) -> str:
    return "".join(f"[{sign}]" if sign in "*?[" else sign for sign in stem)


def _holds_rollouts(path: Path) -> bool:
    if not path.is_file() or path.suffix == ".lock":
        return False
    first = next(iter(read_lines(path)), None)
    return first is not None and key_in_line(first.text) is not None


# ---- an output that is taken -----------------------------------------------------------------------------------------
def is_taken(files: RunFiles) -> bool:
    """Whether the output holds anything at all."""
    return files.rollouts.exists() and files.rollouts.stat().st_size > 0


def output_taken(files: RunFiles, *, left: int) -> OutputTakenError:
    """The error for an output that is not moved aside unasked: an unfinished run, or a file that is not of a run."""
    lines, keys = 0, set()
    for line in read_lines(files.rollouts):
        lines += 1
        keys.add(key_in_line(line.text))
    rollouts = len(keys - {None})
    what = counted(rollouts, "rollout") if rollouts else f"{counted(lines, 'line')} without a rollout"
    ways = [
        f"to start from scratch, add +overwrite=true: the old files are moved to {_free_folder(files)}",
        _OTHER_OUTPUT,
    ]
    if left:
        what += f" of the same plan, {left} left"
        ways = ["to continue, add +resume_from_cache=true (in Python: resume=True)", *ways]
    return OutputTakenError(f"{files.rollouts} already holds {what}", hint=";\n      or ".join(ways))


def move_to_backup(files: RunFiles) -> Path | None:
    """Move everything that an earlier run left into a separate folder; None if there is nothing worth keeping."""
    existing = [path for path in (files.rollouts, files.failures) if path.exists() and path.stat().st_size]
    if not existing:
        for path in (files.rollouts, files.failures, files.steps, files.timing, files.manifest, *files.computed):
            path.unlink(missing_ok=True)
        return None
    folder = _free_folder(files)
    with storage_errors(folder, "create"):
        folder.mkdir()
        # The rollouts go first: whatever a crash leaves behind, they are whole in one place or the other.
        for path in _movable(files):
            os.rename(path, folder / path.name)  # noqa: PTH104 - a link is moved, not what it leads to
        sync_directory(folder)
        sync_directory(folder.parent)
    logger.warning("The earlier run at %s is now in %s", files.rollouts, folder)
    return folder


def _movable(files: RunFiles) -> Iterator[Path]:
    stays = {files.lock, files.index, files.status}
    for path in (
        files.rollouts,
        torn_path(files.rollouts),
        *files.beside,
        torn_path(files.failures),
        torn_path(files.steps),
    ):
        if path not in stays and path.exists():
            yield path


def _free_folder(files: RunFiles) -> Path:
    names = (files.rollouts.with_name(f"{files.rollouts.name}.backup-{number}") for number in count(1))
    return next(path for path in names if not follow_link(path).exists())
