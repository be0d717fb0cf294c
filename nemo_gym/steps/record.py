"""Steps and records, and their JSON: a step is one call made by a rollout, a record holds all steps of one attempt.

    {"_ng_task_index":0,"_ng_rollout_index":1,"_ng_attempt":1,"agent":"simple_agent","started_at":1763300000.123456,
     "duration":2.5,"outcome":"completed","clock_ns":5000000000,"columns":[[["model","policy_model","/v1/responses",""],
     ["verify","weather","/verify",""]],[5001000000,5802000000],[5801000000,5812000000],[200,200],[30,0],[900,4200],
     [1200,310],[120,0],[0,0],["completed",""]]}

The steps are written as columns, in the order of ``StepColumns``: the n-th value of each belongs to the n-th step. So a
program that adds up a column reads nothing else, and recording a step costs little. ``troubles`` has more columns, and
is there only if a step needs them. Times are readings of the monotonic clock in nanoseconds; ``clock_ns`` is the
reading at the start of the rollout, and ``started_at`` the time of day. Earlier versions wrote a list ``steps``, which
is still read. Records are repaired when they are read, so readers may rely on this: times and counts are finite and not
negative, and the parent of a step comes before it.
"""

import math
from collections.abc import Sequence
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
    """One call. Processes send it to each other as an array, whose values come in the order of these fields."""

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


class RecordHead(msgspec.Struct, omit_defaults=True, gc=False, kw_only=True, rename=NAMES):
    """What a line says about the attempt itself."""

    task: int
    rollout: int
    attempt: Amount
    agent: str = ""
    started_at: Annotated[float, Meta(ge=0, le=_LATEST)] = 0.0
    duration: Seconds = 0.0
    waited: Seconds = 0.0  # the sum over the steps
    outcome: str = ""  # "completed", or the class of the failure
    run: str = ""  # from which the ids of its trace are derived, if the run sent traces


class RolloutSteps(RecordHead, gc=False, kw_only=True):
    """All steps of one attempt at a rollout, in the order in which they began."""

    steps: list[Step]


_WORDS: Final = STEP_FIELDS[:4]
_MICRO: Final = 1e6
_NANO: Final = 1e9
_MOST_NS: Final = 2**62

Clock: TypeAlias = Annotated[int, Meta(ge=0, le=_MOST_NS)]
Call: TypeAlias = tuple[str, str, str, str]


class StepColumns(msgspec.Struct, array_like=True, gc=False):
    """The columns of a record. What is added up most often comes first, so that the rest need not be read for it."""

    calls: list[Call]  # kind, server, route, tool
    start: list[Clock]
    end: list[Clock]
    status: list[Amount]
    tokens_out: list[Amount]
    bytes_out: list[Amount]
    bytes_in: list[Amount]
    tokens_in: list[Amount]
    tokens_cached: list[Amount]
    finish: list[str]


class TroubleColumns(msgspec.Struct, array_like=True, gc=False):
    """The columns that a record has only if one of its steps waited, was repeated or was made by another."""

    waited: list[Clock]
    waited_for: list[str]
    parent: list[Amount | None]
    retries: list[list[StepRetry]]


COLUMNS: Final = StepColumns.__struct_fields__
TROUBLES: Final = TroubleColumns.__struct_fields__


class _Line(RecordHead, omit_defaults=True, gc=False, kw_only=True):
    clock_ns: Clock = 0
    columns: StepColumns
    troubles: TroubleColumns | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Line).decode
_decode_rows = msgspec.json.Decoder(RolloutSteps).decode


def microseconds(seconds: float) -> float:
    """Round to the microsecond, and raise negative values to zero. Several times as fast as ``round``."""
    return int(seconds * _MICRO) / _MICRO if seconds > 0.0 else 0.0


