"""Records the steps of a rollout while it runs, without the calling code having to know about it.

The code that runs an attempt opens a span for it. A span is a call in progress. A context variable holds the current
span, so a call made anywhere below it, in any task, becomes a step inside it. A server in another process opens its own
span for a request that asks for steps, and returns its steps with the answer (``remote``).

Durations are measured with the monotonic clock.
"""

import re
from contextlib import suppress
from contextvars import ContextVar
from time import perf_counter, perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from nemo_gym.io.json import decode, encode
from nemo_gym.steps.record import (
    FAILED,
    MODEL_KINDS,
    MOST_NS,
    Step,
    StepKind,
    StepNote,
    StepNumbers,
    StepRetry,
    called,
    note_on,
    numbers_of,
    numbers_written,
    steps_of,
)

if TYPE_CHECKING:
    from nemo_gym.steps.trace_context import TraceContext

MOST_STEPS: Final = 10_000  # of one attempt; bounds the memory of an agent that loops
MODELS: Final = "responses_api_models"
RESOURCES: Final = "resources_servers"


class Callee:
    """The target of a call: what a record says about every call of it, apart from the numbers."""

    __slots__ = ("_finished", "is_model", "is_resources", "json", "kind", "route", "words")

    def __init__(self, kind: StepKind, server: str, route: str, tool: str = "", *, is_resources: bool = False) -> None:
        self.kind, self.route, self.is_resources = kind, route, is_resources
        self.is_model = kind in MODEL_KINDS
        self.words = (kind, server, route, tool)
        self.json = msgspec.Raw(encode(self.words))
        self._finished: dict[str, msgspec.Raw] = {}

    def finished(self, reason: str) -> msgspec.Raw:
        """The JSON of a call that finished for this reason."""
        found = self._finished.get(reason)
        if found is None:
            found = msgspec.Raw(encode(called(*self.words, reason)))
            if len(self._finished) < _MOST_REASONS:
                self._finished[reason] = found
        return found


_MOST_REASONS: Final = 64  # that are remembered; they come from outside
_MOST_ROUTES: Final = 1024  # likewise


class Callees:
    """The targets at one server."""

    __slots__ = ("_server", "of_others", "of_resources")

    def __init__(self, server_type: str, server: str) -> None:
        self._server = (server_type, server)
        self.of_resources: dict[str, Callee] = {}  # by path, for calls made by resources servers
        self.of_others: dict[str, Callee] = {}

    def find(self, path: str, caller: "Span") -> Callee:
        """The target for a call of that path."""
        known = self.of_resources if caller.callee.is_resources else self.of_others
        callee = known.get(path)
        if callee is None:
            callee = describe_callee(*self._server, path, from_resources=caller.callee.is_resources)
            if len(known) < _MOST_ROUTES:
                known[path] = callee
        return callee


class Trail(msgspec.Struct, eq=False, weakref=True):
    """The steps of an attempt as they are recorded: times as the clock gives them, and calls as JSON.

    Whatever can be left for those who read the record is left for them.
    """

    zero: int  # the clock when the attempt began
    room: int = MOST_STEPS  # for steps; none before the call of the agent, which is the attempt itself
    calls: list[msgspec.Raw] = []  # which msgspec copies, like the next two
    rows: list[Any] = []  # tuples in the order of ``StepNumbers``, or spans that are open
    notes: dict[int, StepNote] = {}  # by the index of the step
    trace: "TraceContext | None" = None  # only if the run sends traces
    is_counted: bool = False  # in the metrics of the process that made the first call
    rollout: str = ""  # an id, if other processes take part
    is_sent: bool = False  # of a request from another process: whether its steps have been returned

    def note(self, index: int) -> StepNote:
        """The note on a step."""
        found = self.notes.get(index)
        if found is None:
            found = self.notes[index] = StepNote(index)
        return found

    def add(self, step: Step) -> None:
        """Add a step that was recorded elsewhere."""
        index = len(self.rows)
        start, end, *counts = numbers_of(step)
        self.calls.append(msgspec.Raw(encode(called(step.kind, step.server, step.route, step.tool, step.finish))))
        self.rows.append((self.zero + start, self.zero + end, *counts)[: numbers_written(step.kind)])
        note = note_on(index, step)
        if note is not None:
            self.notes[index] = note

    @property
    def waited(self) -> int:
        """The nanoseconds that all steps waited."""
        return sum(note.waited for note in self.notes.values())

    def numbers(self) -> list[StepNumbers]:
        """The numbers of all steps. A call that is still open ends where it began; impossible numbers become zero."""
        rows = [row if type(row) is tuple else (row.start, row.start) for row in self.rows]
        return [StepNumbers(*(number if number <= MOST_NS else 0 for number in row)) for row in rows]

    def steps(self) -> list[Step]:
        """The steps one by one."""
        calls = (decode(bytes(call)) for call in self.calls)
        return steps_of(calls, self.numbers(), self.notes.values(), zero=self.zero)


