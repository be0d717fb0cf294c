"""Reads the files of a run without touching them, for callers who want everything in memory."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_gym.rollouts.jsonl import decode
from nemo_gym.rollouts.keyed import key_of
from nemo_gym.rollouts.plan import Row
from nemo_gym.rollouts.store.files import RunFiles
from nemo_gym.rollouts.store.history import History, RetryPolicy, packed, read_failures, read_rollouts
from nemo_gym.rollouts.store.repair import read_lines

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Recollection:
    """What is owed, and what there is: the row, the result and its text stand at the same place of three lists."""

    owed: list[Row]
    rows: list[Row] = field(default_factory=list)
    results: list[Record] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)


def recall(files: RunFiles, policy: RetryPolicy) -> Recollection:
    """Read everything. Lines that can't be read, or belong to no planned rollout, are as if they were not there."""
    history = History()
    read_rollouts(files.rollouts, history)
    if files.failures.exists():
        read_failures(files.failures, history)
    plan = {packed(key): decode(line.text) for line in read_lines(files.plan) if (key := key_of(line.text))}
    memory = Recollection([row for number, row in plan.items() if _is_owed(number, history, policy)])
    for line in read_lines(files.rollouts):
        key = key_of(line.text)
        if key is not None and packed(key) in plan:
            memory.rows.append(plan[packed(key)])
            memory.results.append(decode(line.text))
            memory.texts.append(line.text.strip())
    return memory


def read_records(path: Path) -> Iterator[Record]:
    """The rollouts of a file that nobody writes to any more."""
    return (decode(line.text) for line in read_lines(path))


def _is_owed(number: int, history: History, policy: RetryPolicy) -> bool:
    return number not in history.done and policy.attempts(history.failures.get(number)) is not None