def _seconds(nanoseconds: int) -> float:
    """To the microsecond; no time is negative, or longer than possible."""
    return min(max(0, nanoseconds) // 1000 / _MICRO, LONGEST_S)


def plain_step(entry: Sequence[Any], zero: int) -> Step:
    """The step of one row of the columns."""
    (kind, server, route, tool), start, end, status, tokens_out, sent, received, tokens_in, cached, finish = entry
    times = (_seconds(start - zero), _seconds(end - start))
    return Step(kind, server, route, tool, *times, status, sent, received, tokens_in, tokens_out, cached, finish)


def step_columns(steps: Sequence[Step], zero: int) -> dict[str, list[Any]]:
    """The steps as a line has them; ``zero`` is the clock at the start of the rollout."""
    starts = [zero + round(step.start * _NANO) for step in steps]
    columns = [
        [(step.kind, step.server, step.route, step.tool) for step in steps],
        starts,
        [start + round(step.duration * _NANO) for start, step in zip(starts, steps, strict=True)],
        *([getattr(step, name) for step in steps] for name in COLUMNS[3:]),
    ]
    if not any(step.waited or step.waited_for or step.parent is not None or step.retries for step in steps):
        return {"columns": columns}
    troubles = [
        [round(step.waited * _NANO) for step in steps],
        [step.waited_for for step in steps],
        [step.parent for step in steps],
        [msgspec.to_builtins(step.retries) for step in steps],
    ]
    return {"columns": columns, "troubles": troubles}


def to_line(record: RolloutSteps) -> bytes:
    """Encode a record as a line, without the line break."""
    head = RecordHead(**{name: getattr(record, name) for name in RecordHead.__struct_fields__})
    return _encode(msgspec.to_builtins(head) | {"clock_ns": 0} | step_columns(record.steps, 0))


def from_line(line: bytes) -> RolloutSteps | None:
    """Decode a record, or return None if the line does not hold one. Impossible values are dropped."""
    try:
        record = _as_record(_decode(line))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        try:
            record = _decode_rows(line)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return _repaired(line)
    for index, step in enumerate(record.steps):
        if step.parent is not None and step.parent >= index:
            step.parent = None
    return record


def _as_record(line: _Line) -> RolloutSteps:
    """Raises ValueError if the columns are not of one length."""
    head = {name: getattr(line, name) for name in RecordHead.__struct_fields__}
    zero = line.clock_ns
    steps = [plain_step(row, zero) for row in zip(*msgspec.structs.astuple(line.columns), strict=True)]
    for name in TROUBLES if line.troubles is not None else ():
        for step, value in zip(steps, getattr(line.troubles, name), strict=True):
            setattr(step, name, _seconds(value) if name == "waited" else value)
    return RolloutSteps(**head, steps=steps)


# ---- lines that are not as we write them ----------------------------------------------------------------------------
def _repaired(line: bytes) -> RolloutSteps | None:
    try:
        value = decode(line)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    task, rollout = value.get(TASK_INDEX_KEY_NAME), value.get(ROLLOUT_INDEX_KEY_NAME)
    steps = _rows_of(value) if "columns" in value else value.get("steps")
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


def _rows_of(value: dict[Any, Any]) -> list[Any] | None:
    """The steps of a line by their names, as far as its columns go."""
    columns, troubles = value["columns"], value.get("troubles")
    calls = columns[0] if isinstance(columns, list) and columns else None
    if not isinstance(calls, list):
        return None
    steps = [dict(zip(_WORDS, words, strict=False)) if isinstance(words, list) else {} for words in calls]
    named = [*zip(COLUMNS[1:], columns[1:], strict=False)]
    named += zip(TROUBLES, troubles if isinstance(troubles, list) else (), strict=False)
    for name, column in named:
        for step, given in zip(steps, column if isinstance(column, list) else (), strict=False):
            step[name] = given
    zero = _amount(value.get("clock_ns"), _MOST_NS)
    for step in steps:
        start, end, waited = (_amount(step.get(name), _MOST_NS) for name in ("start", "end", "waited"))
        step |= {"start": _seconds(start - zero), "duration": _seconds(end - start), "waited": _seconds(waited)}
    return steps


def _named(step: Any) -> dict[Any, Any]:
    """The fields of a step by name; the first version wrote them so."""
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


def _amount(value: Any, most: int = _LARGEST) -> int:
    return value if type(value) is int and 0 <= value <= most else 0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
