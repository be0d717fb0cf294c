"""Reads ``<stem>_steps.jsonl``, which has one line for each attempt at a rollout, some lines at a time.

Torn or foreign lines are skipped and counted. The file is optional, so a missing file reads as an empty one.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from nemo_gym.schemas.rows import RolloutKey
from nemo_gym.steps.record import COMPLETED, NAMES, RolloutSteps, from_line
from nemo_gym.steps.timings import StepTimings, timings_of_all

BLOCK_BYTES: Final = 128 * 1024  # what is made of so many still fits into the processor's cache


class StepsReading:
    """Iterates over the records of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.exists = path.is_file()
        self.skipped = 0  # lines so far that are not records

    def __iter__(self) -> Iterator[RolloutSteps]:
        for lines in self._blocks():
            for line in lines:
                record = from_line(line)
                if record is not None:
                    yield record
                else:
                    self.skipped += 1

    def timings(self) -> Iterator[list[StepTimings]]:
        """Only the times of the records, some records at a time, which takes a fraction of the time."""
        for lines in self._blocks():
            found = timings_of_all(lines)
            self.skipped += len(lines) - len(found)
            yield found

    def _blocks(self) -> Iterator[list[bytes]]:
        self.skipped = 0
        if not self.exists:
            return
        with self.path.open("rb", buffering=BLOCK_BYTES) as file:
            while lines := file.readlines(BLOCK_BYTES):
                yield lines


def read_steps(path: Path) -> StepsReading:
    """The records of a steps file; ``skipped`` counts the lines that are not records."""
    return StepsReading(path)


_NOTHING: Final = msgspec.Raw(b"null")


class _Head(msgspec.Struct, gc=False, rename=NAMES):
    task: int
    rollout: int
    numbers: msgspec.Raw = _NOTHING  # not parsed, because only the key is needed
    steps: msgspec.Raw = _NOTHING  # of an earlier version
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
    if head.numbers is _NOTHING and head.steps is _NOTHING:
        return None
    return RecordedAttempt(RolloutKey(head.task, head.rollout), head.outcome == COMPLETED)
