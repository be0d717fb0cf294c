"""Adds up where the time of a run went, in one pass over its steps, a block of attempts at a time.

Numbers are added up as columns, which costs a tenth of a loop over objects. A few numbers are kept for each step.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from nemo_gym.steps.record import (
    COMPLETED,
    LONGEST_S,
    MOST_NS,
    NUMBERS,
    RolloutSteps,
    StepNote,
    StepNumbers,
    numbers_written,
    to_line,
)
from nemo_gym.steps.steps_file import StepsReading, StepTimings, timings_of_all
from nemo_gym.steps.summary import Floats, Spread, StepTimes, TimeSummary, attempts_at_once, pressure

Ints = NDArray[np.int64]
_BLOCK: Final = 128  # attempts, of those that are added one by one
_BLOCKS: Final = 64  # that are added up at once
_MOST_SEQUENCES: Final = 4096  # that are remembered
_NANO: Final = 1e-9
_LONGEST_NS: Final = LONGEST_S * 1e9
_CALLS, _NUMBERS = attrgetter("calls"), attrgetter("numbers")
_START, _END, _STATUS, _TOKENS_OUT = map(StepNumbers._fields.index, ("start", "end", "status", "tokens_out"))
_CLOCK, _BEGAN, _TAKEN = map(attrgetter, ("clock_ns", "started_at", "duration"))


class _Sequence(NamedTuple):
    """The calls of an attempt."""

    which: Ints  # the kind of call; calls of a kind, to one server or of one tool, have one number
    sizes: Ints  # how many numbers are written of each


class _Sequences(dict[bytes, _Sequence]):
    """Sequences of calls by their JSON: most attempts make one of a few."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: dict[tuple[str, str, str], int] = {}

    def __missing__(self, text: bytes) -> _Sequence:
        numbers, calls = self.numbers, orjson.loads(text)
        which = [numbers.setdefault((kind, server, tool), len(numbers)) for kind, server, _, tool, *_ in calls]
        sizes = [numbers_written(kind) for kind, *_ in calls]
        found = _Sequence(np.array(which, int), np.array(sizes, int))
        if len(self) < _MOST_SEQUENCES:
            self[text] = found
        return found


class _Block:
    """Some attempts, reduced to the columns that are needed later."""

    def __init__(self, attempts: list[StepTimings], sequences: _Sequences) -> None:
        made = [*map(sequences.__getitem__, map(bytes, map(_CALLS, attempts)))]
        calls, sizes_of = zip(*made, strict=True)
        which, sizes = np.concatenate(calls), np.concatenate(sizes_of)
        self.counts = np.array([*map(len, calls)])
        rows = _numbers_in(attempts) if self.counts.all() else None
        if rows is None or len(rows) != sizes.sum():
            self.counts, which, rows = _fitted(attempts, made)
            sizes = np.full(len(which), NUMBERS)
        first = np.cumsum(sizes) - sizes
        self.which = which
        self.starts, self.ends, self.status = rows[first + _START], rows[first + _END], rows[first + _STATUS]
        self.tokens = np.zeros(len(which), np.int64)
        has_tokens = sizes == NUMBERS
        self.tokens[has_tokens] = rows[first[has_tokens] + _TOKENS_OUT]
        self.clocks = np.fromiter(map(_CLOCK, attempts), np.int64, len(attempts))
        self.began, self.taken = (np.fromiter(map(of, attempts), float, len(attempts)) for of in (_BEGAN, _TAKEN))
        self.notes = [(place, attempt.notes) for place, attempt in enumerate(attempts) if attempt.notes]


def _numbers_in(attempts: list[StepTimings]) -> Ints | None:
    """All numbers of some attempts, if they are as we write them. Making them one by one would take thrice as long."""
    text = b",".join(map(_NUMBERS, attempts)).translate(None, b"[]")
    try:
        numbers = np.fromstring(text, np.int64, sep=",")
    except (ValueError, DeprecationWarning):  # not only numbers; older versions of numpy merely warn, and stop there
        return None
    return numbers if len(numbers) and numbers.min() >= 0 else None


