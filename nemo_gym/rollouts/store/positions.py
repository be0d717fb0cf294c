"""Where each rollout of some files is, and how to read it again: 24 bytes of memory each, whatever its size on disk."""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nemo_gym.rollouts.store.shard_files import Place

Ints = NDArray[np.int64]

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

    def place(self, row: int) -> Place:
        """Where a line is, for people."""
        (shard, _, _, lines), offset = self._find(row)
        return Place(self.paths[shard], int(lines[offset]))

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
