"""Which files hold the shards of a collection, and what may be asked of them: what is known without reading numbers.

Where each rollout of some files is, and how to read it again: 24 bytes of memory each, whatever its size on disk.

Several rollout files as one: each rollout counted exactly once, in the order of their keys.

The files are read once, for their numbers; of the rollouts themselves only the positions are kept, and lines are read
again when they are needed. A line that cannot be read is reported and leaves the rest as it is, or is an error.
"""

import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from nemo_gym.errors import ConfigError
from nemo_gym.io.json import decode
from nemo_gym.io.lines import Block, line_ends, read_blocks
from nemo_gym.metrics.builder import BadLine, MetricsBuilder
from nemo_gym.metrics.fields import NO_INDEX
from nemo_gym.metrics.table import Ints, RolloutTable
from nemo_gym.rollouts.store.shard_files import OnConflict, ShardPlace, unreadable
from nemo_gym.schemas.rows import RolloutKey

logger = logging.getLogger(__name__)


_OPEN_FILES: Final = 64


class Positions:
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

    def place(self, row: int) -> ShardPlace:
        """Where a line is, for people."""
        (shard, _, _, lines), offset = self._find(row)
        return ShardPlace(self.paths[shard], int(lines[offset]))

    def read(self, rows: Iterable[int]) -> Iterator[bytes]:
        """The text of these lines, without line ends."""
        with _descriptors(self.paths) as descriptor:
            for row in rows:
                (shard, starts, stops, _), offset = self._find(row)
                start = int(starts[offset])
                yield os.pread(descriptor(shard), int(stops[offset]) - start, start).rstrip(b"\r\n")

    def _find(self, row: int) -> tuple[tuple[int, Ints, Ints, Ints], int]:
        chunk = bisect_right(self._firsts, row) - 1
        return self._chunks[chunk], row - self._firsts[chunk]


@contextmanager
def _descriptors(paths: Sequence[Path]) -> Iterator[Callable[[int], int]]:
    """Opens files by their number as they are needed, and keeps a few of them open."""
    opened: dict[int, int] = {}

    def descriptor(shard: int) -> int:
        if shard not in opened:
            if len(opened) >= _OPEN_FILES:
                os.close(opened.pop(next(iter(opened))))
            opened[shard] = os.open(paths[shard], os.O_RDONLY)
        return opened[shard]

    try:
        yield descriptor
    finally:
        for number in opened.values():
            os.close(number)


_SHOWN: Final = 10