# Token counts (in, out, cached) and finish reason of a model's answer.
Told: TypeAlias = tuple[int, int, int, str]


class Span(msgspec.Struct, gc=False, eq=False):
    """A call in progress.

    It stays current when it ends, because to set a context variable back costs as much as the rest of the recording.
    Calls that are made later find the span that they belong to by way of ``heir``.
    """

    callee: Callee
    trail: Trail
    caller: "Span | None"
    index: int  # of the step
    start: int
    heir: "Span | None" = None  # once this call has ended: the one that made it
    answer: tuple[bytes, Told] | None = None  # set by code that has parsed the answer of the model anyway

    def begin(self, callee: Callee) -> "Span":
        """Begin a step inside this one, and make it the current one."""
        trail = self.trail
        rows = trail.rows
        index = len(rows)
        if index >= trail.room:
            return self._begin_unrecorded()
        if self.index >= 0:
            trail.note(index).parent = self.index
        span = Span(callee, trail, self, index, perf_counter_ns())
        rows.append(span)
        trail.calls.append(callee.json)
        _make_current(span)
        return span

    def _begin_unrecorded(self) -> "Span":
        trail = self.trail
        if trail.rows:
            span = root_span(trail)
            _make_current(span)
            return span
        trail.room = MOST_STEPS  # the attempt itself begins
        return self

    def end(self, status: int, sent: int, received: bytes) -> None:
        """Record that the call was answered."""
        end, callee, trail = perf_counter_ns(), self.callee, self.trail
        self.heir = self.caller
        if not callee.is_model:
            trail.rows[self.index] = (self.start, end, status, sent, len(received))
            return
        answer = self.answer
        if status >= 400:
            told = _NOTHING_TOLD
        elif answer is not None and answer[0] is received:
            told = answer[1]
        else:
            told = told_by(received, callee.route)
        tokens_in, tokens_out, cached, finish = told
        trail.rows[self.index] = (self.start, end, status, sent, len(received), tokens_in, tokens_out, cached)
        if finish:
            trail.calls[self.index] = callee.finished(finish)

    def fail(self, error: BaseException) -> None:
        """Record that the call failed without an answer."""
        self.end(FAILED, 0, b"")
        self.trail.calls[self.index] = self.callee.finished(type(error).__name__)

    def wait(self, seconds: float, cause: str) -> None:
        """Record that part of this call was spent waiting: for a slot, the gate, a connection or a retry."""
        note, waited = self.trail.note(self.index), max(0, int(seconds * 1e9))
        if waited > note.waited:
            note.waited_for = cause
        note.waited += waited

    def retry(self, *retries: StepRetry) -> None:
        """Record failed attempts that were repeated."""
        self.trail.note(self.index).retries += retries


class RootSpan(Span, gc=False, eq=False):
    """The attempt itself, a request from another process, or a call beyond those that are recorded: not a step."""

    def end(self, status: int, sent: int, received: bytes) -> None:
        """Nothing to record."""

    def fail(self, error: BaseException) -> None:
        """Nothing to record."""


_ATTEMPT: Final = Callee("call", "", "")
_NOTHING_TOLD: Final[Told] = (0, 0, 0, "")
ROOT: Final = -1  # the index of a root span


def first_span() -> Span:
    """The root span for a request from another process."""
    return root_span(Trail(perf_counter_ns()))


def attempt_span() -> Span:
    """The root span of an attempt."""
    return RootSpan(_ATTEMPT, Trail(perf_counter_ns(), 0), None, ROOT, 0)


