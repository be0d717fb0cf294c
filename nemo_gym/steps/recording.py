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

from nemo_gym.steps.record import Step, StepKind, StepRetry, microseconds, plain_step, step_columns

if TYPE_CHECKING:
    from nemo_gym.steps.trace_context import TraceContext

MOST_STEPS: Final = 10_000  # of one attempt; bounds the memory of an agent that loops
MODELS: Final = "responses_api_models"
RESOURCES: Final = "resources_servers"


class Callee:
    """The target of a call: those fields of a step that are the same for every call."""

    __slots__ = ("is_model", "is_resources", "kind", "route", "tool", "words")

    def __init__(self, kind: StepKind, server: str, route: str, tool: str = "", *, is_resources: bool = False) -> None:
        self.kind, self.route, self.tool, self.is_resources = kind, route, tool, is_resources
        self.is_model = kind in ("model", "judge")
        self.words = (kind, server, route, tool)  # the first fields of a step


class Trail(list[Any]):
    """The steps of an attempt: tuples in the order of the columns of a record, steps with more to them, or open spans.

    Times are readings of the clock in nanoseconds; whoever reads the record converts them.
    """

    __slots__ = ("__weakref__", "trace", "waited", "zero")

    def __init__(self) -> None:
        self.zero = perf_counter_ns()
        self.waited = 0.0  # of all steps together
        self.trace: TraceContext | None = None  # only if the run sends traces

    def columns(self) -> dict[str, list[Any]]:
        """The steps as a line has them, one column after the other."""
        if set(map(type, self)) == _PLAIN:
            return {"columns": list(zip(*self))}  # noqa: B905 - they are alike, and checking costs something
        return step_columns(self.steps(), self.zero)

    def steps(self) -> list[Step]:
        """The steps one by one."""
        zero = self.zero
        return [
            plain_step(entry, zero)
            if type(entry) is tuple
            else entry
            if type(entry) is Step
            else entry.step(entry.start, 0, 0, 0, _NOT_TOLD)
            for entry in self
        ]


_PLAIN: Final = {tuple}


class Troubles(msgspec.Struct):
    """What delayed a call."""

    waited: float = 0.0
    waited_for: str = ""
    retries: list[StepRetry] = []  # which msgspec copies


# Token counts (in, out, cached) and finish reason of a model's answer: the next fields of a step.
Told: TypeAlias = tuple[int, int, int, str]
_NOT_TOLD: Final[Told] = (0, 0, 0, "")


class Span:
    """A call in progress. The root span of an attempt is not itself a step.

    It has no constructor, because that would cost more than everything else that is recorded of a call.
    """

    __slots__ = ("answer", "callee", "index", "parent", "start", "steps", "troubles")

    steps: Trail
    callee: Callee
    index: int | None
    parent: int | None
    start: int
    troubles: Troubles | None
    answer: "tuple[bytes, Told] | None"  # set by code that has parsed the answer of the model anyway

    def begin(self, callee: Callee) -> "Span":
        """Begin a step inside this one."""
        steps = self.steps
        index = len(steps)
        span = _new_span(steps, callee, index)
        span.parent, span.start = self.index, perf_counter_ns()
        if index < MOST_STEPS:
            steps.append(span)
        return span

    def end(self, status: int, sent: int, received: bytes) -> None:
        """Record that the call was answered."""
        end, callee, index, told = perf_counter_ns(), self.callee, self.index, _NOT_TOLD
        if callee.is_model and status < 400:
            answer = self.answer
            told = answer[1] if answer is not None and answer[0] is received else told_by(received, callee.route)
        if index is None or index >= MOST_STEPS:
            return
        if self.parent is None and self.troubles is None:
            tokens_in, tokens_out, cached, finish = told
            size = len(received)
            steps = self.steps
            steps[index] = (callee.words, self.start, end, status, tokens_out, sent, size, tokens_in, cached, finish)
        else:
            self.steps[index] = self.step(end, status, sent, len(received), told)

    def fail(self, error: BaseException) -> None:
        """Record that the call failed without an answer."""
        index = self.index
        if index is not None and 0 <= index < MOST_STEPS:
            self.steps[index] = self.step(perf_counter_ns(), 0, 0, 0, (0, 0, 0, type(error).__name__))

    def wait(self, seconds: float, cause: str) -> None:
        """Record that part of this call was spent waiting: for a slot, the gate, a connection or a retry."""
        if self.troubles is None:
            self.troubles = Troubles()
        if seconds > self.troubles.waited:
            self.troubles.waited_for = cause
        self.troubles.waited += seconds
        self.steps.waited += seconds

    def retry(self, *retries: StepRetry) -> None:
        """Record failed attempts that were repeated."""
        if self.troubles is None:
            self.troubles = Troubles()
        self.troubles.retries += retries

    def step(self, end: int, status: int, sent: int, received: int, told: Told) -> Step:
        """The step of this call if it ended then."""
        words, start, troubles = self.callee.words, self.start, self.troubles or Troubles()
        tokens_in, tokens_out, cached, finish = told
        step = plain_step(
            (words, start, end, status, tokens_out, sent, received, tokens_in, cached, finish), self.steps.zero
        )
        step.waited, step.waited_for = microseconds(troubles.waited), troubles.waited_for
        step.parent, step.retries = self.parent, troubles.retries
        return step


_ATTEMPT: Final = Callee("call", "", "")
FRESH: Final = -1  # the index of a root span whose first call is the attempt itself, which is not recorded as a step


def first_span() -> Span:
    """The root span for a request from another process."""
    return _new_span(Trail(), _ATTEMPT, None)


def joining_span(steps: Trail) -> Span:
    """A root span for calls that belong to an attempt but come from outside: their steps join the others."""
    return _new_span(steps, _ATTEMPT, None)


def attempt_span() -> Span:
    """The root span of an attempt."""
    return _new_span(Trail(), _ATTEMPT, FRESH)


def _new_span(steps: Trail, callee: Callee, index: int | None) -> Span:
    span = Span()
    span.steps, span.callee, span.index, span.start = steps, callee, index, 0
    span.parent = span.troubles = span.answer = None
    return span


current_span: ContextVar[Span | None] = ContextVar("span", default=None)


def note_wait(since: float, cause: str) -> None:
    """Record that the current call has been waiting since the given time."""
    span = current_span.get()
    if span is not None:
        span.wait(perf_counter() - since, cause)


def note_retry(failed: str, delay_s: float) -> None:
    """Record that an attempt at the current call failed and will be repeated."""
    span = current_span.get()
    if span is not None:
        span.retry(StepRetry((perf_counter_ns() - span.steps.zero) // 1000 / 1e6, failed))
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
