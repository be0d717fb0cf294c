"""The index of ``<stem>_steps.jsonl``: where each attempt's steps are, and their totals, updated as the file grows.

The index is built in memory, a part of the file at a time. It is not stored on disk, because reading steps costs far
less than indexing rollouts. Each line is read once, for its position and for the totals of the run. An incomplete last
line is left for later; a file that was replaced or truncated is read again from the start; lines without steps are
counted. The file is optional: everything else works without it.
"""

import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import BinaryIO, Final, NamedTuple

import numpy as np

from nemo_gym.metrics.table import Floats, Ints
from nemo_gym.schemas.rows import RolloutKey
from nemo_gym.steps.rollout_steps import RolloutSteps, from_line
from nemo_gym.steps.summary import StepTimes, TimeSummary
from nemo_gym.steps.totals import TimeTotals
from nemo_gym.view.index.parsing import Fingerprint, file_fingerprint, whole_lines

STEP_BYTES: Final = 4 << 20  # of the file that are read at a time, so that readers do not wait long
_LARGEST: Final = 2**62  # task or rollout index; larger ones would not fit into a column


class StepsState(NamedTuple):
    """How far the file has been read. ``generation`` changes when reading starts again."""

    exists: bool
    generation: int
    attempts: int
    unreadable: int
    position: int
    bytes: int
    torn: bool = False  # whether an incomplete last line is all that is left to read


class AttemptColumns(NamedTuple):
    """All attempts in the order of the file, as columns."""

    task: Ints
    rollout: Ints
    outcome: Ints  # index into the names
    agent: Ints
    started_at: Floats
    duration: Floats
    names: list[str]  # of outcomes and agents

    def __len__(self) -> int:
        return len(self.task)

    def of(self, key: RolloutKey) -> Ints:
        return np.flatnonzero((self.task == key.task) & (self.rollout == key.rollout))


class RunTotals(NamedTuple):
    """Where the time of the attempts went, in total and by server."""

    summary: TimeSummary
    servers: tuple[StepTimes, ...]


class _Lines:
    """What is remembered about each line."""

    def __init__(self) -> None:
        self.offsets, self.lengths = array("q"), array("q")
        self.tasks, self.rollouts = array("q"), array("q")
        self.outcomes, self.agents = array("q"), array("q")
        self.starts, self.durations = array("d"), array("d")
        self.names: dict[str, int] = {}
        self.totals = TimeTotals()
        self.position = 0
        self.unreadable = 0
        self.seen: Fingerprint | None = None

    def add(self, line: bytes, offset: int) -> None:
        record = from_line(line)
        if record is None or abs(record.task) >= _LARGEST or abs(record.rollout) >= _LARGEST:
            self.unreadable += 1
            return
        self.offsets.append(offset)
        self.lengths.append(len(line))
        self.tasks.append(record.task)
        self.rollouts.append(record.rollout)
        self.outcomes.append(self.names.setdefault(record.outcome, len(self.names)))
        self.agents.append(self.names.setdefault(record.agent, len(self.names)))
        self.starts.append(record.started_at)
        self.durations.append(record.duration)
        self.totals.add(record)

    def attempts(self) -> AttemptColumns:
        return AttemptColumns(
            task=np.array(self.tasks, np.int64),
            rollout=np.array(self.rollouts, np.int64),
            outcome=np.array(self.outcomes, np.int64),
            agent=np.array(self.agents, np.int64),
            started_at=np.array(self.starts, np.float64),
            duration=np.array(self.durations, np.float64),
            names=list(self.names),
        )


class StepsIndex:
    """The index of one run. Only one thread may call ``refresh``; everything else may be called from any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = Lock()
        self._lines = _Lines()
        self._looked: tuple[int, int, int] | None = None  # the state of the file when there was last nothing to read
        self._attempts: tuple[StepsState, AttemptColumns] | None = None
        self._totals: tuple[StepsState, RunTotals] | None = None
        self.state = StepsState(False, 0, 0, 0, 0, 0)

    def refresh(self, budget: int = STEP_BYTES) -> bool:
        """Read some more lines; False if there were none."""
        try:
            file = self.path.open("rb")
        except OSError:
            return self._forget() if self.state.exists else False
        with file:
            status = os.fstat(file.fileno())
            look = (status.st_ino, status.st_size, status.st_mtime_ns)
            if look == self._looked:
                return False
            with self._lock:
                before = self.state
                self._read(file, status.st_size, budget)
        if self.state == before:
            self._looked = look
        return self.state != before

    def _read(self, file: BinaryIO, size: int, budget: int) -> None:
        lines, generation = self._lines, self.state.generation
        if lines.seen is not None and (size < lines.position or file_fingerprint(file, lines.position) != lines.seen):
            self._lines = lines = _Lines()
            generation += 1
        length = whole_lines(file, lines.position, budget)
        offset = lines.position
        for line in os.pread(file.fileno(), length, lines.position).split(b"\n") if length else ():
            if line and not line.isspace():
                lines.add(line, offset)
            offset += len(line) + 1
        lines.position += length
        lines.seen = file_fingerprint(file, lines.position)
        torn = not length and lines.position < size
        self.state = StepsState(True, generation, len(lines.offsets), lines.unreadable, lines.position, size, torn)

    def _forget(self) -> bool:
        with self._lock:
            self._lines, self._looked = _Lines(), None
            self.state = StepsState(False, self.state.generation + 1, 0, 0, 0, 0)
        return True

    # ---- reading ---------------------------------------------------------------------------------------------------

    def attempts(self) -> AttemptColumns:
        """A copy of the columns of all attempts."""
        with self._lock:
            if self._attempts is None or self._attempts[0] != self.state:
                self._attempts = (self.state, self._lines.attempts())
            return self._attempts[1]

    def totals(self) -> RunTotals:
        """The totals of all attempts so far."""
        with self._lock:
            if self._totals is None or self._totals[0] != self.state:
                totals = self._lines.totals
                found = RunTotals(totals.summary(skipped=self.state.unreadable), totals.servers())
                self._totals = (self.state, found)
            return self._totals[1]

    def totals_of(self, numbers: Ints) -> RunTotals:
        totals = TimeTotals()
        for attempt in self.records(numbers):
            totals.add(attempt)
        return RunTotals(totals.summary(), totals.servers())

    def records(self, numbers: Ints) -> Iterator[RolloutSteps]:
        """The steps of some attempts; attempts that are no longer in the file are left out."""
        with self._lock:
            lines = self._lines
            known = (number for number in numbers.tolist() if number < len(lines.offsets))
            places = [(lines.offsets[number], lines.lengths[number]) for number in known]
        try:
            file = self.path.open("rb")
        except OSError:
            return
        with file:
            for offset, length in places:
                record = from_line(os.pread(file.fileno(), length, offset))
                if record is not None:
                    yield record