def _fitted(attempts: list[StepTimings], made: list[_Sequence]) -> tuple[Ints, Ints, Ints]:
    """The number of calls of each attempt, the calls, and eight numbers for each, of whatever lines these are.

    Earlier versions wrote eight numbers for every call. What has more calls than numbers, or the other way round, is
    shortened; zero takes the place of what is not a number as we would write it.
    """
    counts, which, rows = [], [np.zeros(0, int)], []
    for attempt, sequence in zip(attempts, made, strict=True):
        given = [row for row in orjson.loads(bytes(attempt.numbers)) if isinstance(row, list)][: len(sequence.which)]
        counts.append(len(given))
        which.append(sequence.which[: len(given)])
        rows += [(row + [0] * NUMBERS)[:NUMBERS] for row in given]
    numbers = [number if type(number) is int and 0 < number <= MOST_NS else 0 for row in rows for number in row]
    return np.array(counts, int), np.concatenate(which), np.array(numbers, np.int64)


class _StepTotals:
    """The totals of each kind of call."""

    def __init__(self) -> None:
        self._sequences = _Sequences()
        self._blocks: list[_Block] = []
        self._attempts: list[tuple[Floats, Floats]] = []
        self._which: list[Ints] = []
        self._starts: list[Floats] = []
        self._durations: list[Floats] = []
        self._waits: list[Floats] = []
        self._own_s = self._failed = self._tokens_out = np.zeros(0)
        self._waited: dict[int, dict[str, float]] = {}
        self._retries: dict[int, Counter[str]] = {}
        self.other_s = 0.0

    def add(self, attempts: list[StepTimings]) -> None:
        """Add the steps of some attempts."""
        self._blocks.append(_Block(attempts, self._sequences))
        if len(self._blocks) >= _BLOCKS:
            self._settle()

    def _settle(self) -> None:
        """Add up the blocks that wait for it: for so many at once, a column costs little more than for one."""
        blocks, self._blocks = self._blocks, []
        if not blocks:
            return
        counts, starts, ends, status, tokens, which, clocks, began, taken = (
            np.concatenate([getattr(block, name) for block in blocks])
            for name in ("counts", "starts", "ends", "status", "tokens", "which", "clocks", "began", "taken")
        )
        rows = np.repeat(np.arange(len(counts)), counts)
        lengths = np.clip(ends - starts, 0, _LONGEST_NS) * _NANO
        begun = began[rows] + np.clip(starts - clocks[rows], 0, _LONGEST_NS) * _NANO
        own, outermost, waits = lengths, lengths, np.zeros(len(lengths))
        if any(block.notes for block in blocks):
            own, outermost, waits = self._without_waits_and_inner_calls(blocks, lengths, which)
        covered = np.bincount(rows, outermost, minlength=len(counts))
        self.other_s += float(np.maximum(0.0, taken - covered).sum())
        kinds = len(self._sequences.numbers)
        self._own_s = _added(self._own_s, np.bincount(which, np.maximum(0.0, own), minlength=kinds))
        self._failed = _added(self._failed, np.bincount(which[(status >= 400) | (status == 0)], minlength=kinds))
        self._tokens_out = _added(self._tokens_out, np.bincount(which, tokens, minlength=kinds))
        self._which.append(which)
        self._starts.append(begun)
        self._durations.append(lengths)
        self._waits.append(waits)
        self._attempts.append((began, taken))

    def attempts(self) -> tuple[Floats, Floats]:
        """When each attempt began, and how long it took."""
        self._settle()
        nothing = np.zeros(0)
        began, taken = zip((nothing, nothing), *self._attempts, strict=True)
        return np.concatenate(began), np.concatenate(taken)

    def _without_waits_and_inner_calls(
        self, blocks: list[_Block], lengths: Floats, which: Ints
    ) -> tuple[Floats, Floats, Floats]:
        """The own time of each step, the time of steps without a parent, and the time spent waiting."""
        own, outermost, waits = lengths.copy(), lengths.copy(), np.zeros(len(lengths))
        before = 0
        for block in blocks:
            firsts = before + np.cumsum(block.counts) - block.counts
            for attempt, notes in block.notes:
                first, count = int(firsts[attempt]), int(block.counts[attempt])
                for note in notes:
                    if 0 <= note.step < count:
                        place = first + note.step
                        if note.parent is not None and note.parent < note.step:
                            own[first + note.parent] -= lengths[place]
                            outermost[place] = 0.0
                        waits[place] = note.waited * _NANO
                        self._add_note(note, int(which[place]), float(lengths[place]))
            before += int(block.counts.sum())
        return own - waits, outermost, np.minimum(waits, lengths)

    def _add_note(self, note: StepNote, which: int, length: float) -> None:
        if note.waited:
            causes, cause = self._waited.setdefault(which, {}), note.waited_for or "call"
            causes[cause] = causes.get(cause, 0.0) + min(note.waited * _NANO, length)
        if note.retries:
            self._retries.setdefault(which, Counter()).update(retry.failed for retry in note.retries)

    def times(self, *, by_server: bool = False) -> tuple[StepTimes, ...]:
        """The times of each kind of call, or of all calls to each server; the largest share first."""
        self._settle()
        if not any(map(len, self._which)):
            return ()
        self._which, self._starts = [np.concatenate(self._which)], [np.concatenate(self._starts)]
        self._durations, self._waits = [np.concatenate(self._durations)], [np.concatenate(self._waits)]
        groups: dict[tuple[str, str, str], list[int]] = {}
        for key, number in self._sequences.numbers.items():
            groups.setdefault(("", key[1], "") if by_server else key, []).append(number)
        group_of = np.zeros(len(self._sequences.numbers), np.int64)
        for group, numbers in enumerate(groups.values()):
            group_of[numbers] = group
        grouped = group_of[self._which[0]]
        found = []
        for group, (key, numbers) in enumerate(groups.items()):
            mine = grouped == group
            if mine.any():
                columns = (column[mine] for [column] in (self._starts, self._durations, self._waits))
                found.append(self._times(key, numbers, *columns))
        return tuple(sorted(found, key=lambda times: times.own_s + sum(times.waited.values()), reverse=True))

    def _times(
        self, key: tuple[str, str, str], numbers: list[int], starts: Floats, durations: Floats, waits: Floats
    ) -> StepTimes:
        waited: dict[str, float] = {}
        retries: Counter[str] = Counter()
        for number in numbers:
            retries.update(self._retries.get(number, {}))
            for cause, seconds in self._waited.get(number, {}).items():
                waited[cause] = waited.get(cause, 0.0) + seconds
        return StepTimes(
            kind=key[0],
            server=key[1],
            tool=key[2],
            count=len(starts),
            failed=int(self._failed[numbers].sum()),
            own_s=float(self._own_s[numbers].sum()),
            waited=waited,
            retries=dict(retries),
            spread=Spread.of(durations),
            tokens_out=int(self._tokens_out[numbers].sum()),
            # Waiting on our side says nothing about the server, and usually comes first.
            **pressure(starts + waits, durations - waits),
        )


