"""Records the steps of a rollout while it runs, without the calling code having to know about it.

The code that runs an attempt opens a span for it. A span is a call in progress. A context variable holds the current
span, so a call made anywhere below it, in any task, becomes a step inside it. A server in another process opens its own
span for a request that asks for steps, and returns its steps with the answer (``remote``).

Durations are measured with the monotonic clock.
"""

import re
from contextlib import suppress
from contextvars import ContextVar
from time import perf_counter
from typing import Final

import msgspec

from nemo_gym.io.json import encode
from nemo_gym.steps.record import Step, StepKind, StepRetry, microseconds

MOST_STEPS: Final = 10_000  # of one attempt; bounds the memory of an agent that loops
MODELS: Final = "responses_api_models"
RESOURCES: Final = "resources_servers"


class Callee:
    """The target of a call: those fields of a step that are the same for every call, encoded once."""

    __slots__ = ("is_model", "is_resources", "kind", "prefix", "route", "tool")

    def __init__(self, kind: StepKind, server: str, route: str, tool: str = "", *, is_resources: bool = False) -> None:
        self.kind, self.route, self.tool, self.is_resources = kind, route, tool, is_resources
        self.is_model = kind in ("model", "judge")
        words = {"kind": kind, "server": server, "route": route, "tool": tool}
        # The prefix becomes part of a format string, in which a single per cent sign would start a placeholder.
        self.prefix = encode({name: word for name, word in words.items() if word})[:-1].replace(b"%", b"%%")


class Span(msgspec.Struct):
    """A call in progress or ended, and the list of all calls of its attempt. The root span is not itself a step."""

    steps: "list[Span | Step]"
    zero: float
    callee: Callee
    index: int | None = None
    parent: int | None = None
    start: float = 0.0
    end_: float = 0.0
    status: int = 0
    sent: int = 0
    received: int = 0
    told: bytes = b""  # token counts and finish reason from a model's answer, as the last fields of the encoded step
    waited: float = 0.0
    waited_for: str = ""
    retries: "tuple[StepRetry, ...]" = ()
    failed: str = ""
    is_fresh: bool = False

    def begin(self, callee: Callee) -> "Span":
        """Begin a step inside this one."""
        steps = self.steps
        index = len(steps)
        span = Span(steps, self.zero, callee, index, self.index, perf_counter())
        if index < MOST_STEPS:
            steps.append(span)
        return span

    def end(self, status: int, sent: int, received: bytes) -> None:
        """Record that the call was answered."""
        self.end_ = perf_counter()
        self.status = status
        self.sent = sent
        self.received = len(received)
        if self.callee.is_model and status < 400:
            self.told = told_by(received, self.callee.route)

    def fail(self, error: BaseException) -> None:
        """Record that the call failed without an answer."""
        self.end_ = perf_counter()
        self.failed = type(error).__name__

    def wait(self, seconds: float, cause: str) -> None:
        """Record that part of this call was spent waiting: for a slot, the gate, a connection or a retry."""
        if seconds > self.waited:
            self.waited_for = cause
        self.waited += seconds

    def encoded(self) -> bytes:
        """The step as JSON, formatted by hand, because building an object only to encode it costs more."""
        start, end = self.start, self.end_
        line = (self.callee.prefix + _TIMES) % (
            start - self.zero,
            end - start if end else 0.0,
            self.status,
            self.sent,
            self.received,
            self.told,
        )
        if self.parent is not None:
            line += b',"parent":%d' % self.parent
        if self.failed or self.waited or self.retries:
            line += self._troubles()
        return line + b"}"

    def _troubles(self) -> bytes:
        told: dict[str, object] = {}
        if self.failed:
            told["finish"] = self.failed
        if self.waited:
            told["waited"], told["waited_for"] = round(self.waited, 6), self.waited_for
        if self.retries:
            told["retries"] = [{"at": retry.at, "failed": retry.failed} for retry in self.retries]
        return b"," + encode(told)[1:-1]


_TIMES: Final = b',"start":%.6f,"duration":%.6f,"status":%d,"bytes_out":%d,"bytes_in":%d%b'
_ATTEMPT: Final = Callee("call", "", "")


def first_span() -> Span:
    """The root span for a request from another process."""
    return Span([], perf_counter(), _ATTEMPT)


def attempt_span() -> Span:
    """The root span of an attempt; its first call is the attempt itself, which is not recorded as a step."""
    return Span([], perf_counter(), _ATTEMPT, is_fresh=True)


def encode_steps(span: Span) -> bytes:
    """All steps of an attempt, as a JSON list."""
    return b"[%b]" % b",".join([step.encoded() if type(step) is Span else _encode(step) for step in span.steps])


_encode = msgspec.json.Encoder().encode
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
        span.retries = (*span.retries, StepRetry(microseconds(perf_counter() - span.zero), failed))
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
_TOKENS: Final = b',"tokens_in":%d,"tokens_out":%d'


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


_read_usage = msgspec.json.Decoder(_Usage).decode
_REASON: Final = re.compile(rb'"(?:finish_reason|stop_reason)":\s?"(\w{1,40})"')
_INCOMPLETE: Final = re.compile(rb'"reason":\s?"(\w{1,40})"')


def told_by(body: bytes, route: str) -> bytes:
    """Token counts and finish reason as the last fields of an encoded step, if found in the usual places."""
    size = len(body)
    place = body.rfind(_USAGE, size - _TAIL if size > _TAIL else 0)
    told = b""
    if place >= 0:
        usage = _usage_at(body, place + len(_USAGE))
        told = _TOKENS % (
            usage.input_tokens or usage.prompt_tokens or 0,
            usage.output_tokens or usage.completion_tokens or 0,
        )
        details = usage.input_tokens_details or usage.prompt_tokens_details
        cached = details.cached_tokens if details else usage.cache_read_input_tokens
        if cached:
            told += b',"tokens_cached":%d' % cached
    if route.endswith("/responses"):
        incomplete = body.find(b'"incomplete_details":{', 0, _HEAD)
        if incomplete < 0:
            return told + b',"finish":"completed"' if told else told
        reason = _INCOMPLETE.search(body, incomplete, incomplete + 100)
    else:
        reason = _REASON.search(body, max(0, size - _TAIL)) or _REASON.search(body, 0, _HEAD)
    return told + b',"finish":"%b"' % reason[1] if reason else told


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
    return _Usage()
