"""What earlier runs left behind, and what follows from it for each rollout: done, given up, or owed again.

Only keys are kept, as plain integers: a million rollouts take about a hundred megabytes, however large they are on
disk. A failure whose cause lay outside the rollout (``_ng_owed``) does not count as one of its attempts.

``read_saved`` reads everything instead, for callers who want all of it in memory.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from nemo_gym.io.files import RunFiles
from nemo_gym.io.json import decode
from nemo_gym.rollouts.store.saved_lines import StoredLine, StoredSpan, key_in_line, read_lines
from nemo_gym.schemas.call_tokens import RolloutFormatError
from nemo_gym.schemas.record import Record, Row
from nemo_gym.schemas.rows import MAX_ROLLOUTS, NG_OWED_KEY, NG_TERMINAL_KEY, RolloutKey
from nemo_gym.steps.steps_file import identify

logger = logging.getLogger(__name__)

DEFAULT_MAX_ATTEMPTS = 3


class Attempts(NamedTuple):
    """Which attempt comes next, and which is the last."""

    next: int
    last: int


@dataclass(slots=True)
class PastFailures:
    """What is known about the failed attempts of one rollout."""

    count: int = 0
    terminal: bool = False
    kind: str = ""  # of the last failure


@dataclass(frozen=True, slots=True)
class AttemptPolicy:
    """When a rollout that failed before is tried again."""

    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    reopened: frozenset[str] = frozenset()  # classes of failure that get a fresh set of attempts

    def attempts(self, past: PastFailures | None) -> Attempts | None:
        """The attempts that a rollout still has, or None if it is given up."""
        if past is None:
            return Attempts(1, self.max_attempts)
        if past.kind in self.reopened:
            return Attempts(past.count + 1, past.count + self.max_attempts)
        if past.terminal or past.count >= self.max_attempts:
            return None
        return Attempts(past.count + 1, self.max_attempts)


def parse_max_attempts(text: str, default: int) -> int:
    """The number of attempts that a setting asks for; a setting that makes no sense is reported and ignored."""
    try:
        number = int(text) if text else default
    except ValueError:
        number = 0
    if number >= 1:
        return number
    logger.warning("%r is not a possible number of attempts: using %d", text, default)
    return default


@dataclass(slots=True)
class History:
    """Everything that a resumed run has to know about the runs before it."""

    done: set[int] = field(default_factory=set)
    failures: dict[int, PastFailures] = field(default_factory=dict)
    failed: Counter[int] = field(default_factory=Counter)  # attempts, including those that do not count

    def is_done(self, key: RolloutKey) -> bool:
        return packed(key) in self.done

    def attempts(self, key: RolloutKey, policy: AttemptPolicy) -> Attempts | None:
        """The attempts that an unfinished rollout still has."""
        return policy.attempts(self.failures.get(packed(key)))


def packed(key: RolloutKey) -> int:
    """A key as one integer, which needs a third of the memory."""
    return key.task * MAX_ROLLOUTS + key.rollout


def read_completed(path: Path, history: History) -> list[StoredSpan]:
    """Note all completed rollouts of a file; returns the lines that are not rollouts, or repeat one."""
    strays: list[StoredSpan] = []
    for line in read_lines(path):
        key = key_in_line(line.text)
        number = None if key is None else packed(key)
        if number is None or number in history.done:
            strays.append(_stray(line, "repeated rollout" if key else _unreadable(line)))
        else:
            history.done.add(number)
    return strays


def read_failures(path: Path, history: History) -> list[StoredSpan]:
    """Note all failed attempts of a file of failures; returns the lines that can't be read."""
    strays: list[StoredSpan] = []
    for line in read_lines(path):
        try:
            record = Record.parse(line.text)
            key = record.key
        except RolloutFormatError:
            strays.append(_stray(line, _unreadable(line)))
            continue
        if key is not None:
            history.failed[packed(key)] += 1
        if key is not None and not record.fields.get(NG_OWED_KEY):
            past = history.failures.setdefault(packed(key), PastFailures())
            past.count += 1
            past.terminal = past.terminal or bool(record.fields.get(NG_TERMINAL_KEY))  # once terminal, always terminal
            past.kind = record.failure or ""
    return strays


def read_attempts(path: Path, history: History) -> list[StoredSpan]:
    """Match steps with the outcomes on disk; return what can't be read, and steps whose attempt has no outcome.

    Steps are written first, so a crash can leave some of a rollout that is owed and will be recorded again.
    """
    strays: list[StoredSpan] = []
    completed: set[int] = set()
    failed: Counter[int] = Counter()
    for line in read_lines(path):
        attempt = identify(line.text)
        if attempt is None:
            strays.append(_stray(line, _unreadable(line)))
            continue
        number = packed(attempt.key)
        if attempt.completed:
            has_outcome = number in history.done and number not in completed
            completed.add(number)
        else:
            failed[number] += 1
            # Failed attempts can't be distinguished, so the first records are matched with the failures in order: a
            # crash can only have left the last record without a failure.
            has_outcome = failed[number] <= history.failed[number]
        if not has_outcome:
            strays.append(_stray(line, "record of steps without an outcome"))
    return strays


def unplanned(path: Path, planned: set[int]) -> Iterator[StoredSpan]:
    """The rollouts of a file that are in no plan."""
    for line in read_lines(path):
        key = key_in_line(line.text)
        if key is not None and packed(key) not in planned:
            yield _stray(line, "rollout of another plan")


def _stray(line: StoredLine, why: str) -> StoredSpan:
    return StoredSpan(line.start, line.start + len(line.text), why, line.number)


def _unreadable(line: StoredLine) -> str:
    if not line.text.strip():
        return "blank line"
    if not line.text.endswith(b"\n"):
        return "torn line"
    with suppress(RolloutFormatError):
        Record.parse(line.text)
        return "line without a usable key"
    return "unreadable line"


@dataclass(frozen=True, slots=True)
class SavedRun:
    """What is owed, and what is saved: a row, its result and its text have the same position in three lists."""

    owed: list[Row]
    rows: list[Row] = field(default_factory=list)
    results: list[Row] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)


def read_saved(files: RunFiles, policy: AttemptPolicy) -> SavedRun:
    """Read everything. Lines that can't be read, or belong to no planned rollout, are ignored."""
    history = History()
    read_completed(files.rollouts, history)
    if files.failures.exists():
        read_failures(files.failures, history)
    plan = {packed(key): decode(line.text) for line in read_lines(files.plan) if (key := key_in_line(line.text))}
    saved = SavedRun([row for number, row in plan.items() if _is_owed(number, history, policy)])
    for line in read_lines(files.rollouts):
        key = key_in_line(line.text)
        if key is not None and packed(key) in plan:
            saved.rows.append(plan[packed(key)])
            saved.results.append(decode(line.text))
            saved.texts.append(line.text.strip())
    return saved


def _is_owed(number: int, history: History, policy: AttemptPolicy) -> bool:
    return number not in history.done and policy.attempts(history.failures.get(number)) is not None
