"""Several rollout files as one: each rollout counted exactly once, in the order of their keys.

The files are read once, for their numbers. Of the rollouts themselves only the positions are kept, 24 bytes each; lines
are read again when they are needed. A line that cannot be read is reported and skipped, or is an error.
"""

import logging
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import RawIOBase
from pathlib import Path
from typing import Final

import numpy as np

from nemo_gym.errors import ConfigError, counted
from nemo_gym.io.compressed import open_raw_lines, read_span
from nemo_gym.io.files import RunFiles, run_stem
from nemo_gym.io.json import Block, decode, line_ends, read_blocks
from nemo_gym.metrics.builder import BadLine, MetricsBuilder
from nemo_gym.metrics.table import Ints, RolloutTable
from nemo_gym.rollouts.store.saved_lines import LinePlace, OnConflict, encode_keyed, key_in_line, read_lines, unreadable
from nemo_gym.schemas.record import NO_INDEX, Record
from nemo_gym.schemas.rows import RolloutKey

logger = logging.getLogger(__name__)


_OPEN_FILES: Final = 64


class LinePositions:
    """The lines of some files, numbered in the order in which they were added."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths
        self._chunks: list[tuple[int, Ints, Ints, Ints]] = []
        self._firsts: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, shard: int, starts: Ints, stops: Ints, lines: Ints) -> None:
        """Add lines of one file: where they start, where they stop, their numbers."""
        if len(starts):
            self._firsts.append(self._count)
            self._chunks.append((shard, starts, stops, lines))
            self._count += len(starts)

    def place(self, row: int) -> LinePlace:
        """Where a line is, for messages."""
        (shard, _, _, lines), offset = self._find(row)
        return LinePlace(self.paths[shard], int(lines[offset]))

    def read(self, rows: Iterable[int]) -> Iterator[bytes]:
        """The text of these lines, without line ends."""
        with _opened(self.paths) as file:
            for row in rows:
                (shard, starts, stops, _), offset = self._find(row)
                start = int(starts[offset])
                yield read_span(file(shard), int(stops[offset]) - start, start).rstrip(b"\r\n")

    def shards(self) -> Ints:
        """The number of the file that each line is in."""
        numbers = [np.full(len(starts), shard) for shard, starts, _, _ in self._chunks]
        return np.concatenate(numbers or [np.zeros(0, np.int64)])

    def _find(self, row: int) -> tuple[tuple[int, Ints, Ints, Ints], int]:
        chunk = bisect_right(self._firsts, row) - 1
        return self._chunks[chunk], row - self._firsts[chunk]


@contextmanager
def _opened(paths: Sequence[Path]) -> Iterator[Callable[[int], RawIOBase]]:
    """Opens files by their number as they are needed, and keeps a few of them open."""
    opened: dict[int, RawIOBase] = {}

    def file(shard: int) -> RawIOBase:
        if shard not in opened:
            if len(opened) >= _OPEN_FILES:
                opened.pop(next(iter(opened))).close()
            opened[shard] = open_raw_lines(paths[shard])
        return opened[shard]

    try:
        yield file
    finally:
        for each in opened.values():
            each.close()


_SHOWN: Final = 10


class Shards:
    """Rollout files that together are one collection."""

    def __init__(
        self, paths: Sequence[Path], *, on_conflict: OnConflict = OnConflict.ERROR, strict: bool = True
    ) -> None:
        self.paths = paths
        self.unreadable: list[tuple[LinePlace, str]] = []
        self.repeated = 0  # rollouts that were left out because they occurred before
        self._builder = MetricsBuilder()
        self._positions = LinePositions(paths)
        for shard, path in enumerate(paths):
            self._read(shard, path)
        if strict and self.unreadable:
            raise unreadable(self.unreadable)
        self._warn_unreadable()
        if on_conflict is OnConflict.ERROR and _seeds_repeat(paths) and self._is_each_seed_whole():
            on_conflict = OnConflict.REPEAT
        self._repeats = _Repeats(self._tasks_by_shard(), self._stride()) if on_conflict is OnConflict.REPEAT else None
        if self._repeats is not None:
            self._renumber(self._repeats)
            on_conflict = OnConflict.ERROR  # after the shift, a key can occur twice only within one file
        self._settle(on_conflict)

    def __len__(self) -> int:
        return len(self._builder.rows())

    @property
    def agents(self) -> list[str]:
        """The agents that the rollouts name, sorted."""
        return self._builder.agents

    def table(self) -> RolloutTable:
        return self._builder.table()

    def table_of(self, agent: str) -> RolloutTable:
        """The numbers of an agent's rollouts."""
        return self._builder.table_of(agent)

    def lines(self) -> Iterator[bytes]:
        """All rollouts in the order of their keys, as text; those without a key come last."""
        return self._texts(self._builder.rows())

    def records_of(self, agent: str) -> Iterator[Record]:
        """The rollouts of one agent, in the same order."""
        return map(Record.parse, self._texts(self._builder.rows_of(agent)))

    def keys(self) -> set[RolloutKey]:
        rows, (task, rollout) = self._builder.rows(), self._builder.keys()
        pairs = zip(task[rows].tolist(), rollout[rows].tolist(), strict=True)
        return {RolloutKey(*pair) for pair in pairs if pair[1] != NO_INDEX}

    def shift(self, shard: int, task: Ints) -> Ints:
        """What is added to the rollout indices of these tasks in a file, because earlier files have them too."""
        return np.zeros(len(task), np.int64) if self._repeats is None else self._repeats.shift(shard, task)

    def _texts(self, rows: Ints) -> Iterator[bytes]:
        order = list(self._ordered(rows))
        texts = self._positions.read(order)
        if self._repeats is None:
            yield from texts
            return
        task, rollout = self._builder.keys()
        for row, text in zip(order, texts, strict=True):
            key = RolloutKey(int(task[row]), int(rollout[row]))
            yield text if key.rollout == NO_INDEX else encode_keyed(key, Record.parse(text).fields)

    def _read(self, shard: int, path: Path) -> None:
        offset = done = 0
        for block in read_blocks(path):
            stops = np.array(line_ends(block), np.int64)
            starts, lines, before = np.append(0, stops[:-1] + 1), len(stops), len(self._builder)
            bad = self._builder.add_block(block, first_line=done + 1, lines=lines)
            numbers = np.arange(done + 1, done + 1 + lines)
            if len(self._builder) - before < lines:
                readable = _readable(block, starts, stops, {line.line - done - 1 for line in bad})
                starts, stops, numbers = starts[readable], stops[readable], numbers[readable]
            self._positions.add(shard, starts + offset, stops + offset, numbers)
            self._note(path, bad)
            offset, done = offset + len(block), done + lines

    def _note(self, path: Path, bad: Sequence[BadLine]) -> None:
        self.unreadable += [(LinePlace(path, line.line), line.reason) for line in bad]

    def _warn_unreadable(self) -> None:
        for place, reason in self.unreadable[:_SHOWN]:
            logger.warning("%s does not count: %s", place, reason)
        if self.unreadable:
            logger.warning("%d lines could not be read; +strict=true makes that an error", len(self.unreadable))

    # ---- further repeats --------------------------------------------------------------------------------------------

    def _tasks_by_shard(self) -> list[set[int]]:
        """The tasks of each file, planned or collected."""
        shards, (task, _) = self._positions.shards(), self._builder.keys()
        found = [set(task[shards == number].tolist()) for number in range(len(self.paths))]
        for tasks, path in zip(found, self.paths, strict=True):
            tasks.update(key.task for key in _planned(path))
        return found

    def _is_each_seed_whole(self) -> bool:
        """Whether no two files of the same seed have a task in common."""
        found: dict[str, set[int]] = {}
        for path, tasks in zip(self.paths, self._tasks_by_shard(), strict=True):
            earlier = found.setdefault(_seed_of(path), set())
            if earlier & tasks:
                return False
            earlier |= tasks
        return True

    def _stride(self) -> int:
        """More than any rollout index of any file, so that no two files share a key after the shift."""
        _, rollout = self._builder.keys()
        highest = int(rollout.max()) if len(rollout) else 0
        planned = max((key.rollout for path in self.paths for key in _planned(path)), default=0)
        return 1 + max(highest, planned)

    def _renumber(self, repeats: "_Repeats") -> None:
        shards, (task, rollout) = self._positions.shards(), self._builder.keys()
        shifted = rollout.copy()
        for number in range(len(self.paths)):
            rows = np.flatnonzero((shards == number) & (rollout != NO_INDEX))
            shifted[rows] += repeats.shift(number, task[rows])
        self._builder.renumber(shifted)

    # ---- each rollout once ------------------------------------------------------------------------------------------

    def _settle(self, on_conflict: OnConflict) -> None:
        """Leave out rollouts that occurred before."""
        task, rollout = self._builder.keys()
        keyed = np.flatnonzero(rollout != NO_INDEX)
        order = keyed[np.lexsort((keyed, rollout[keyed], task[keyed]))]
        first, second = order[:-1], order[1:]
        again = np.flatnonzero((task[first] == task[second]) & (rollout[first] == rollout[second]))
        out: set[int] = set()
        conflicts = 0
        chosen = -1  # of several rows with the same key, the one that counts so far
        for place in again.tolist():
            earlier, later = int(order[place]), int(order[place + 1])
            earlier = chosen if earlier in out or earlier == chosen else earlier
            chosen = earlier
            if self._differ(earlier, later):
                conflicts += 1
                if on_conflict is OnConflict.ERROR:
                    raise self._conflict(RolloutKey(int(task[later]), int(rollout[later])), earlier, later)
                chosen = later if on_conflict is OnConflict.LAST else earlier
            out.add(later if chosen == earlier else earlier)
        self._builder.leave_out(sorted(out))
        self.repeated = len(out)
        if out:
            differ = f"; {conflicts} of them differ, and the {on_conflict} one counts" if conflicts else ""
            logger.info("saved more than once, counted once: %s%s", counted(len(out), "rollout"), differ)

    def _differ(self, first: int, second: int) -> bool:
        one, other = self._positions.read([first, second])
        return one != other and decode(one) != decode(other)  # the same text needs no parsing

    def _conflict(self, key: RolloutKey, first: int, second: int) -> ConfigError:
        return ConfigError(
            f"task {key.task} rollout {key.rollout} occurs twice, with different content: "
            f"{self._positions.place(first)} and {self._positions.place(second)}",
            hint="if both are rollouts of the same task, as with several seeds, count them as further repeats with "
            "+on_conflict=repeat; otherwise choose with +on_conflict=first or last, or leave one of the files out",
        )

    def _ordered(self, rows: Ints) -> Iterator[int]:
        task, rollout = self._builder.keys()
        keyless = rollout[rows] == NO_INDEX
        return iter(rows[np.lexsort((rows, rollout[rows], task[rows], keyless))].tolist())


