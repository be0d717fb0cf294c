"""Marks: a person's label and note on a rollout, in ``<stem>_marks.jsonl`` beside the run.

Every mark is appended as a line, so several people may mark at once and nothing is lost; the last line about a rollout
is what counts. A line is written by one call of the operating system, and a line that was torn is skipped.
"""

import fcntl
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from nemo_gym.errors import ConfigError
from nemo_gym.io.files import RunFiles
from nemo_gym.io.json import decode, encode
from nemo_gym.schemas.record import Record
from nemo_gym.schemas.rows import RolloutKey

GOOD, BAD = "good", "bad"  # labels that say whether the reward is right
LONGEST_LABEL: Final = 60
LONGEST_NOTE: Final = 10_000


class Mark(NamedTuple):
    """What somebody thinks of a rollout."""

    label: str | None = None
    note: str | None = None
    by: str | None = None
    at: str | None = None

    @property
    def columns(self) -> dict[str, str | None]:
        """The columns by which people filter."""
        return {"label": self.label, "note": self.note}


NO_MARK: Final = Mark()


def read_marks(rollouts: Path) -> dict[RolloutKey, Mark]:
    """The marks of a run by rollout; none if nobody has marked anything."""
    try:
        lines = RunFiles.of(rollouts).marks.read_bytes().splitlines()
    except FileNotFoundError:
        return {}
    marks: dict[RolloutKey, Mark] = {}
    for line in lines:
        try:
            given = decode(line)
            key = RolloutKey(int(given["task"]), int(given["rollout"]))
        except (ValueError, KeyError, TypeError):
            continue
        marks[key] = Mark(*(_text(given, name) for name in Mark._fields))
    return {key: mark for key, mark in marks.items() if mark.label or mark.note}


def _text(given: Mapping[str, Any], name: str) -> str | None:
    value = given.get(name)
    return value if isinstance(value, str) and value else None


def mark_of(marks: Mapping[RolloutKey, Mark], record: Record) -> Mark:
    """The mark of a record, or an empty one."""
    key = record.key if marks else None
    return NO_MARK if key is None else marks.get(key, NO_MARK)


def append_mark(rollouts: Path, key: RolloutKey, mark: Mark) -> Mark:
    """Save a mark; an empty one takes back the one before. Returns it with its time."""
    label, note = (mark.label or "").strip(), (mark.note or "").strip()
    if len(label) > LONGEST_LABEL or len(note) > LONGEST_NOTE:
        raise ConfigError(
            f"the label has {len(label)} characters and the note {len(note)}",
            hint=f"a label has at most {LONGEST_LABEL}, a note {LONGEST_NOTE}",
        )
    saved = Mark(label or None, note or None, mark.by, datetime.now(UTC).isoformat(timespec="seconds"))
    line = encode({"task": key.task, "rollout": key.rollout, **saved._asdict()}) + b"\n"
    path = RunFiles.of(rollouts).marks
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        os.write(descriptor, b"\n" * torn + line)
    finally:
        os.close(descriptor)
    return saved
