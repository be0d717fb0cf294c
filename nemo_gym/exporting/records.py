"""Reads rollout files as a stream of rollouts, and counts the lines that were left out, by reason.

A failed rollout, or one without a reward, is left out here and never becomes a sample with reward 0. If a line occurs
twice, for example in a shard and in the file it was merged into, only the first one counts.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from nemo_gym.errors import ConfigError
from nemo_gym.io.compressed import open_lines
from nemo_gym.io.json import encode
from nemo_gym.schemas.call_tokens import RolloutFormatError
from nemo_gym.schemas.record import Record

_OPEN_FILES: Final = 48  # there may be more shards than files that a process may open
UNREADABLE, NOT_A_ROLLOUT, FAILED, MASKED, NO_REWARD, ODD_INDEX, REPEATED = (
    "is not a JSON object",
    "is not a rollout",
    "failed",
    "is masked: its verdict says that it is not a measurement",
    "has no reward",
    "has an index that is not a whole number",
    "occurred before",
)


@dataclass(slots=True)
class ExportedRollout:
    """One line of a rollout file. The advantage is filled in later, once the other rollouts of the task are known."""

    record: Record
    path: Path
    line: int
    start: int  # of the line, in bytes
    reward: float
    output: list[dict[str, Any]]
    advantage: float = 0.0

    @property
    def place(self) -> str:
        """File and line, for messages."""
        return f"{self.path}:{self.line}"

    @property
    def task(self) -> bytes:
        """Identifies the task."""
        return self.record.identity

    @property
    def rollout(self) -> int:
        """Which repeat of its task it is."""
        index = self.record.rollout
        return self.line if index is None else index

    @property
    def model(self) -> str:
        return str(self.record.response.get("model") or "unknown")

    @property
    def written_tokens(self) -> int:
        """How many tokens the model wrote; estimated as a quarter of the characters if they were not counted."""
        used = self.record.reported_usage.get("output_tokens")
        return used if isinstance(used, int) else len(encode(self.output)) // 4

    @property
    def cut_off(self) -> bool:
        """Whether the completion ended at a limit rather than where the model chose to end it."""
        response = self.record.response
        return bool(response.get("incomplete_details")) or response.get("status") == "incomplete"

    def labels(self) -> dict[str, Any]:
        """Where a row comes from."""
        record = self.record
        names = {"task": record.task, "rollout": record.rollout, "reward": self.reward}
        return {**names, "agent": record.agent, "model": self.model}


@dataclass
class DroppedRollouts:
    """How many rollouts each rule dropped, and the first of them."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, rule: str, place: str) -> None:
        self.counts[rule] = self.counts.get(rule, 0) + 1
        self.examples.setdefault(rule, place)


@dataclass
class RolloutReader:
    """Reads the rollouts of several files, one at a time."""

    paths: Sequence[Path]
    drops: DroppedRollouts = field(default_factory=DroppedRollouts)
    lines: int = 0
    advance: Callable[[int], object] = lambda _: None  # called with the number of bytes read

    def __iter__(self) -> Iterator[ExportedRollout]:
        """All rollouts, in the order of the files."""
        seen: set[int] = set()
        for path in self.paths:
            start = 0
            with open_lines(path) as file:
                for number, line in enumerate(file, 1):
                    begin, start = start, start + len(line)
                    self.advance(len(line))
                    if line.isspace():
                        continue
                    self.lines += 1
                    found = _read(line, path, number, begin)
                    if isinstance(found, ExportedRollout):
                        # Eight bytes for each line instead of the line. Two different ones with the same hash are as
                        # good as impossible.
                        mark = hash(line)
                        if mark not in seen:
                            seen.add(mark)
                            yield found
                            continue
                        found = REPEATED
                    self.drops.add(found, f"{path}:{number}")


def _read(line: bytes, path: Path, number: int, start: int) -> ExportedRollout | str:
    try:
        record = Record.parse(line)
    except RolloutFormatError:  # a torn line, if it is the last
        return UNREADABLE
    if record.failure is not None:
        return MASKED if record.is_masked else FAILED
    output, reward = record.output, record.reward
    if output is None or not set(map(type, output)) <= {dict}:
        return NOT_A_ROLLOUT
    if reward is None or math.isinf(reward):
        return NO_REWARD
    try:
        _ = record.key
    except RolloutFormatError:
        return ODD_INDEX
    return ExportedRollout(record, path, number, start, reward, output)


def read_at(places: Iterable[tuple[Path, int, int]]) -> Iterator[ExportedRollout]:
    """Read rollouts again by file, line and byte offset, with a bounded number of open files."""
    opened: dict[Path, BinaryIO] = {}
    try:
        for path, number, start in places:
            # The file just used moves to the end, so the first one is the least recently used.
            file = opened.pop(path, None)
            if file is None and len(opened) >= _OPEN_FILES:
                opened.pop(next(iter(opened))).close()
            opened[path] = file = file or open_lines(path)
            file.seek(start)
            found = _read(file.readline(), path, number, start)
            if not isinstance(found, ExportedRollout):
                raise ConfigError(f"{path} changed while it was exported", hint="export again when it is complete")
            yield found
    finally:
        for file in opened.values():
            file.close()
