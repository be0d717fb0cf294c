"""The plan on disk: writing it, reading the part that is still owed, and making one plan of an old and a new one.

Rows stay in the file until they are started; in memory an owed rollout is the eight bytes of its position.

An extended plan is the new plan plus those rows of the old one that are already collected. Where both have a key, both
must have the same row; otherwise a rollout on disk would belong to another task.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, MutableSequence, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from nemo_gym.errors import ConfigError
from nemo_gym.io.files import BUFFER_BYTES
from nemo_gym.rollouts.store.history import AttemptPolicy, History, PastFailures, packed
from nemo_gym.rollouts.store.outcome import PlannedRollout
from nemo_gym.rollouts.store.output import PlanFacts
from nemo_gym.rollouts.store.saved_lines import encode_keyed, key_in_line, read_lines
from nemo_gym.schemas.call_tokens import RolloutFormatError
from nemo_gym.schemas.record import Record, Row, outline_of
from nemo_gym.schemas.rows import RolloutKey


def _positions() -> MutableSequence[int]:
    return array("Q")


@dataclass(slots=True)
class PlanOnDisk:
    """What a run has to do: iterating over it reads the owed rollouts one by one, in the order of the plan."""

    path: Path
    policy: AttemptPolicy
    failures: Mapping[int, PastFailures] = field(default_factory=dict)
    positions: MutableSequence[int] = field(default_factory=_positions)
    agents: Counter[str] = field(default_factory=Counter)  # how many rollouts each agent has to run
    planned: int = 0
    done: int = 0
    given_up: Counter[str] = field(default_factory=Counter)  # failed too often, or for good; by the last failure
    model_changes: Sequence[str] = ()  # how the models differ from those of what has been collected

    def __len__(self) -> int:
        return len(self.positions)

    def __iter__(self) -> Iterator[PlannedRollout]:
        with self.path.open("rb", buffering=BUFFER_BYTES) as file:
            here = 0
            for position in self.positions:
                if position != here:  # a seek would discard the buffer, and usually the next row follows directly
                    file.seek(position)
                line = file.readline()
                here = position + len(line)
                planned = self._planned(outline_of(line), line.rstrip())
                if planned is not None:
                    yield planned

    def pick(self, rows: Iterable[Row]) -> Iterator[PlannedRollout]:
        """These rows of the plan, whatever the files say about them."""
        return (planned for row in rows if (planned := self._planned(row)))

    def _planned(self, outline: Row, text: bytes | None = None) -> PlannedRollout | None:
        record = Record(outline)
        key, agent = record.key, record.agent
        if key is None or agent is None:
            return None
        attempts = self.policy.attempts(self.failures.get(packed(key)) if self.failures else None)
        if attempts is None:
            return None
        return PlannedRollout(key, agent, outline, attempts.next, attempts.last, text)

    def owe(self, position: int, agent: str) -> None:
        self.positions.append(position)
        self.agents[agent] += 1


@dataclass(slots=True)
class PlanWriter:
    """Writes the rows of a plan and notes where each is."""

    file: BinaryIO
    rows: int = 0
    size: int = 0

    def write(self, key: RolloutKey, row: Row) -> int:
        """Add a row; return its position."""
        return self.write_line(encode_keyed(key, row) + b"\n")

    def write_line(self, line: bytes) -> int:
        """Add a row that is already a line."""
        position = self.size
        self.file.write(line)
        self.rows += 1
        self.size += len(line)
        return position

    @property
    def facts(self) -> PlanFacts:
        return PlanFacts(rows=self.rows, bytes=self.size)


def write_plan(path: Path, writer: PlanWriter, rows: Iterable[Row], policy: AttemptPolicy) -> PlanOnDisk:
    """Write a plan of which nothing is done yet."""
    plan = PlanOnDisk(path, policy)
    for row in rows:
        record = Record(row)
        key, agent = record.key, record.agent
        if key is None or agent is None:
            raise ConfigError(f"a planned row lacks its index or its agent: {record.summary()}")
        plan.owe(writer.write(key, row), agent)
    plan.planned = writer.rows
    return plan


def read_owed(path: Path, history: History, policy: AttemptPolicy) -> PlanOnDisk:
    """What is still owed of a plan."""
    plan = PlanOnDisk(path, policy, history.failures)
    for line in read_lines(path):
        key = key_in_line(line.text)
        if key is None:
            raise _broken_plan(path, line.number)
        plan.planned += 1
        if history.is_done(key):
            plan.done += 1
        elif history.attempts(key, policy) is None:
            plan.given_up[history.failures[packed(key)].kind] += 1
        else:
            plan.owe(line.start, Record(outline_of(line.text)).agent or "")
    return plan


def _broken_plan(path: Path, number: int) -> ConfigError:
    return ConfigError(
        f"{path}: line {number} is not a row of a plan, so it is unknown what is owed",
        hint="resume with +resume_mode=extend to plan anew from the input and keep what is collected",
    )


SHOWN = 5


class PlanConflictError(ConfigError):
    """Two plans that can't be joined."""


def write_extended(old: Path, writer: PlanWriter, rows: Iterable[Row], history: History) -> None:
    """Write the new rows, then those old ones that are collected and not among them."""
    before = _digests(old, history)
    changed: list[RolloutKey] = []
    for row in rows:
        key = Record(row).key
        if key is None:
            continue
        line = encode_keyed(key, row) + b"\n"
        # The same key with another row: what is collected under it belongs to a task that no longer exists.
        if before.pop(packed(key), None) not in (None, _digest(line)):
            changed.append(key)
        writer.write_line(line)
    if changed:
        raise _conflict(changed)
    for key, line in _rows_of(old):
        if packed(key) in before:
            writer.write_line(line)


def _digests(path: Path, history: History) -> dict[int, bytes]:
    """A digest of each old row that is collected; others may change without harm."""
    return {packed(key): _digest(line) for key, line in _rows_of(path) if packed(key) in history.done}


def _rows_of(path: Path) -> Iterable[tuple[RolloutKey, bytes]]:
    for line in read_lines(path):
        with suppress(RolloutFormatError):
            record = Record.parse(line.text)
            if key := record.key:
                yield key, encode_keyed(key, record.fields) + b"\n"


def _digest(line: bytes) -> bytes:
    return sha256(line).digest()[:8]


def _conflict(keys: list[RolloutKey]) -> PlanConflictError:
    some = ", ".join(f"task {key.task} rollout {key.rollout}" for key in keys[:SHOWN])
    more = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    return PlanConflictError(
        f"the new plan has other rows for {some}{more}, which are already collected",
        hint="a plan can be extended by rows at the end of the input and by repeats; for anything else collect to "
        "another output, or keep the old plan with +resume_mode=force",
    )