class Shards:
    """Rollout files that together are one collection."""

    def __init__(
        self, paths: Sequence[Path], *, on_conflict: OnConflict = OnConflict.ERROR, strict: bool = True
    ) -> None:
        self.paths = paths
        self.unreadable: list[tuple[ShardPlace, str]] = []
        self.repeated = 0  # rollouts that were left out because they are there already
        self._builder = MetricsBuilder()
        self._positions = Positions(paths)
        for shard, path in enumerate(paths):
            self._read(shard, path)
        if strict and self.unreadable:
            raise unreadable(self.unreadable)
        self._tell_unreadable()
        self._settle(on_conflict)

    def __len__(self) -> int:
        return len(self._builder.rows())

    @property
    def agents(self) -> list[str]:
        """The agents that the rollouts name, sorted."""
        return self._builder.agents

    def table(self) -> RolloutTable:
        """The numbers of all rollouts."""
        return self._builder.table()

    def table_of(self, agent: str) -> RolloutTable:
        """The numbers of an agent's rollouts."""
        return self._builder.table_of(agent)

    def lines(self) -> Iterator[bytes]:
        """All rollouts in the order of their keys, as text; those without a key come last."""
        return self._positions.read(self._ordered(self._builder.rows()))

    def records(self) -> Iterator[dict[str, Any]]:
        """The same as objects."""
        return map(decode, self.lines())

    def records_of(self, agent: str) -> Iterator[dict[str, Any]]:
        """The rollouts of one agent, in the same order."""
        return map(decode, self._positions.read(self._ordered(self._builder.rows_of(agent))))

    def _read(self, shard: int, path: Path) -> None:
        offset = done = 0
        for block in read_blocks(path):
            stops = np.array(line_ends(block), np.int64)
            starts, lines, before = np.append(0, stops[:-1] + 1), len(stops), len(self._builder)
            bad = self._builder.add_block(block, first_line=done + 1, lines=lines)
            numbers = np.arange(done + 1, done + 1 + lines)
            if len(self._builder) - before < lines:
                kept = _readable(block, starts, stops, {line.line - done - 1 for line in bad})
                starts, stops, numbers = starts[kept], stops[kept], numbers[kept]
            self._positions.add(shard, starts + offset, stops + offset, numbers)
            self._note(path, bad)
            offset, done = offset + len(block), done + lines

    def _note(self, path: Path, bad: Sequence[BadLine]) -> None:
        self.unreadable += [(ShardPlace(path, line.line), line.reason) for line in bad]

    def _tell_unreadable(self) -> None:
        for place, reason in self.unreadable[:_SHOWN]:
            logger.warning("%s does not count: %s", place, reason)
        if self.unreadable:
            logger.warning("%d lines could not be read; +strict=true makes that an error", len(self.unreadable))

    # ---- each rollout once ------------------------------------------------------------------------------------------

    def _settle(self, on_conflict: OnConflict) -> None:
        """Leave out whatever is there already."""
        task, rollout = self._builder.keys()
        keyed = np.flatnonzero(rollout != NO_INDEX)
        order = keyed[np.lexsort((keyed, rollout[keyed], task[keyed]))]
        first, second = order[:-1], order[1:]
        again = np.flatnonzero((task[first] == task[second]) & (rollout[first] == rollout[second]))
        out: set[int] = set()
        conflicts = 0
        kept = -1
        for place in again.tolist():
            earlier, later = int(order[place]), int(order[place + 1])
            earlier = kept if earlier in out or earlier == kept else earlier
            kept = earlier
            if self._differ(earlier, later):
                conflicts += 1
                if on_conflict is OnConflict.ERROR:
                    raise self._conflict(RolloutKey(int(task[later]), int(rollout[later])), earlier, later)
                kept = later if on_conflict is OnConflict.LAST else earlier
            out.add(later if kept == earlier else earlier)
        self._builder.leave_out(sorted(out))
        self.repeated = len(out)
        if out:
            differ = f"; {conflicts} of them differ, and the {on_conflict} one counts" if conflicts else ""
            logger.info("%d rollouts are there more than once and count once%s", len(out), differ)

    def _differ(self, first: int, second: int) -> bool:
        one, other = self._positions.read([first, second])
        return one != other and decode(one) != decode(other)

    def _conflict(self, key: RolloutKey, first: int, second: int) -> ConfigError:
        return ConfigError(
            f"task {key.task} rollout {key.rollout} is there twice, and differs: "
            f"{self._positions.place(first)} and {self._positions.place(second)}",
            hint="give each shard its own _ng_task_index values, leave one of the files out, or choose with "
            "+on_conflict=first or +on_conflict=last",
        )

    def _ordered(self, rows: Ints) -> Iterator[int]:
        task, rollout = self._builder.keys()
        keyless = rollout[rows] == NO_INDEX
        return iter(rows[np.lexsort((rows, rollout[rows], task[rows], keyless))].tolist())


def _readable(block: Block, starts: Ints, stops: Ints, bad: set[int]) -> list[int]:
    """Which lines of a block hold a rollout: those that are neither bad nor blank."""
    spans = zip(starts.tolist(), stops.tolist(), strict=True)
    return [i for i, (start, stop) in enumerate(spans) if i not in bad and bytes(block[start:stop]).strip()]
