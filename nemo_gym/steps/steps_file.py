"""Reads ``<stem>_steps.jsonl``, which has one line for each attempt at a rollout.

Torn or foreign lines are skipped and counted. The file is optional, so a missing file reads as an empty one.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from nemo_gym.schemas.rows import RolloutKey
from nemo_gym.steps.rollout_steps import COMPLETED, NAMES, RolloutSteps, from_line


class StepsReading:
    """Iterates over the records of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.exists = path.is_file()
        self.skipped = 0  # lines so far that are not records

    def __iter__(self) -> Iterator[RolloutSteps]:
        self.skipped = 0
        if not self.exists:
            return
        with self.path.open("rb") as file:
            for line in file:
                record = from_line(line)
                if record is not None:
                    yield record
                else:
                    self.skipped += 1


def read_steps(path: Path) -> StepsReading:
    """The records of a steps file; ``skipped`` counts the lines that are not records."""
    return StepsReading(path)


# ---- only the key --------------------------------------------------------------------------------------------------
class _Head(msgspec.Struct, gc=False, rename=NAMES):
    task: int
    rollout: int
    steps: msgspec.Raw  # not parsed, because only the key is needed
    outcome: str = ""


_look = msgspec.json.Decoder(_Head).decode


class RecordedAttempt(NamedTuple):
    """The rollout that a line belongs to, and whether that attempt completed."""

    key: RolloutKey
    completed: bool


def identify(line: bytes) -> RecordedAttempt | None:
    """The attempt whose steps a line holds; None if the line is not a record of steps."""
    try:
        head = _look(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return RecordedAttempt(RolloutKey(head.task, head.rollout), head.outcome == COMPLETED)
