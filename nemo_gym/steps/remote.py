"""Steps of a call to another process: requested in a header, returned behind the body of the reply.

A header of the reply gives the number of bytes after the body. They are sent only on request, and the client that
requested them removes them before it passes the reply on. Behind a streamed reply their number follows them, because
it is not known when the header is sent. Times reported by another process are trusted only as far as they fit into the
call.

Agents call tools over MCP with clients that ask for nothing. Their steps are kept until the next request of the same
rollout, and returned with its steps. A header with an id says which requests belong together.
"""

from collections import OrderedDict
from collections.abc import Iterable
from contextvars import ContextVar
from time import perf_counter_ns
from typing import Final

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nemo_gym.steps.recording import MOST_STEPS, Span, Trail, current_span, first_span
from nemo_gym.steps.rollout_steps import LONGEST_S, CompletionFacts, Seconds, Step, StepRetry
from nemo_gym.steps.trace_context import read_traceparent

HEADER: Final = "X-NG-Steps"
ASK: Final = {HEADER: "1"}
ASK_AND_COUNT: Final = {HEADER: "counted"}  # the caller counts these steps in its metrics
ROLLOUT_HEADER: Final = "X-NG-Steps-Of"
_RAW_ROLLOUT_HEADER: Final = ROLLOUT_HEADER.lower().encode()
MOST_PENDING: Final = 10_000  # rollouts whose steps are kept
TAIL_AT_END: Final = "end"  # the value of the header if the number of bytes comes last
TAIL_DIGITS: Final = 8
_RAW_HEADER: Final = HEADER.lower().encode()


class InnerSteps(msgspec.Struct, omit_defaults=True, gc=False):
    """What a server reports about a call: how long it took there, and the calls it made."""

    duration: Seconds = 0.0
    waited: Seconds = 0.0
    waited_for: str = ""
    retries: list[StepRetry] = []  # which msgspec copies
    steps: list[Step] = []
    completion: CompletionFacts | None = None  # if the server is a model's
    # Of the same rollout since its last call; their start tells how long before the end of this call they began.
    earlier: list[Step] = []


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(InnerSteps).decode


