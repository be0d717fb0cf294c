"""Reads ``<stem>_steps.jsonl``, which has one line for each attempt at a rollout, some lines at a time.

Torn or foreign lines are skipped and counted. The file is optional, so a missing file reads as an empty one. Whoever
only adds up times gets ``StepTimings``, in which calls and numbers stay text: that costs a fraction of making steps.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from nemo_gym.schemas.rows import RolloutKey
from nemo_gym.steps.record import COMPLETED, NAMES, Clock, RecordHead, RolloutSteps, StepNote, from_line, to_line

BLOCK_BYTES: Final = 256 * 1024  # what is made of so many still fits into the processor's cache


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

    def timings(self) -> Iterator[list["StepTimings"]]:
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


# ---- only the times ------------------------------------------------------------------------------------------------
class StepTimings(RecordHead, gc=False, kw_only=True):
    """The calls and numbers of all steps of one attempt, as they were written."""

    clock_ns: Clock = 0
    calls: msgspec.Raw
    numbers: msgspec.Raw
    notes: list[StepNote] = msgspec.field(default_factory=list)


_decode_timings: Final = msgspec.json.Decoder(StepTimings).decode
_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)


def timings_of(line: bytes) -> StepTimings | None:
    """The times in a line, or None if it is not a record of steps. Impossible values are dropped."""
    try:
        return _decode_timings(line)
    except _UNREADABLE:
        return repaired(line)


def timings_of_all(lines: Sequence[bytes]) -> list[StepTimings]:
    """The times in those lines that are records of steps."""
    try:
        return list(map(_decode_timings, lines))  # nothing but decoding: a line of Python for each would take as long
    except _UNREADABLE:
        return [found for line in lines if (found := timings_of(line)) is not None]


def repaired(line: bytes) -> StepTimings | None:
    """The times in a line of an earlier version, or in one with impossible values."""
    record = from_line(line)
    return None if record is None else _decode_timings(to_line(record))


# ---- only the key --------------------------------------------------------------------------------------------------
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


class _Key(msgspec.Struct, gc=False, rename=NAMES):
    task: int
    rollout: int


_look_at_key = msgspec.json.Decoder(_Key).decode


def key_of(line: bytes) -> RolloutKey | None:
    """The rollout that a line of any file of a run belongs to; None if it does not say."""
    try:
        key = _look_at_key(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return RolloutKey(key.task, key.rollout)
