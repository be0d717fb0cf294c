"""How a rollout ended: completed, failed, or vanished without a trace.

An outcome carries the line that is to be stored, ready to be written, and the few facts that the run itself needs. It
says nothing about where the rollout ran.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias

from nemo_gym.io.json import decode
from nemo_gym.rollouts.plan import PlannedRollout


class FailureClass(StrEnum):
    """Why a rollout failed. Agents may use words of their own; these are ours."""

    TIMEOUT = "timeout"  # it took longer than it may
    RATE_LIMITED = "rate_limited"  # an endpoint refused for now
    CONNECTION = "connection"  # a server could not be reached, or went away in the middle
    MODEL_ERROR = "model_error"  # the model endpoint failed
    TOOL_ERROR = "tool_error"  # a tool failed in a way that its server did not turn into an answer
    VERIFIER_ERROR = "verifier_error"  # the rollout ran but could not be scored
    JUDGE_FAILED = "judge_failed"  # the model that was to score it gave no verdict
    INVALID_RESPONSE = "invalid_response"  # an answer that can't be read
    WORKER_DIED = "worker_died"  # the process that ran it is gone
    AUTH = "auth"  # an endpoint does not accept our key
    REJECTED = "rejected"  # an endpoint refused the request, and would again
    AGENT_ERROR = "agent_error"  # anything else that an agent answered with an error


# Worth another attempt within the same run. The others repeat themselves more often than not: they are owed again when
# the collection is resumed, after somebody had a look.
TRANSIENT: Final = frozenset(FailureClass) - {FailureClass.AUTH, FailureClass.REJECTED, FailureClass.AGENT_ERROR}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What went wrong, as far as it is known."""

    kind: str
    message: str
    terminal: bool = False  # no further attempt can help, in this run or a later one
    transient: bool = False  # another attempt in this run may help
    retry_after_s: float | None = None
    http_status: int | None = None
    http_body: str | None = None


@dataclass(frozen=True, slots=True)
class _Ended:
    planned: PlannedRollout
    line: bytes
    seconds: float

    @property
    def record(self) -> dict[str, Any]:
        """The line as an object; parsed anew each time it is asked for."""
        record: dict[str, Any] = decode(self.line)
        return record


class Usage(NamedTuple):
    """The tokens of a whole rollout, as far as it tells."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Completed(_Ended):
    """A scored rollout."""

    reward: float | None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Failed(_Ended):
    """An attempt that led to nothing but knowledge of why."""

    failure: Failure

    @property
    def will_retry(self) -> bool:
        """Whether this run tries again; if not, the rollout is given up for now."""
        return self.failure.transient and self.planned.may_retry


@dataclass(frozen=True, slots=True)
class Vanished(_Ended):
    """The rollout ended in a way that must leave no trace; it stays owed."""

    kind: str


Outcome: TypeAlias = Completed | Failed | Vanished