# ---- the server ------------------------------------------------------------------------------------------------------
def asks_for_steps(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a request asks for the steps of its call."""
    return any(name == _RAW_HEADER for name, _ in headers)


def _is_counted(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return (_RAW_HEADER, ASK_AND_COUNT[HEADER].encode()) in headers


class PendingRollout:
    """The steps of one rollout that runs elsewhere, since they were last requested."""

    __slots__ = ("__weakref__", "trail")

    def __init__(self) -> None:
        self.trail = Trail(perf_counter_ns())

    def take(self) -> list[Step]:
        """The steps; the start of each tells how long ago it began."""
        trail, self.trail = self.trail, Trail(perf_counter_ns())  # a call that is still open ends in the old one
        now = (self.trail.zero - trail.zero) / 1e9
        for step in trail.steps:
            step.start = max(0.0, now - step.start)
        return trail.steps


class PendingSteps:
    """Steps of rollouts that run elsewhere, until they are requested."""

    def __init__(self) -> None:
        self._rollouts: OrderedDict[str, PendingRollout] = OrderedDict()

    def of(self, rollout: str) -> PendingRollout:
        """Where to keep the steps of that rollout."""
        found = self._rollouts.setdefault(rollout, PendingRollout())
        if len(self._rollouts) > MOST_PENDING:
            self._rollouts.popitem(last=False)
        return found

    def take(self, rollout: str) -> list[Step]:
        """What has been kept of that rollout."""
        found = self._rollouts.get(rollout)
        return found.take() if found is not None and found.trail.steps else []


pending_steps: ContextVar[PendingSteps | None] = ContextVar(
    "pending_steps", default=None
)  # of the request that is served


async def serve_with_steps(app: ASGIApp, scope: Scope, receive: Receive, send: Send, pending: PendingSteps) -> None:
    """Serve a request and append its steps to the reply, and those that ``pending`` holds of the same rollout."""
    span = first_span()
    trail, headers = span.trail, scope["headers"]
    trail.trace = read_traceparent(headers)
    trail.is_counted = _is_counted(headers)
    trail.rollout = next((value.decode("latin-1") for name, value in headers if name == _RAW_ROLLOUT_HEADER), "")
    reply = _ReplyWithSteps(span, send, pending)
    token, pending_token = current_span.set(span), pending_steps.set(pending)
    try:
        await app(scope, receive, reply.send)
    finally:
        pending_steps.reset(pending_token)
        current_span.reset(token)


class _ReplyWithSteps:
    """Holds back the start of a reply until it is known whether the body comes in one piece."""

    def __init__(self, span: Span, send: Send, pending: PendingSteps) -> None:
        self._span = span
        self._pending = pending
        self._send = send
        self._head: Message | None = None
        self._streams = False

    async def send(self, message: Message) -> None:
        """The ASGI ``send`` of the reply."""
        if message["type"] == "http.response.start":
            self._head = message
            return
        head, self._head = self._head, None
        is_last = not message.get("more_body")
        if head is not None:
            message = self._begin(head, message, is_last=is_last)
            await self._send(head)
        if self._streams and is_last:
            tail = self._tail()
            message = {**message, "body": b"%b%b%08d" % (message.get("body", b""), tail, len(tail))}
        await self._send(message)

    def _begin(self, head: Message, message: Message, *, is_last: bool) -> Message:
        """Announce the steps in the head, and append them to the body if it is whole; return its message."""
        if head["status"] in (204, 304):
            return message
        headers = [pair for pair in head.get("headers", ()) if pair[0].lower() != b"content-length"]
        if not is_last or len(headers) == len(head.get("headers", ())):
            self._streams = True
            head["headers"] = [*headers, (_RAW_HEADER, TAIL_AT_END.encode())]
            return message
        tail = self._tail()
        body = message.get("body", b"") + tail
        head["headers"] = [*headers, (b"content-length", b"%d" % len(body)), (_RAW_HEADER, b"%d" % len(tail))]
        return {**message, "body": body}

    def _tail(self) -> bytes:
        trail = self._span.trail
        root = trail.root
        duration = (perf_counter_ns() - trail.zero) / 1e9
        trail.is_sent = True
        earlier = self._pending.take(trail.rollout) if trail.rollout else []
        inner = InnerSteps(duration, root.waited, root.waited_for, root.retries, trail.steps)
        inner.completion, inner.earlier = self._span.completion, earlier
        return _encode(inner)


# ---- the caller ------------------------------------------------------------------------------------------------------
def adopt_steps(span: Span, tail: bytes) -> None:
    """Insert the steps of another process into the call that they belong to, which is about to end.

    The clocks of two machines can't be compared, so the time that the server does not account for is split evenly
    between sending the request and receiving the reply.
    """
    if not tail:
        return
    try:
        inner = _decode(tail)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return
    trail = span.trail
    start = (span.start - trail.zero) / 1e9 if span.start else 0.0
    length = (perf_counter_ns() - trail.zero) / 1e9 - start
    offset = start + max(0.0, (length - inner.duration) / 2)
    span.completion = inner.completion
    if inner.waited and inner.waited <= length:
        span.wait(inner.waited, inner.waited_for)
    if inner.retries:
        span.retry(*(StepRetry(_at(retry.at, offset), retry.failed) for retry in inner.retries))
    for step in inner.steps:
        step.start = _at(min(step.start, length), offset)
        step.duration = min(step.duration, length)
    _add_all(trail, inner.steps, span)
    for step in inner.earlier:
        # Seconds before the request arrived there. The reply to the step was here before the request was sent.
        before = step.start - inner.duration
        step.start = _at(max(0.0, start - before if before > 0 else offset - before), 0.0)
        step.duration = min(step.duration, max(0.0, start + length - step.start))
    _add_all(trail, inner.earlier, None)


def _add_all(trail: Trail, steps: list[Step], outer: Span | None) -> None:
    """Add the steps of another process inside a call, or beside it."""
    first = len(trail.steps)
    for index, step in enumerate(steps[: max(0, MOST_STEPS - first)]):
        step.waited = min(step.waited, step.duration)
        if step.parent is not None and step.parent < index:
            step.parent += first
        else:
            step.parent = outer.index if outer is not None and outer.index >= 0 else None
        if step.kind == "model" and outer is not None and outer.callee.is_resources:
            step.kind = "judge"
        trail.steps.append(step)


def _at(moment: float, offset: float) -> float:
    return int(min(moment + offset, LONGEST_S) * 1e6) / 1e6
