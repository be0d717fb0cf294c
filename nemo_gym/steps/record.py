"""Steps and records, and their JSON: a step is one call made by a rollout, a record holds all steps of one attempt.

    {"_ng_task_index":0,"_ng_rollout_index":1,"_ng_attempt":1,"agent":"simple_agent","started_at":1763300000.123456,
     "duration":2.5,"outcome":"completed","clock_ns":5000000000,
     "calls":[["model","policy_model","/v1/responses","","completed"],["verify","weather","/verify",""]],
     "numbers":[[5001000000,5801000000,200,900,1200,120,30,0],[5802000000,5812000000,200,4200,310]]}

Each of the ``calls`` is a step: kind, server, route, tool, and the reason why it finished, if there is one. Its
``numbers`` have the order of ``StepNumbers``; only calls of models have tokens. ``notes`` holds what few steps have.
Times are readings of the monotonic clock in nanoseconds, as they were taken, because working them out would cost more
than recording them; ``clock_ns`` is the reading at the start of the rollout, and ``started_at`` the time of day.
Earlier versions wrote eight numbers for every step, or a list ``steps``; both are still read. Records are repaired when
they are read, so readers may rely on this: times and counts are finite and not negative, and the parent of a step comes
before it.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from nemo_gym.io.json import decode
from nemo_gym.schemas.rows import ATTEMPT_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME

StepKind: TypeAlias = Literal["seed", "model", "tool", "verify", "judge", "call"]
KINDS: Final[tuple[StepKind, ...]] = ("seed", "model", "tool", "verify", "judge", "call")
MODEL_KINDS: Final[tuple[StepKind, ...]] = ("model", "judge")
COMPLETED: Final = "completed"
FAILED: Final = 0  # the status of a call that failed without an answer
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


_WORDS: Final = (*STEP_FIELDS[:4], "finish")
_MICRO: Final = 1e6
_NANO: Final = 1e9
MOST_NS: Final = 2**62

Clock: TypeAlias = Annotated[int, Meta(ge=0, le=MOST_NS)]


class StepNumbers(NamedTuple):
    """The numbers of one step."""

    start: Clock
    end: Clock
    status: Clock = 0
    bytes_out: Clock = 0
    bytes_in: Clock = 0
    tokens_in: Clock = 0
    tokens_out: Clock = 0
    tokens_cached: Clock = 0


NUMBERS: Final = len(StepNumbers._fields)
_NUMBERS_WITHOUT_TOKENS: Final = 5


def numbers_written(kind: str) -> int:
    """How many numbers are written of a step: only calls of models have tokens."""
    return NUMBERS if kind in MODEL_KINDS else _NUMBERS_WITHOUT_TOKENS


class StepNote(msgspec.Struct, array_like=True, gc=False):
    """What is known of a step that waited, was repeated or was made by another."""

    step: int  # its index
    waited: Clock = 0
    waited_for: str = ""
    parent: Amount | None = None
    retries: list[StepRetry] = []  # which msgspec copies


class StepsLine(RecordHead, omit_defaults=True, gc=False, kw_only=True):
    """A record as it is written."""

    clock_ns: Clock = 0
    calls: list[list[str]]
    numbers: list[StepNumbers]
    notes: list[StepNote] = []


class NewLine(msgspec.Struct, omit_defaults=True, gc=False, rename=NAMES):
    """A record as it is written at the end of an attempt; the same fields as in ``StepsLine``, whose calls are JSON."""

    task: int
    rollout: int
    attempt: int
    agent: str
    started_at: float
    duration: float
    outcome: str
    clock_ns: int
    calls: list[msgspec.Raw]
    numbers: list[Any]
    notes: list[StepNote] = []
    waited: float = 0.0
    run: str = ""


encode_line = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(StepsLine).decode


def seconds_of(nanoseconds: int) -> float:
    """To the microsecond; no time is negative, or longer than possible."""
    return min(max(0, nanoseconds) // 1000 / _MICRO, LONGEST_S)


def steps_of(
    calls: Iterable[Sequence[str]], numbers: Iterable[StepNumbers], notes: Iterable[StepNote], *, zero: int
) -> list[Step]:
    """The steps; ``zero`` is the clock at the start of the rollout. Raises ValueError if a step lacks its numbers."""
    steps = []
    for (kind, server, route, tool, *finish), each in zip(calls, numbers, strict=True):
        step = Step(kind, server, route, tool, seconds_of(each.start - zero), seconds_of(each.end - each.start))
        step.status, step.bytes_out, step.bytes_in = each.status, each.bytes_out, each.bytes_in
        step.tokens_in, step.tokens_out, step.tokens_cached = each.tokens_in, each.tokens_out, each.tokens_cached
        step.finish = finish[0] if finish else ""
        steps.append(step)
    for note in notes:
        if 0 <= note.step < len(steps):
            step = steps[note.step]
            step.waited, step.waited_for = seconds_of(note.waited), note.waited_for
            step.parent, step.retries = note.parent, note.retries
    return steps


def to_line(record: RolloutSteps) -> bytes:
    """Encode a record as a line, without the line break."""
    steps = record.steps
    line = StepsLine(
        **{name: getattr(record, name) for name in RecordHead.__struct_fields__},
        calls=[called(step.kind, step.server, step.route, step.tool, step.finish) for step in steps],
        numbers=[numbers_of(step)[: numbers_written(step.kind)] for step in steps],  # type: ignore[misc]
        notes=[note for index, step in enumerate(steps) if (note := note_on(index, step)) is not None],
    )
    return encode_line(line)


def called(kind: str, server: str, route: str, tool: str, finish: str = "") -> list[str]:
    """A call as a line has it."""
    return [kind, server, route, tool, *([finish] if finish else ())]


def note_on(index: int, step: Step) -> StepNote | None:
    """The note that a step needs, if any."""
    if step.waited or step.waited_for or step.parent is not None or step.retries:
        return StepNote(index, round(step.waited * _NANO), step.waited_for, step.parent, step.retries)
    return None


def numbers_of(step: Step) -> StepNumbers:
    """The numbers of a step, by a clock that was zero at the start of the rollout."""
    start = round(step.start * _NANO)
    end = start + round(step.duration * _NANO)
    tokens = (step.tokens_in, step.tokens_out, step.tokens_cached)
    return StepNumbers(start, end, step.status, step.bytes_out, step.bytes_in, *tokens)


def from_line(line: bytes) -> RolloutSteps | None:
    """Decode a record, or return None if the line does not hold one. Impossible values are dropped."""
    try:
        found = _decode(line)
        steps = steps_of(found.calls, found.numbers, found.notes, zero=found.clock_ns)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _repaired(line)
    for index, step in enumerate(steps):
        if step.parent is not None and step.parent >= index:
            step.parent = None
    return RolloutSteps(**{name: getattr(found, name) for name in RecordHead.__struct_fields__}, steps=steps)


# ---- lines that are not as we write them ----------------------------------------------------------------------------
def _repaired(line: bytes) -> RolloutSteps | None:
    try:
        value = decode(line)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    task, rollout = value.get(TASK_INDEX_KEY_NAME), value.get(ROLLOUT_INDEX_KEY_NAME)
    steps = _rows_of(value) if "numbers" in value else value.get("steps")
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
    """The steps of a line by their names, as far as they make sense."""
    calls, numbers, notes = (value.get(name) for name in ("calls", "numbers", "notes"))
    if not isinstance(calls, list) or not isinstance(numbers, list):
        return None
    steps = [_zipped(_WORDS, call) for call in calls]
    for step, given in zip(steps, numbers, strict=False):
        step.update(_zipped(StepNumbers._fields, given))
    for note in notes if isinstance(notes, list) else ():
        named = _zipped(StepNote.__struct_fields__, note)
        if (index := _amount(named.get("step"), len(steps))) < len(steps):
            steps[index] |= named
    zero = _amount(value.get("clock_ns"), MOST_NS)
    for step in steps:
        start, end, waited = (_amount(step.get(name), MOST_NS) for name in ("start", "end", "waited"))
        step |= {"start": seconds_of(start - zero), "duration": seconds_of(end - start), "waited": seconds_of(waited)}
    return steps


def _zipped(names: Iterable[str], values: Any) -> dict[Any, Any]:
    return dict(zip(names, values, strict=False)) if isinstance(values, list) else {}


def _named(step: Any) -> dict[Any, Any]:
    """The fields of a step by name; the first version wrote them so."""
    return step if isinstance(step, dict) else _zipped(STEP_FIELDS, step)


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
