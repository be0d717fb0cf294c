"""Builds the table of a run in one pass over its rollouts, keeping numbers only.

Rollouts come as records, as lines or as files, in any order and of any number of agents. A line that cannot be read is
reported with its number and the reason, and has no other effect.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from nemo_gym.io.json import Block, count_lines, read_blocks
from nemo_gym.metrics.decode import LineDecoder, ShapeLearner
from nemo_gym.metrics.table import Column, ColumnBuffer, Ints, RolloutTable, RowKeys, sort_order
from nemo_gym.schemas.record import NO_INDEX, REWARD, Record, as_number
from nemo_gym.schemas.transcript_counts import TOOL_CALLS, TURNS

Row = tuple[Any, ...]

_PACK_AT: Final = 4096  # rows held as Python objects
_RESHAPES: Final = 50  # after this many new shapes, a file is read in full: making decoders would cost more


class BadLine(NamedTuple):
    """A line that could not be read."""

    line: int
    reason: str


class MetricsBuilder:
    """Collects the numbers of rollouts and returns them as tables."""

    def __init__(self) -> None:
        self._top: dict[str, ColumnBuffer] = {}
        self._usage: dict[str, ColumnBuffer] = {}
        self._transcript = {TOOL_CALLS: ColumnBuffer(), TURNS: ColumnBuffer()}
        self._keys: list[tuple[Ints, Ints, Ints]] = []
        self._agents: dict[str | None, int] = {}
        self._hidden: defaultdict[str, set[int]] = defaultdict(set)
        self._odd_rewards: dict[int, Any] = {}
        self._pending: list[Row] = []
        self._packed = 0
        self._left_out: Ints = np.zeros(0, np.int64)
        self._masked: list[int] = []
        self._learner = ShapeLearner()
        self._decoder: LineDecoder | None = None
        self._reshapes = 0

    def __len__(self) -> int:
        return self._packed + len(self._pending)

    # ---- input ---------------------------------------------------------------------------------------------------

    def add(self, fields: Record | Mapping[str, Any]) -> None:
        """Add a rollout. One with an unusable index is a ``ValueError`` and is not added."""
        record = fields if isinstance(fields, Record) else Record(fields)
        task, rollout = record.task, record.rollout
        top, raw_usage = record.metrics, record.reported_usage
        usage = {name: number for name, value in raw_usage.items() if (number := as_number(value)) is not None}
        self._admit(self._top, top)
        self._admit(self._usage, usage)
        number = len(self)
        if record.is_masked:
            self._masked.append(number)
        # In statistics usage replaces a field of the same name, even where its value is not a number.
        for name in top.keys() & (raw_usage.keys() - usage.keys()):
            self._hidden[name].add(number)
        if REWARD in record.fields and REWARD not in top and not record.is_masked:
            self._odd_rewards[number] = record.fields[REWARD]
        numbers = (*map(top.get, self._top), *map(usage.get, self._usage))
        index = (task or 0, NO_INDEX if rollout is None else rollout)
        self._extend([(*index, record.agent, *numbers, *record.counts)])

    def add_line(self, line: bytes) -> bool:
        """Add a line of JSON; True if it has fields that no line before had.

        A line that is not a rollout is a ``ValueError`` and is not added.
        """
        rows = self._decode(line, 1)
        if rows is not None:
            self._extend(rows)
            return False
        record = Record.parse(line)
        self.add(record)
        is_new = self._learner.learn(record)
        if is_new:
            self._decoder = None
        return is_new

    def add_block(self, block: Block, *, first_line: int = 1, lines: int | None = None) -> list[BadLine]:
        """Add whole lines (how many is counted if not known); blank ones are skipped. Returns the unreadable ones."""
        lines = count_lines(block) if lines is None else lines
        if self._add_at_once(block, lines):
            return []
        bad = []
        content, place = bytes(block), 0
        for number in range(lines):
            line, place = _line_at(content, place)
            try:
                is_new = bool(line.strip()) and self.add_line(line)
            except ValueError as error:
                bad.append(BadLine(first_line + number, str(error)))
                continue
            # Lines are mostly alike: the shape of the first one is enough to read the others together.
            left = lines - number - 1
            if is_new and self._reshapes < _RESHAPES and self._add_at_once(content[place:], left):
                break
        return bad

    def _add_at_once(self, block: Block, lines: int) -> bool:
        rows = self._decode(block, lines)
        self._extend(rows or [])
        return rows is not None

    def add_file(self, path: Path) -> list[BadLine]:
        """Add all lines of a file. Returns those that could not be read."""
        bad: list[BadLine] = []
        done = 0
        for block in read_blocks(path):
            lines = count_lines(block)
            bad += self.add_block(block, first_line=done + 1, lines=lines)
            done += lines
        return bad

    def leave_out(self, rows: Sequence[int]) -> None:
        """Stop counting these rollouts; rollouts are numbered in the order in which they came."""
        self._left_out = np.array(sorted(rows), np.int64)

    def renumber(self, rollout: Ints) -> None:
        """Give every rollout another index, in the order in which they came."""
        self._pack()
        self._keys = [(self._key_column(0), rollout, self._key_column(2))]

    # ---- output --------------------------------------------------------------------------------------------------

    @property
    def agents(self) -> list[str]:
        self._pack()
        return sorted(name for name in self._agents if name is not None)

    def table(self) -> RolloutTable:
        """All rollouts; of those that are masked only the keys. A key that occurs twice is a ``ValueError``."""
        return self._table(self.rows())

    def table_of(self, agent: str | None) -> RolloutTable:
        """The rollouts of one agent; None stands for those without one."""
        return self._table(self.rows_of(agent))

    def rows(self) -> Ints:
        """The numbers of all rollouts that count."""
        self._pack()
        return np.setdiff1d(np.arange(self._packed), self._left_out, assume_unique=True)

    def rows_of(self, agent: str | None) -> Ints:
        """The numbers of one agent's rollouts."""
        rows = self.rows()
        mine: Ints = rows[self._key_column(2)[rows] == self._agents.get(agent, -1)]
        return mine

    def keys(self) -> RowKeys:
        """The indices of every rollout as it came; ``NO_INDEX`` where it has no rollout index."""
        self._pack()
        return RowKeys(self._key_column(0), self._key_column(1))

    # ---- rows ----------------------------------------------------------------------------------------------------

    def _admit(self, buffers: dict[str, ColumnBuffer], fields: Mapping[str, Any]) -> None:
        new = [name for name in fields if name not in buffers]
        if new:
            self._pack()  # rows that wait have the old width
            # Where rewards are listed one by one, true stays true.
            buffers.update((name, ColumnBuffer(keeps_booleans=name == REWARD)) for name in new)
            self._decoder = None

    def _extend(self, rows: list[Row]) -> None:
        self._pending += rows
        if len(self._pending) >= _PACK_AT:
            self._pack()

    def _pack(self) -> None:
        if not self._pending:
            return
        task, rollout, agent, *columns = zip(*self._pending, strict=True)
        codes = [self._agents.setdefault(name, len(self._agents)) for name in agent]
        self._keys.append((np.array(task, np.int64), np.array(rollout, np.int64), np.array(codes, np.int64)))
        buffers = (*self._top.values(), *self._usage.values(), *self._transcript.values())
        for buffer, values in zip(buffers, columns, strict=True):
            buffer.pack(self._packed, values)
        self._packed += len(self._pending)
        self._pending = []

    def _table(self, rows: Ints) -> RolloutTable:
        """The table of these rows, given in the order in which they came."""
        task, rollout = self._key_column(0)[rows], self._key_column(1)[rows]
        rollout = number_missing(task, rollout)
        order = sort_order(task, rollout)
        masked = np.isin(rows, self._masked)
        if masked.any():
            dropped, order = order[masked[order]], order[~masked[order]]
        else:
            dropped = order[:0]
        rows = rows[order]
        places = {row: place for place, row in enumerate(rows.tolist())} if self._hidden or self._odd_rewards else {}
        return RolloutTable(
            task[order],
            rollout[order],
            self._columns(self._top, rows),
            self._columns(self._usage, rows),
            self._columns(self._transcript, rows),
            {name: frozenset(places[row] for row in hidden if row in places) for name, hidden in self._hidden.items()},
            {places[row]: value for row, value in self._odd_rewards.items() if row in places},
            RowKeys(task[dropped], rollout[dropped]),
        )

    def _columns(self, buffers: dict[str, ColumnBuffer], rows: Ints) -> dict[str, Column]:
        columns = {name: buffer.column(self._packed).take(rows) for name, buffer in buffers.items()}
        return {name: column for name, column in columns.items() if column.present.any()}

    def _key_column(self, which: int) -> Ints:
        return np.concatenate([chunk[which] for chunk in self._keys] or [np.zeros(0, np.int64)])

    # ---- the fast way --------------------------------------------------------------------------------------------

    def _decode(self, block: Block, lines: int) -> list[Row] | None:
        if self._decoder is None:
            self._decoder = self._make_decoder()
        return self._decoder.rows(block, lines) if self._decoder else None

    def _make_decoder(self) -> LineDecoder | None:
        shape = self._learner.shape(tuple(self._top), tuple(self._usage))
        if shape is None or self._reshapes >= _RESHAPES:
            return None
        self._reshapes += 1
        return LineDecoder(shape)


def _line_at(content: bytes, start: int) -> tuple[bytes, int]:
    """The line that starts at a place, and where the next one starts."""
    end = content.find(b"\n", start)
    return (content[start:], len(content)) if end < 0 else (content[start:end], end + 1)


def number_missing(task: Ints, rollout: Ints) -> Ints:
    """Give rollouts without an index the next free one of their task, in the order in which they came."""
    missing = np.flatnonzero(rollout == NO_INDEX)
    if not len(missing):
        return rollout
    rollout = rollout.copy()
    given = rollout != NO_INDEX
    used: defaultdict[int, set[int]] = defaultdict(set)
    for key, index in zip(task[given].tolist(), rollout[given].tolist(), strict=True):
        used[key].add(index)
    following: defaultdict[int, int] = defaultdict(int)
    for row in missing.tolist():
        key = int(task[row])
        index = following[key]
        while index in used[key]:
            index += 1
        rollout[row], following[key] = index, index + 1
    return rollout
