"""Records the steps of a rollout while it runs, without the calling code having to know about it.

The code that runs an attempt opens a span for it. A span is a call in progress. A context variable holds the current
span, so a call made anywhere below it, in any task, becomes a step inside it. A server in another process opens its own
span for a request that asks for steps, and returns its steps with the reply (``remote``).

Durations are measured with the monotonic clock. A model server notes the tokens of a call (``note_completion``).
"""

from contextlib import suppress
from contextvars import ContextVar
from time import perf_counter, perf_counter_ns
from typing import Any, Final, NamedTuple

import msgspec

from nemo_gym.steps.rollout_steps import FAILED, LARGEST, MODEL_KINDS, CompletionFacts, Step, StepKind, StepRetry

MOST_STEPS: Final = 10_000  # of one attempt; bounds the memory of an agent that loops
MODELS: Final = "responses_api_models"
RESOURCES: Final = "resources_servers"
SERVICE_ROUTES: Final = "/ng-"  # at a model server: they generate nothing


class Callee:
    """The target of a call: what a record says about every call of it, apart from the numbers."""

    __slots__ = ("is_model", "is_resources", "kind", "names", "route")

    def __init__(self, kind: StepKind, server: str, route: str, tool: str = "", *, is_resources: bool = False) -> None:
        self.kind, self.route, self.is_resources = kind, route, is_resources
        self.is_model = kind in MODEL_KINDS
        self.names = (kind, server, route, tool)


_MOST_ROUTES: Final = 1024  # that are remembered; they come from outside


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


class TraceContext(NamedTuple):
    """A trace, and the span in it that the recorded calls belong to."""

    trace: bytes
    span: bytes


class Trail(msgspec.Struct, eq=False, weakref=True):
    """The steps of an attempt as they are recorded. A call that is still open has no duration and no status yet."""

    zero: int  # the clock when the attempt began
    room: int = MOST_STEPS  # for steps; none before the call of the agent, which is the attempt itself
    steps: list[Step] = []  # which msgspec copies
    root: Step = msgspec.field(default_factory=Step)  # what the attempt itself waited for and repeated
    trace: TraceContext | None = None  # only if the run sends traces
    is_counted: bool = False  # in the metrics of the process that made the first call
    rollout: str = ""  # an id, if other processes take part
    is_sent: bool = False  # of a request from another process: whether its steps have been returned

    @property
    def model_calls(self) -> int:
        """How many calls of models have ended."""
        return sum(step.kind in MODEL_KINDS and step.status > 0 for step in self.steps)

    @property
    def waited(self) -> float:
        """The seconds that all steps waited."""
        return self.root.waited + sum(step.waited for step in self.steps)


def seconds_of(nanoseconds: int) -> float:
    """To the microsecond."""
    return nanoseconds // 1000 / 1e6


class Span(msgspec.Struct, gc=False, eq=False):
    """A call in progress.

    It stays current when it ends, because to set a context variable back costs as much as the rest of the recording.
    Calls that are made later find the span that they belong to by way of ``outlived_by``.
    """

    callee: Callee
    trail: Trail
    caller: "Span | None"
    step: Step
    index: int  # of the step
    start: int
    outlived_by: "Span | None" = None  # once this call has ended: the one that made it
    completion: CompletionFacts | None = None  # of a model, noted by its server

    def begin(self, callee: Callee) -> "Span":
        """Begin a step inside this one, and make it the current one."""
        trail = self.trail
        index = len(trail.steps)
        if index >= trail.room:
            return self._begin_unrecorded()
        start = perf_counter_ns()
        step = Step(*callee.names, seconds_of(start - trail.zero))
        if self.index >= 0:
            step.parent = self.index
        trail.steps.append(step)
        span = Span(callee, trail, self, step, index, start)
        _make_current(span)
        return span

    def _begin_unrecorded(self) -> "Span":
        trail = self.trail
        if trail.steps:
            span = root_span(trail)
            _make_current(span)
            return span
        trail.room = MOST_STEPS  # the attempt itself begins
        return self

    def end(self, status: int, sent: int, received: bytes) -> None:
        """Record that the call got its reply."""
        step, facts = self.step, self.completion
        step.duration = seconds_of(perf_counter_ns() - self.start)
        step.status, step.bytes_out, step.bytes_in = status, sent, len(received)
        self.outlived_by = self.caller
        if facts is not None and status < 400 and self.callee.is_model:
            step.tokens_in, step.tokens_out = facts.tokens_in, facts.tokens_out
            step.tokens_cached, step.finish = facts.tokens_cached, facts.finish

    def fail(self, error: BaseException) -> None:
        """Record that the call failed without a reply."""
        self.end(FAILED, 0, b"")
        self.step.finish = type(error).__name__

    def wait(self, seconds: float, cause: str) -> None:
        """Record that part of this call was spent waiting: for a slot, the gate, a connection or a retry."""
        step, waited = self.step, max(0, int(seconds * 1e6)) / 1e6
        if waited > step.waited:
            step.waited_for = cause
        step.waited += waited

    def retry(self, *retries: StepRetry) -> None:
        """Record failed attempts that were repeated."""
        self.step.retries += retries


