"""Rollouts that were saved earlier, by key: where each is, and the row that it was made from.

Of each only its position is kept. A line that can't be read, or a rollout that is there twice, is counted and left out.
"""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nemo_gym.errors import ConfigPathNotFoundError
from nemo_gym.rollouts.jsonl import decode
from nemo_gym.rollouts.keyed import key_in, key_of
from nemo_gym.rollouts.plan import Row, agent_name
from nemo_gym.rollouts.store.files import RunFiles
from nemo_gym.rollouts.store.history import packed
from nemo_gym.rollouts.store.repair import read_lines
from nemo_gym.schemas.rows import RESPONSE_KEY_NAME, RolloutKey

logger = logging.getLogger(__name__)


class SavedRollouts:
    """The rollouts of one file."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise ConfigPathNotFoundError(f"{path}: no such file", hint="correct +input=<rollout file>")
        self.path = path
        self.left_out = 0
        self._positions: dict[int, int] = {}
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        for line in read_lines(path):
            key = key_of(line.text)
            if key is not None and packed(key) not in self._positions:
                self._positions[packed(key)] = line.start
            else:
                self.left_out += bool(line.text.strip())
        if self.left_out:
            logger.warning("%s: %d lines are no rollouts, or repeat one, and are left out", path, self.left_out)

    def __len__(self) -> int:
        return len(self._positions)

    def record(self, key: RolloutKey) -> dict[str, Any]:
        """What was saved."""
        record: dict[str, Any] = decode(self._line(self._positions[packed(key)]))
        return record

    def rows(self) -> Iterator[Row]:
        """What each rollout was made from: its row in the plan, or, where there is none, what the record tells."""
        planned: set[int] = set()
        plan = RunFiles.of(self.path).plan
        for line in read_lines(plan) if plan.is_file() else ():
            key = key_of(line.text)
            if key is not None and packed(key) in self._positions and packed(key) not in planned:
                planned.add(packed(key))
                yield decode(line.text)
        for number, position in self._positions.items():
            if number not in planned:
                record = decode(self._line(position))
                yield {name: value for name, value in record.items() if name not in (RESPONSE_KEY_NAME, "reward")}

    def agents(self) -> list[str]:
        """Who made them."""
        names = {agent_name(row) for row in self.rows() if key_in(row) is not None}
        return sorted(name for name in names if name)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)

    def _line(self, position: int) -> bytes:
        chunks, size = list[bytes](), 1 << 16
        while chunk := os.pread(self._descriptor, size, position):
            head, end, _ = chunk.partition(b"\n")
            chunks.append(head)
            if end:
                break
            position += len(chunk)
            size *= 2
        return b"".join(chunks)
