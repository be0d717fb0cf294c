"""Reads a record without making its steps, which costs a fraction: its calls and numbers stay text.

Most rollouts of a run make one of a few sequences of calls, so whoever adds them up works out each
sequence once.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from nemo_gym.steps.record import Clock, RecordHead, StepNote, from_line, to_line


class StepTimings(RecordHead, gc=False, kw_only=True):
    """The calls and numbers of all steps of one attempt, as they were written."""

    clock_ns: Clock = 0
    calls: msgspec.Raw
    numbers: msgspec.Raw
    notes: list[StepNote] = msgspec.field(default_factory=list)


_decode: Final = msgspec.json.Decoder(StepTimings).decode
_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)


def timings_of(line: bytes) -> StepTimings | None:
    """The times in a line, or None if it is not a record of steps. Impossible values are dropped."""
    try:
        return _decode(line)
    except _UNREADABLE:
        return repaired(line)


def timings_of_all(lines: Sequence[bytes]) -> list[StepTimings]:
    """The times in those lines that are records of steps."""
    try:
        return list(map(_decode, lines))  # nothing but decoding: a line of Python for each would take as long
    except _UNREADABLE:
        return [found for line in lines if (found := timings_of(line)) is not None]


def repaired(line: bytes) -> StepTimings | None:
    """The times in a line of an earlier version, or in one with impossible values."""
    record = from_line(line)
    return None if record is None else _decode(to_line(record))