class RootSpan(Span, gc=False, eq=False):
    """The attempt itself, a request from another process, or a call beyond those that are recorded: not a step."""

    def end(self, status: int, sent: int, received: bytes) -> None:
        """Nothing to record."""

    def fail(self, error: BaseException) -> None:
        """Nothing to record."""


_ATTEMPT: Final = Callee("call", "", "")
ROOT: Final = -1  # the index of a root span


def first_span() -> Span:
    """The root span for a request from another process."""
    return root_span(Trail(perf_counter_ns()))


def attempt_span() -> Span:
    """The root span of an attempt."""
    return root_span(Trail(perf_counter_ns(), room=0))


def root_span(trail: Trail) -> Span:
    """A root span. Given the trail of an attempt, the steps of calls that come from outside join the others."""
    return RootSpan(_ATTEMPT, trail, None, trail.root, ROOT, 0)


current_span: ContextVar[Span | None] = ContextVar("span", default=None)  # or one that has ended
_make_current = current_span.set


def open_span() -> Span | None:
    """The call in progress that the calling code belongs to; None if that is not part of a rollout with steps."""
    span = current_span.get()
    while span is not None and span.outlived_by is not None:
        span = span.outlived_by
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
        span.retry(StepRetry(seconds_of(perf_counter_ns() - span.trail.zero), failed))
        span.wait(delay_s, "retry")


def describe_callee(server_type: str, server: str, path: str, *, from_resources: bool) -> Callee:
    """Determine the kind of step from the type of the server, the route and the caller."""
    route = path.partition("?")[0]
    if server_type == MODELS and not route.startswith(SERVICE_ROUTES):
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


# ---- the completions of models ---------------------------------------------------------------------------------------
class _Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = 0


class _Usage(msgspec.Struct, gc=False):
    """The token counts of all three protocols."""

    input_tokens: int | None = 0
    output_tokens: int | None = 0
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: int | None = 0
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: _Details | None = None


class _Incomplete(msgspec.Struct, gc=False):
    reason: str | None = None


class _Choice(msgspec.Struct, gc=False):
    finish_reason: str | None = None


class _Outline(msgspec.Struct, gc=False):
    """A response, a chat completion or a message, as far as it is recorded."""

    object: str = ""
    usage: _Usage | None = None
    incomplete_details: _Incomplete | None = None
    choices: list[_Choice] | None = None
    stop_reason: str | None = None

    def facts(self) -> CompletionFacts:
        """The tokens, and why the model stopped."""
        usage = self.usage or _Usage()
        details = usage.input_tokens_details or usage.prompt_tokens_details
        finish = self.incomplete_details.reason if self.incomplete_details else self.stop_reason
        if self.choices:
            finish = self.choices[0].finish_reason
        return CompletionFacts(
            _possible(usage.input_tokens or usage.prompt_tokens),
            _possible(usage.output_tokens or usage.completion_tokens),
            _possible(details.cached_tokens if details else usage.cache_read_input_tokens),
            finish or ("completed" if self.object == "response" else ""),
        )


def _possible(count: int | None) -> int:
    return count if count is not None and 0 <= count <= LARGEST else 0


_decode_outline = msgspec.json.Decoder(_Outline).decode


def note_completion(completion: Any) -> None:
    """Record what the model of the current call returned: a completion as an object, a dictionary, or JSON.

    What is noted later replaces what was noted before, as far as it is known.
    """
    span = open_span()
    if span is None:
        return
    with suppress(msgspec.MsgspecError, ValueError, RecursionError):
        if isinstance(completion, bytes):
            outline = _decode_outline(completion)
        else:
            outline = msgspec.convert(completion, _Outline, from_attributes=True)
        facts = outline.facts()
        if span.completion is not None:
            pairs = zip(msgspec.structs.astuple(facts), msgspec.structs.astuple(span.completion), strict=True)
            facts = CompletionFacts(*(new or old for new, old in pairs))
        span.completion = facts
