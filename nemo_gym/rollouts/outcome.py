"""How an attempt ended: completed, failed, or vanished without a trace.

An outcome carries the line for the file, ready to be written, and the few facts that the run itself needs. It
says nothing about where the attempt ran. Like a planned rollout, it is made for every attempt and therefore not frozen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self, TypeAlias

from nemo_gym.io.json import decode
from nemo_gym.rollouts.plan import PlannedRollout
from nemo_gym.schemas.rows import FailureClass

# Not caused by the rollout itself, so they don't count as attempts: the run waits until they pass.
OUTSIDE: Final = frozenset(
    {FailureClass.CONNECTION, FailureClass.RATE_LIMITED, FailureClass.MODEL_ERROR, FailureClass.WORKER_DIED}
)
# Worth another attempt within the same run. Other failures usually repeat themselves: their rollouts are owed again
# when the collection is resumed, once someone has looked into it.
TRANSIENT: Final = frozenset(FailureClass) - {FailureClass.AUTH, FailureClass.REJECTED, FailureClass.AGENT_ERROR}


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
        """The line as an object, parsed again at each call."""
        record: dict[str, Any] = decode(self.line)
        return record


class Usage(NamedTuple):
    """The tokens that a whole rollout reports: those of its model, and those of each judge by name."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    judges: "Sequence[tuple[str, Usage]]" = ()


@dataclass(slots=True)
class Completed(_Ended):
    """A scored rollout."""

    reward: float | None
    usage: Usage | None = None


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
        """Whether later runs do not try again either, unless they are asked to."""
        return self.failure.terminal or not (self.failure.outside or self.planned.may_retry)


@dataclass(slots=True)
class Vanished(_Ended):
    """The rollout ended in a way that must leave no trace; it stays owed."""

    kind: str


Outcome: TypeAlias = Completed | Failed | Vanished
