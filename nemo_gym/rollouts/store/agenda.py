"""The plan on disk, and the part of it that is still owed.

Rows stay in the file until they are started; in memory an owed rollout is the eight bytes of its position.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.jsonl import decode
from nemo_gym.rollouts.keyed import encode_keyed, key_in, key_of
from nemo_gym.rollouts.plan import Row, agent_name
from nemo_gym.rollouts.planned import Planned, summary_of
from nemo_gym.rollouts.store.files import BUFFER_BYTES
from nemo_gym.rollouts.store.history import History, PastFailures, RetryPolicy, packed
from nemo_gym.rollouts.store.manifest import PlanFacts
from nemo_gym.rollouts.store.repair import read_lines
from nemo_gym.schemas.rows import RolloutKey


def _positions() -> "array[int]":
    return array("Q")


@dataclass(slots=True)
class Agenda:
    """What a run has to do: iterating over it reads the owed rollouts one by one, in the order of the plan."""

    path: Path
    policy: RetryPolicy
    failures: Mapping[int, PastFailures] = field(default_factory=dict)
    positions: "array[int]" = field(default_factory=_positions)
    agents: Counter[str] = field(default_factory=Counter)  # how many each has to run
    planned: int = 0
    done: int = 0
    given_up: int = 0  # failed too often, or for good

    def __len__(self) -> int:
        return len(self.positions)

    def __iter__(self) -> Iterator[Planned]:
        with self.path.open("rb", buffering=BUFFER_BYTES) as file:
            here = 0
            for position in self.positions:
                if position != here:
                    file.seek(position)
                line = file.readline()
                here = position + len(line)
                planned = self._planned(decode(line), line.rstrip())
                if planned is not None:
                    yield planned

    def pick(self, rows: Iterable[Row]) -> Iterator[Planned]:
        """These rows of the plan, whatever the files say about them."""
        return (planned for row in rows if (planned := self._planned(row)))

    def _planned(self, row: Row, text: bytes | None = None) -> Planned | None:
        key, agent = key_in(row), agent_name(row)
        attempts = self.policy.attempts(self.failures.get(packed(key))) if key else None
        if not (key and agent and attempts):
            return None
        return Planned(key, agent, row, attempts.next, attempts.last, text)

    def owe(self, position: int, agent: str) -> None:
        """Add a rollout."""
        self.positions.append(position)
        self.agents[agent] += 1


@dataclass(slots=True)
class PlanWriter:
    """Writes the rows of a plan and notes where each is."""

    file: BinaryIO
    rows: int = 0
    size: int = 0
    _digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)

    def write(self, key: RolloutKey, row: Row) -> int:
        """Add a row; return its position."""
        return self.write_line(encode_keyed(key, row) + b"\n")

    def write_line(self, line: bytes) -> int:
        """Add a row that is already a line."""
        position = self.size
        self.file.write(line)
        self._digest.update(line)
        self.rows += 1
        self.size += len(line)
        return position

    @property
    def facts(self) -> PlanFacts:
        """What was written."""
        return PlanFacts(rows=self.rows, bytes=self.size, digest=self._digest.hexdigest())


def write_agenda(path: Path, writer: PlanWriter, rows: Iterable[Row], policy: RetryPolicy) -> Agenda:
    """Write a plan of which nothing is done yet."""
    agenda = Agenda(path, policy)
    for row in rows:
        key, agent = key_in(row), agent_name(row)
        if key is None or not agent:
            raise ConfigError(f"a planned row lacks its index or its agent: {summary_of(row)}")
        agenda.owe(writer.write(key, row), agent)
    agenda.planned = writer.rows
    return agenda


def survey(path: Path, history: History, policy: RetryPolicy) -> Agenda:
    """What is still owed of a plan."""
    agenda = Agenda(path, policy, history.failures)
    for number, line in enumerate(read_lines(path), start=1):
        key = key_of(line.text)
        if key is None:
            raise _broken_plan(path, number)
        agenda.planned += 1
        if history.is_done(key):
            agenda.done += 1
        elif history.attempts(key, policy) is None:
            agenda.given_up += 1
        else:
            agenda.owe(line.start, agent_name(decode(line.text)) or "")
    return agenda


def _broken_plan(path: Path, number: int) -> ConfigError:
    return ConfigError(
        f"{path}: line {number} is no row of a plan, so it is not known what is owed",
        hint="resume with +resume_mode=extend to plan anew from the input and keep what is collected",
    )
