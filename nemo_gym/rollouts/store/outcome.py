"""A rollout that is to be run, and how an attempt at it ended: completed, failed, or vanished without a trace.

An outcome carries the line for the file, ready to be written, and the few facts that the run itself needs. It
says nothing about where the attempt ran. Both are made for every attempt, and not declared frozen only because creating
a frozen object takes ten times as long: treat them as if they were.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Final, Self, TypeAlias

from nemo_gym.io.json import decode
from nemo_gym.schemas.record import Record, Row, Usage
from nemo_gym.schemas.rows import FailureClass, RolloutKey


@dataclass(slots=True)
class PlannedRollout:
    """A rollout to run: its agent, what is sent, and which attempt it is."""

    key: RolloutKey
    agent: str
    outline: Row  # the row, or only its outline if its text is known
    attempt: int = 1  # counted over all runs of this output
    last_attempt: int = 1  # after this attempt the rollout is given up
    text: bytes | None = field(default=None, compare=False, repr=False)  # the row as JSON, if it is already known

    @property
    def row(self) -> Row:
        """The whole row. It is parsed only for those who look into it, since most calls send the text."""
        if self.text is None:
            return self.outline
        row: Row = decode(self.text)
        return row

    @classmethod
    def of(cls, row: Row, *, attempt: int = 1, last_attempt: int = 1) -> Self:
        """The rollout that a row of the plan describes."""
        record = Record(row)
        key, agent = record.key, record.agent
        if key is None or agent is None:
            raise ValueError(f"not a row of a plan: {record.summary()}")
        return cls(key, agent, row, attempt, last_attempt)

    @property
    def may_retry(self) -> bool:
        """Whether there is an attempt left after this one."""
        return self.attempt < self.last_attempt

    def again(self) -> Self:
        """The next attempt."""
        return replace(self, attempt=self.attempt + 1)


# Not caused by the rollout itself, so they don't count as attempts: the run waits until they pass.
OUTSIDE: Final = frozenset(
    {
        FailureClass.AUTH,
        FailureClass.CONNECTION,
        FailureClass.MODEL_ERROR,
        FailureClass.QUOTA,
        FailureClass.RATE_LIMITED,
        FailureClass.SERVER_CRASHED,
        FailureClass.UNREACHABLE,
        FailureClass.WORKER_DIED,
    }
)
# Worth another attempt within the same run. Other failures usually repeat themselves: their rollouts are owed again
# when the collection is resumed, once someone has looked into it.
TRANSIENT: Final = frozenset(FailureClass) - {
    FailureClass.AUTH,
    FailureClass.QUOTA,
    FailureClass.REJECTED,
    FailureClass.AGENT_START,
    FailureClass.GATEWAY_REFUSED,
    FailureClass.AGENT_ERROR,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What went wrong, as far as it is known."""

    kind: str
    message: str
    terminal: bool = False  # no further attempt can help, in this run or a later one
    transient: bool = False  # another attempt in this run may help
    outside: bool = False  # the cause lies outside the rollout, which therefore stays owed
    retry_after_s: float | None = None
    http_status: int | None = None
    http_body: str | None = None
    crash: str = ""  # the id of the crash of a process that the rollout was using
    in_call: bool = False  # whether a call of the rollout was under way in that process

    @classmethod
    def of(cls, kind: str, message: str, *, terminal: bool = False, **details: Any) -> Self:
        """A failure of which only the class is known, which decides whether another attempt may help."""
        transient, outside = kind in TRANSIENT and not terminal, kind in OUTSIDE and not terminal
        return cls(kind=kind, message=message, terminal=terminal, transient=transient, outside=outside, **details)


@dataclass(slots=True)
class _Ended:
    planned: PlannedRollout
    line: bytes
    seconds: float
    steps: bytes = field(default=b"", kw_only=True)  # the line of the steps file, if steps are recorded

    @property
    def record(self) -> dict[str, Any]:
        """The line as an object with whole prompts, as trainers read it; parsed again at each call."""
        return Record.parse(self.line).with_prompts()


@dataclass(slots=True)
class Completed(_Ended):
    """A scored rollout."""

    reward: float | None
    usage: Usage | None = None
    masked: bool = False  # its verdict says that it is not a measurement, so it has no reward


@dataclass(slots=True)
class Failed(_Ended):
    """An attempt that failed, and why."""

    failure: Failure
    usage: Usage | None = None  # what the attempt cost nevertheless, if it is reported
    final: bool = False  # no further attempt in this run, although one could help

    @property
    def will_retry(self) -> bool:
        """Whether this run tries again; if not, the rollout is given up for now."""
        if self.final:
            return False
        return self.failure.outside or (self.failure.transient and self.planned.may_retry)

    @property
    def is_given_up(self) -> bool:
        """Whether later runs do not try again either, unless ``retry_failed`` says so."""
        return self.failure.terminal or not (self.failure.outside or self.planned.may_retry)


@dataclass(slots=True)
class Vanished(_Ended):
    """The rollout ended in a way that must leave no trace; it stays owed."""

    kind: str


Outcome: TypeAlias = Completed | Failed | Vanished
