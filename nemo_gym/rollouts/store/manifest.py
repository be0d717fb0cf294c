"""The manifest: what a run was asked to do, written beside its output before the first call.

It lets a later run find out whether it is asked to do the same. It holds settings and digests, never secrets.
"""

import json
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, Self

from nemo_gym import __version__
from nemo_gym.io.files import BUFFER_BYTES, replacing

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
        with path.open("rb", buffering=BUFFER_BYTES) as file:
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
    """What a run was asked to do."""

    settings: Mapping[str, Any]  # everything that shapes the plan
    input: InputFacts | None
    plan: PlanFacts
    output: str = ""  # the name of the file with the rollouts
    created_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    versions: Mapping[str, str] = field(
        default_factory=lambda: {"rollout_gym": __version__, "python": platform.python_version()}
    )
    format: int = FORMAT

    def write(self, path: Path) -> None:
        """Save it."""
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
    """What a run is asked to do, as far as it shapes the plan."""

    settings: Mapping[str, Any]
    input: Path | None = None  # None if the rows come from somewhere else
    limit: int | None = None

    def manifest(self, plan: PlanFacts, output: Path) -> Manifest:
        """The manifest of a run that is asked to do this."""
        facts = InputFacts.of(self.input, self.limit) if self.input else None
        return Manifest(self.settings, facts, plan, output.name)

    def differences(self, earlier: Manifest) -> Iterator[str]:
        """How this request differs from that of an earlier run, in words."""
        for name in dict.fromkeys((*earlier.settings, *self.settings)):
            before, now = earlier.settings.get(name), self.settings.get(name)
            if before != now:
                yield f"{name}: {_short(before)} → {_short(now)}"
        if self.input and earlier.input and not earlier.input.still_holds(self.input, self.limit):
            yield f"input_jsonl_fpath: the content of {self.input} is not what it was on {earlier.created_at}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}…"
