"""Reads ``<stem>_steps.jsonl``: one line for each attempt at a rollout, in the memory of one.

A line that is torn, or is something else, is skipped and counted. The file is a companion: whoever reads it can do
without it, so one that is not there has no lines.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from nemo_gym.io.files import BUFFER_BYTES
from nemo_gym.schemas.rows import RolloutKey
from nemo_gym.steps.record import COMPLETED, NAMES, RolloutSteps, from_line


class StepsReading:
    """The records of a file, one after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.exists = path.is_file()
        self.skipped = 0  # lines so far that are not records

    def __iter__(self) -> Iterator[RolloutSteps]:
        self.skipped = 0
        if not self.exists:
            return
        with self.path.open("rb", buffering=BUFFER_BYTES) as file:
            for line in file:
                record = from_line(line)
                if record is not None:
                    yield record
                else:
                    self.skipped += 1


def read_steps(path: Path) -> StepsReading:
    """The records of a steps file; ``skipped`` counts the lines that are none."""
    return StepsReading(path)


class _Head(msgspec.Struct, gc=False, rename=NAMES):
    task: int
    rollout: int
    steps: msgspec.Raw  # not taken apart
    outcome: str = ""


_look = msgspec.json.Decoder(_Head).decode


class RecordedAttempt(NamedTuple):
    """Whose steps a line holds."""

    key: RolloutKey
    completed: bool


def identify(line: bytes) -> RecordedAttempt | None:
    """Whose steps a line holds; None if it holds no steps."""
    try:
        head = _look(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return RecordedAttempt(RolloutKey(head.task, head.rollout), head.outcome == COMPLETED)