_SEED_AND_CHUNK: Final = re.compile(r"[-_]rs(\d+)(?:[-_]chunk\d+)?(?:-\d+-of-\d+)?$")


def _seed_of(path: Path) -> str:
    named = _SEED_AND_CHUNK.search(run_stem(path))
    return named[1] if named else ""


def _seeds_repeat(paths: Sequence[Path]) -> bool:
    """Whether the names of the files (``-rs<seed>``, ``-rs<seed>-chunk<n>``) say that they are of several seeds."""
    seeds = {_seed_of(path) for path in paths}
    return len(seeds) > 1 and "" not in seeds


def _planned(rollouts: Path) -> Iterator[RolloutKey]:
    plan = RunFiles.of(rollouts).plan
    for line in read_lines(plan) if plan.is_file() else ():
        if key := key_in_line(line.text):
            yield key


class _Repeats:
    """Which repeats of a task the rollouts of a file are, given all files that have the task."""

    def __init__(self, tasks_by_shard: Sequence[set[int]], stride: int) -> None:
        self._stride = stride
        self._rounds: list[dict[int, int]] = []
        seen: Counter[int] = Counter()
        for tasks in tasks_by_shard:
            self._rounds.append({task: seen[task] for task in tasks if seen[task]})
            seen.update(tasks)

    def shift(self, shard: int, task: Ints) -> Ints:
        """What is added to the rollout indices of these tasks."""
        rounds = self._rounds[shard]
        return np.array([self._stride * rounds.get(number, 0) for number in task.tolist()], np.int64)


def _readable(block: Block, starts: Ints, stops: Ints, bad: set[int]) -> list[int]:
    """Which lines of a block hold a rollout: those that are neither bad nor blank."""
    spans = zip(starts.tolist(), stops.tolist(), strict=True)
    return [i for i, (start, stop) in enumerate(spans) if i not in bad and bytes(block[start:stop]).strip()]
