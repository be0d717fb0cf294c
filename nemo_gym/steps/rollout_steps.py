"""Steps and records, and their JSON: a step is one call made by a rollout, a record holds all steps of one attempt.

    {"_ng_task_index":0,"_ng_rollout_index":1,"_ng_attempt":1,"agent":"simple_agent","started_at":1763300000.123456,
     "duration":2.5,"outcome":"completed","steps":[
      {"kind":"model","server":"policy_model","route":"/v1/responses","start":0.001,"duration":0.8,"status":200,
       "bytes_out":900,"bytes_in":1200,"tokens_in":120,"tokens_out":30,"finish":"completed"},
      {"kind":"verify","server":"weather","route":"/verify","start":0.802,"duration":0.01,"status":200}]}

Times are in seconds since the start of the rollout, measured with the monotonic clock; ``started_at`` is the time of
day. Fields that have their default are left out. Readers may rely on this: times and counts are finite and not
negative, because a line with others is not a record, and the parent of a step comes before it.
"""

from collections.abc import Sequence
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from nemo_gym.schemas.rows import ATTEMPT_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME

StepKind: TypeAlias = Literal["seed", "model", "tool", "verify", "judge", "call"]
KINDS: Final[tuple[StepKind, ...]] = ("seed", "model", "tool", "verify", "judge", "call")
MODEL_KINDS: Final[tuple[StepKind, ...]] = ("model", "judge")
COMPLETED: Final = "completed"
FAILED: Final = 0  # the status of a call that failed without a reply
LONGEST_S: Final = 1e9  # thirty years; any longer duration must be wrong
LARGEST: Final = 2**53
_LATEST: Final = 1e12

Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=LONGEST_S)]
Amount: TypeAlias = Annotated[int, Meta(ge=0, le=LARGEST)]


class StepRetry(msgspec.Struct, omit_defaults=True, gc=False):
    """A failed attempt at a call, after which the call was repeated."""

    at: Seconds = 0.0  # when it failed
    failed: str = ""  # an HTTP status, or the name of an error


class Step(msgspec.Struct, omit_defaults=True, gc=False):
    """One call."""

    kind: str = "call"
    server: str = ""
    route: str = ""
    tool: str = ""
    start: Seconds = 0.0
    duration: Seconds = 0.0
    status: Amount = 0
    bytes_out: Amount = 0
    bytes_in: Amount = 0
    tokens_in: Amount = 0
    tokens_out: Amount = 0
    tokens_cached: Amount = 0
    finish: str = ""
    waited: Seconds = 0.0  # the part of the duration spent waiting: for a slot, the gate, a connection or a retry
    waited_for: str = ""  # the main cause: "slot", "gate", "connection" or "retry"
    parent: Amount | None = None  # the index of the step that made this call
    retries: list[StepRetry] = []  # which msgspec copies

    @property
    def end(self) -> float:
        return self.start + self.duration


class CompletionFacts(msgspec.Struct, array_like=True, gc=False):
    """What is recorded of a completion: its tokens, and why the model stopped."""

    tokens_in: Amount = 0
    tokens_out: Amount = 0
    tokens_cached: Amount = 0
    finish: str = ""


NAMES: Final = {"task": TASK_INDEX_KEY_NAME, "rollout": ROLLOUT_INDEX_KEY_NAME, "attempt": ATTEMPT_KEY_NAME}


class RolloutSteps(msgspec.Struct, omit_defaults=True, gc=False, kw_only=True, rename=NAMES):
    """All steps of one attempt at a rollout, in the order in which they began."""

    task: int
    rollout: int
    attempt: Amount
    agent: str = ""
    started_at: Annotated[float, Meta(ge=0, le=_LATEST)] = 0.0
    duration: Seconds = 0.0
    waited: Seconds = 0.0  # the sum over the steps
    outcome: str = ""  # "completed", or the class of the failure
    run: str = ""  # from which the ids of its trace are derived, if the run sent traces
    steps: list[Step]


def is_outer_model_call(step: Step, steps: Sequence[Step]) -> bool:
    """Whether a model was called, and not by a model server, whose own call counts the same tokens already."""
    return step.kind in MODEL_KINDS and (step.parent is None or steps[step.parent].kind not in MODEL_KINDS)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(RolloutSteps).decode


def to_line(record: RolloutSteps) -> bytes:
    """Encode a record as a line, without the line break."""
    return _encode(record)


def from_line(line: bytes) -> RolloutSteps | None:
    """Decode a record, or return None if the line does not hold one."""
    try:
        record = _decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    for index, step in enumerate(record.steps):
        if step.parent is not None and step.parent >= index:
            step.parent = None
    return record
