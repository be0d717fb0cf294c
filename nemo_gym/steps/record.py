"""Steps and records, and their JSON: a step is one call made by a rollout, a record holds all steps of one attempt.

    {"_ng_task_index":0,"_ng_rollout_index":1,"_ng_attempt":1,"agent":"simple_agent","started_at":1763300000.123456,
     "duration":2.5,"outcome":"completed","steps":[["model","policy_model","/v1/responses","",0.001,0.8,200,900,1200,120,30,
     0,"completed"],["verify","weather","/verify","",0.802,0.01,200,4200,310]]}

A step is an array, which takes half the time and half the space of an object; ``Step`` gives the order of its values,
and those at the end may be missing. Times are in seconds, to the microsecond. ``started_at`` is a wall-clock time; all
other times come from the monotonic clock and are relative to the start of the rollout. Records are repaired when they
are read, so readers may rely on this: times and counts are finite and not negative, and the parent of a step comes
before it.
"""

import math
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from nemo_gym.io.json import decode
from nemo_gym.schemas.rows import ATTEMPT_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME

StepKind: TypeAlias = Literal["seed", "model", "tool", "verify", "judge", "call"]
KINDS: Final[tuple[StepKind, ...]] = ("seed", "model", "tool", "verify", "judge", "call")
COMPLETED: Final = "completed"
LONGEST_S: Final = 1e9  # thirty years; any longer duration must be wrong
_LARGEST: Final = 2**53
_LATEST: Final = 1e12

Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=LONGEST_S)]
Amount: TypeAlias = Annotated[int, Meta(ge=0, le=_LARGEST)]


class StepRetry(msgspec.Struct, omit_defaults=True, gc=False):
    """A failed attempt at a call, after which the call was repeated."""

    at: Seconds = 0.0  # when it failed
    failed: str = ""  # an HTTP status, or the name of an error


class Step(msgspec.Struct, array_like=True, gc=False):
    """One call; an array in JSON, whose values come in the order of these fields."""

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
        """When the call ended."""
        return self.start + self.duration


STEP_FIELDS: Final = Step.__struct_fields__
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


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(RolloutSteps).decode


def microseconds(seconds: float) -> float:
    """Round to the microsecond, and raise negative values to zero. Several times as fast as ``round``."""
    return int(seconds * 1e6) / 1e6 if seconds > 0.0 else 0.0


def to_line(record: RolloutSteps) -> bytes:
    """Encode a record as a line, without the line break."""
    return _encode(record)


def from_line(line: bytes) -> RolloutSteps | None:
    """Decode a record, or return None if the line does not hold one. Impossible values are dropped."""
    try:
        record = _decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _repaired(line)
    for index, step in enumerate(record.steps):
        if step.parent is not None and step.parent >= index:
            step.parent = None
    return record


# ---- lines that are not as we write them ----------------------------------------------------------------------------
def _repaired(line: bytes) -> RolloutSteps | None:
    try:
        value = decode(line)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    task, rollout, steps = value.get(TASK_INDEX_KEY_NAME), value.get(ROLLOUT_INDEX_KEY_NAME), value.get("steps")
    if type(task) is not int or type(rollout) is not int or not isinstance(steps, list):
        return None
    return RolloutSteps(
        task=task,
        rollout=rollout,
        attempt=_amount(value.get(ATTEMPT_KEY_NAME)) or 1,
        agent=_text(value.get("agent")),
        started_at=_number(value.get("started_at"), _LATEST),
        duration=_number(value.get("duration")),
        waited=_number(value.get("waited")),
        outcome=_text(value.get("outcome")),
        run=_text(value.get("run")),
        # A step that is not an object is replaced, not removed: parents are given as indices into this list.
        steps=[_repaired_step(_named(step), index) for index, step in enumerate(steps)],
    )


def _named(step: Any) -> dict[Any, Any]:
    """The fields of a step by name; older versions wrote them so."""
    if isinstance(step, list):
        return dict(zip(STEP_FIELDS, step, strict=False))
    return step if isinstance(step, dict) else {}


def _repaired_step(step: dict[Any, Any], index: int) -> Step:
    parent, retries = step.get("parent"), step.get("retries")
    return Step(
        kind=_text(step.get("kind")) or "call",
        server=_text(step.get("server")),
        route=_text(step.get("route")),
        tool=_text(step.get("tool")),
        start=_number(step.get("start")),
        duration=_number(step.get("duration")),
        waited=_number(step.get("waited")),
        parent=parent if type(parent) is int and 0 <= parent < index else None,
        status=_amount(step.get("status")),
        retries=[
            StepRetry(_number(retry.get("at")), _text(retry.get("failed")))
            for retry in (retries if isinstance(retries, list) else ())
            if isinstance(retry, dict)
        ],
        tokens_in=_amount(step.get("tokens_in")),
        tokens_out=_amount(step.get("tokens_out")),
        tokens_cached=_amount(step.get("tokens_cached")),
        bytes_out=_amount(step.get("bytes_out")),
        bytes_in=_amount(step.get("bytes_in")),
        finish=_text(step.get("finish")),
        waited_for=_text(step.get("waited_for")),
    )


def _number(value: Any, most: float = LONGEST_S) -> float:
    """The value if it is a possible number, else zero."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if math.isfinite(value) and 0 <= value <= most else 0.0


def _amount(value: Any) -> int:
    return value if type(value) is int and 0 <= value <= _LARGEST else 0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
