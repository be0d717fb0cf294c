"""Reads only those columns of a record that are added up: a fraction of what it costs to read all of its steps.

The calls stay text. Most rollouts of a run make one of a few sequences of calls, so whoever reads them works out each
sequence once.
"""

from typing import Final

import msgspec

from nemo_gym.steps.record import Amount, Clock, RecordHead, TroubleColumns, from_line, to_line


class TimeColumns(msgspec.Struct, array_like=True, gc=False):
    """The first columns of a record; those after them are skipped."""

    calls: msgspec.Raw
    start: list[Clock]
    end: list[Clock]
    status: list[Amount]
    tokens_out: list[Amount]


class StepTimings(RecordHead, gc=False, kw_only=True):
    """The times of all steps of one attempt."""

    clock_ns: Clock = 0
    columns: TimeColumns
    troubles: TroubleColumns | None = None


_decode: Final = msgspec.json.Decoder(StepTimings).decode


def timings_of(line: bytes) -> StepTimings | None:
    """The times in a line, or None if it is not a record of steps. Impossible values are dropped."""
    try:
        timings = _decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _repaired(line)
    columns, troubles = timings.columns, timings.troubles
    size = len(columns.start)
    if not len(columns.end) == len(columns.status) == len(columns.tokens_out) == size:
        return _repaired(line)
    return timings if troubles is None or _fits(troubles, size) else _repaired(line)


def _fits(troubles: TroubleColumns, size: int) -> bool:
    lengths = {len(column) for column in msgspec.structs.astuple(troubles)}
    return lengths == {size} and all(parent is None or parent < index for index, parent in enumerate(troubles.parent))


def _repaired(line: bytes) -> StepTimings | None:
    """The times in a line of an earlier version, or in one with impossible values."""
    record = from_line(line)
    return None if record is None else _decode(to_line(record))
