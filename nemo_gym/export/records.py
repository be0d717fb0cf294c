"""Reads rollout files as a stream of rollouts, and counts the lines that were left out, by reason.

A failed rollout, or one without a reward, is left out here and never becomes a sample with reward 0. If a line occurs
twice, for example in a shard and in the file it was merged into, only the first one counts.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from nemo_gym.errors import ConfigError, ConfigPathNotFoundError
from nemo_gym.io.files import BUFFER_BYTES, find_files, split_patterns
from nemo_gym.io.json import encode, parse_line
from nemo_gym.metrics.fields import agent_of, as_number, output_of
from nemo_gym.schemas.rows import (
    NG_FAILURE_CLASS_KEY,
    RESPONSE_KEY_NAME,
    RESPONSES_CREATE_PARAMS_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    TASK_INDEX_KEY_NAME,
)

_OPEN_FILES: Final = 64  # there may be more shards than files that a process may open
UNREADABLE, NOT_A_ROLLOUT, FAILED, NO_REWARD, REPEATED = (
    "is not JSON",
    "is not a rollout",
    "failed",
    "has no reward",
    "occurred before",
)


@dataclass(slots=True)
class Rollout:
    """One line of a rollout file. The advantage is filled in later, once the other rollouts of the task are known."""

    record: dict[str, Any]
    path: Path
    line: int
    start: int  # of the line, in bytes
    reward: float
    params: Mapping[str, Any]  # the request to the model
    response: Mapping[str, Any]  # the answer of the agent
    output: list[Any]
    advantage: float = 0.0
    _digest: bytes = b""

    @property
    def place(self) -> str:
        """File and line, for messages."""
        return f"{self.path}:{self.line}"

    @property
    def prompt_digest(self) -> bytes:
        """A digest that identifies the prompt, independent of the task's index."""
        if not self._digest:
            asked = [self.params.get("instructions"), self.params.get("input")]
            self._digest = hashlib.blake2b(encode(asked), digest_size=12).digest()
        return self._digest

    @property
    def task(self) -> bytes:
        """Identifies the task. It includes the prompt, because other runs may use the same index for other tasks."""
        name = self.record.get("task_id", self.record.get(TASK_INDEX_KEY_NAME))
        return self.prompt_digest + str(name).encode("utf-8", "replace")

    @property
    def rollout(self) -> int:
        """Which repeat of its task it is."""
        index = self.record.get(ROLLOUT_INDEX_KEY_NAME)
        return index if isinstance(index, int) else self.line

    @property
    def model(self) -> str:
        """The model that made it."""
        return str(self.response.get("model") or "unknown")

    @property
    def agent(self) -> str | None:
        """The agent that made it."""
        return agent_of(self.record)

    @property
    def written_tokens(self) -> int:
        """How many tokens the model wrote; estimated as a quarter of the characters if they were not counted."""
        usage = self.response.get("usage")
        used = usage.get("output_tokens") if isinstance(usage, dict) else None
        return used if isinstance(used, int) else len(encode(self.output)) // 4

    @property
    def cut_off(self) -> bool:
        """Whether the answer ended at a limit rather than where the model chose to end it."""
        return bool(self.response.get("incomplete_details")) or self.response.get("status") == "incomplete"

    def labels(self) -> dict[str, Any]:
        """Where a row comes from."""
        return {
            "task": _index(self.record.get(TASK_INDEX_KEY_NAME)),
            "rollout": _index(self.record.get(ROLLOUT_INDEX_KEY_NAME)),
            "reward": self.reward,
            "agent": self.agent,
            "model": self.model,
        }


@dataclass
class DroppedRollouts:
    """How many rollouts each rule dropped, and the first of them."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, rule: str, place: str) -> None:
        """Count one."""
        self.counts[rule] = self.counts.get(rule, 0) + 1
        self.examples.setdefault(rule, place)


def find_rollout_files(patterns: str | Sequence[str], parameter: str = "input") -> list[Path]:
    """The files that paths and patterns name; patterns skip the other files of a run, such as its failures."""
    hint = f"correct +{parameter}=<file or pattern>"
    names = split_patterns(patterns)
    found = find_files(names)
    for path in found:
        if path.is_dir():
            raise ConfigError(f"{path} is a folder", hint=f"+{parameter}='{path}/*.jsonl' takes all files in it")
        if not path.exists():
            raise ConfigPathNotFoundError(f"{path}: no such file", hint=hint)
    if not found:
        raise ConfigPathNotFoundError(f"no file matches {', '.join(names)}", hint=hint)
    return found


@dataclass
class RolloutReader:
    """Reads the rollouts of several files, one at a time."""

    paths: Sequence[Path]
    drops: DroppedRollouts = field(default_factory=DroppedRollouts)
    lines: int = 0
    advance: Callable[[int], object] = lambda _: None  # called with the number of bytes read

    def __iter__(self) -> Iterator[Rollout]:
        """All rollouts, in the order of the files."""
        seen: set[int] = set()
        for path in self.paths:
            start = 0
            with path.open("rb", buffering=BUFFER_BYTES) as file:
                for number, line in enumerate(file, 1):
                    begin, start = start, start + len(line)
                    self.advance(len(line))
                    if line.isspace():
                        continue
                    self.lines += 1
                    found = _read(line, path, number, begin)
                    if isinstance(found, Rollout):
                        # Eight bytes for each line instead of the line. Two different ones with the same hash are as
                        # good as impossible.
                        mark = hash(line)
                        if mark not in seen:
                            seen.add(mark)
                            yield found
                            continue
                        found = REPEATED
                    self.drops.add(found, f"{path}:{number}")


def _read(line: bytes, path: Path, number: int, start: int) -> Rollout | str:
    try:
        record = parse_line(line)
    except ValueError:  # a torn line, if it is the last
        return UNREADABLE
    if not isinstance(record, dict):
        return NOT_A_ROLLOUT
    if record.get(NG_FAILURE_CLASS_KEY) is not None:
        return FAILED
    output = output_of(record)
    if output is None or not set(map(type, output)) <= {dict}:
        return NOT_A_ROLLOUT
    reward = as_number(record.get("reward"))
    if reward is None or reward - reward != 0:  # NaN and infinities are not rewards
        return NO_REWARD
    params, response = _mapping(record, RESPONSES_CREATE_PARAMS_KEY_NAME), _mapping(record, RESPONSE_KEY_NAME)
    return Rollout(record, path, number, start, float(reward), params, response, output)


def _index(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _mapping(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = record.get(name)
    return value if isinstance(value, dict) else {}


def read_at(places: Iterable[tuple[Path, int, int]]) -> Iterator[Rollout]:
    """Read rollouts again by file, line and byte offset, with a bounded number of open files."""
    opened: dict[Path, BinaryIO] = {}
    try:
        for path, number, start in places:
            # The file just used moves to the end, so the first one is the least recently used.
            opened[path] = file = opened.pop(path, None) or path.open("rb")
            if len(opened) > _OPEN_FILES:
                opened.pop(next(iter(opened))).close()
            file.seek(start)
            found = _read(file.readline(), path, number, start)
            if not isinstance(found, Rollout):
                raise ConfigError(f"{path} changed while it was exported", hint="export again when it is complete")
            yield found
    finally:
        for file in opened.values():
            file.close()