def root_span(trail: Trail) -> Span:
    """A root span. Given the trail of an attempt, the steps of calls that come from outside join the others."""
    return RootSpan(_ATTEMPT, trail, None, ROOT, 0)


current_span: ContextVar[Span | None] = ContextVar("span", default=None)  # or one that has ended
_make_current = current_span.set


def open_span() -> Span | None:
    """The call in progress that the calling code belongs to; None if that is not part of a rollout with steps."""
    span = current_span.get()
    while span is not None and span.heir is not None:
        span = span.heir
    return span


def note_wait(since: float, cause: str) -> None:
    """Record that the current call has been waiting since the given time."""
    span = open_span()
    if span is not None:
        span.wait(perf_counter() - since, cause)


def note_retry(failed: str, delay_s: float) -> None:
    """Record that an attempt at the current call failed and will be repeated."""
    span = open_span()
    if span is not None:
        span.retry(StepRetry((perf_counter_ns() - span.trail.zero) // 1000 / 1e6, failed))
        span.wait(delay_s, "retry")


def describe_callee(server_type: str, server: str, path: str, *, from_resources: bool) -> Callee:
    """Determine the kind of step from the type of the server, the route and the caller."""
    route = path.partition("?")[0]
    if server_type == MODELS:
        return Callee("judge" if from_resources else "model", server, route)
    if server_type != RESOURCES or from_resources:
        return Callee("call", server, route, is_resources=server_type == RESOURCES)
    kind = _RESOURCES_ROUTES.get(route, "tool")
    return Callee(kind, server, route, route.strip("/") if kind == "tool" else "", is_resources=True)


_RESOURCES_ROUTES: Final[dict[str, StepKind]] = {
    "/seed_session": "seed",
    "/verify": "verify",
    "/aggregate_metrics": "call",
}


# ---- what an answer of a model tells ---------------------------------------------------------------------------------
# Only the ends of the body are searched: it may be long, and parsing it would cost more than the rest of the recording.
_TAIL: Final = 2048
_HEAD: Final = 512
_USAGE: Final = b'"usage":'


class _Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = 0


class _Usage(msgspec.Struct, gc=False):
    input_tokens: int | None = 0
    output_tokens: int | None = 0
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: int | None = 0
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: _Details | None = None


_NO_USAGE: Final = _Usage()
_read_usage = msgspec.json.Decoder(_Usage).decode
_REASON: Final = re.compile(rb'"(?:finish_reason|stop_reason)":\s?"([a-zA-Z0-9_]{1,40})"')
_INCOMPLETE: Final = re.compile(rb'"reason":\s?"([a-zA-Z0-9_]{1,40})"')


def told_by(body: bytes, route: str) -> Told:
    """Token counts and finish reason, if they are found in the usual places."""
    size = len(body)
    place = body.rfind(_USAGE, size - _TAIL if size > _TAIL else 0)
    usage = _usage_at(body, place + len(_USAGE)) if place >= 0 else _NO_USAGE
    details = usage.input_tokens_details or usage.prompt_tokens_details
    return (
        usage.input_tokens or usage.prompt_tokens or 0,
        usage.output_tokens or usage.completion_tokens or 0,
        (details.cached_tokens if details else usage.cache_read_input_tokens) or 0,
        _finish_of(body, route, has_usage=place >= 0),
    )


def _finish_of(body: bytes, route: str, *, has_usage: bool) -> str:
    if route.endswith("/responses"):
        incomplete = body.find(b'"incomplete_details":{', 0, _HEAD)
        if incomplete < 0:
            return "completed" if has_usage else ""
        reason = _INCOMPLETE.search(body, incomplete, incomplete + 100)
    else:
        reason = _REASON.search(body, max(0, len(body) - _TAIL)) or _REASON.search(body, 0, _HEAD)
    return reason[1].decode() if reason else ""


def _usage_at(body: bytes, start: int) -> _Usage:
    """Decode the usage object that starts there.

    It is usually the last value in the body; otherwise its end is found by counting braces.
    """
    try:
        return _read_usage(body[start:-1])
    except (msgspec.MsgspecError, ValueError):
        end = start
    for _ in range(8):
        end = body.find(b"}", end) + 1
        if end and body.count(b"{", start, end) == body.count(b"}", start, end):
            with suppress(msgspec.MsgspecError, ValueError):
                return _read_usage(body[start:end])
    return _NO_USAGE