def _added(before: Floats, more: NDArray[Any]) -> Floats:
    """The sum of two columns; the first may be shorter, because new kinds of calls appear during a run."""
    longer: Floats = np.pad(before, (0, len(more) - len(before))) + more
    return longer


class TimeTotals:
    """Adds up the steps of a run."""

    def __init__(self) -> None:
        self._steps = _StepTotals()
        self._failures: Counter[str] = Counter()
        self._failed_s = 0.0
        self._single: list[StepTimings] = []  # waiting to be added

    def add(self, attempt: StepTimings) -> None:
        """Add one attempt."""
        self._single.append(attempt)
        if len(self._single) >= _BLOCK:
            self._add_single()

    def add_all(self, attempts: list[StepTimings]) -> None:
        """Add some attempts at once."""
        for attempt in attempts:
            if attempt.outcome != COMPLETED:
                self._failures[attempt.outcome] += 1
                self._failed_s += attempt.duration
        if attempts:
            self._steps.add(attempts)

    def _add_single(self) -> None:
        attempts, self._single = self._single, []
        self.add_all(attempts)

    def summary(self, *, skipped: int = 0) -> TimeSummary:
        """The summary of the attempts added so far."""
        self._add_single()
        begun, taken = self._steps.attempts()
        return TimeSummary(
            attempts=len(begun),
            completed=len(begun) - self._failures.total(),
            failures=dict(self._failures),
            failed_s=self._failed_s,
            seconds=float(taken.sum()),
            other_s=self._steps.other_s,
            spread=Spread.of(taken),
            steps=self._steps.times(),
            skipped=skipped,
            **attempts_at_once(begun, taken),
        )

    def servers(self) -> tuple[StepTimes, ...]:
        """The times of all calls to each server, regardless of their kind; the largest share first."""
        self._add_single()
        return self._steps.times(by_server=True)


def summarise(records: StepsReading | Sequence[RolloutSteps]) -> TimeSummary:
    """Add up the steps of a run."""
    totals = TimeTotals()
    blocks: Iterable[list[StepTimings]]
    if isinstance(records, StepsReading):
        blocks = records.timings()
    else:
        blocks = [timings_of_all([to_line(record) for record in records])]
    for attempts in blocks:
        totals.add_all(attempts)
    return totals.summary(skipped=getattr(records, "skipped", 0))
