"""The ids of a rollout's trace, and the header by which calls to other programs take part in it.

All ids are derived, so that the spans that are exported later have the ids that were sent while the rollout ran: the
trace follows from the run, the task and the rollout; the span of an attempt from the trace; the span of a step from the
call that made it and the number of its siblings before it. The last is the same in every process: a server that is
called over HTTP numbers its own calls below the span that the header names.
"""

import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from nemo_gym.steps.recording import Span, TraceContext, Trail, open_span
from nemo_gym.steps.rollout_steps import RolloutSteps

HEADER: Final = "traceparent"  # of the W3C recommendation "Trace Context"
_RAW_HEADER: Final = HEADER.encode()
_FORM: Final = re.compile(rb"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}")


def run_identity(first: RolloutSteps) -> str:
    """The id of a run, from the first record of its steps file, which stays the same even if the run is resumed."""
    return first.run or f"{first.task}/{first.rollout}/{first.attempt}/{first.agent}/{first.started_at:.6f}"


def attempt_context(run: str, task: int, rollout: int, attempt: int) -> TraceContext:
    """The trace of a rollout, and the span of one of its attempts."""
    trace = _digest(f"{run}|{task}|{rollout}".encode(), 16)
    return TraceContext(trace, _digest(b"%b|%d" % (trace, attempt), 8))


def step_spans(root: bytes, parents: Iterable[int | None]) -> list[bytes]:
    """The ids of the spans of all steps, given the parent of each."""
    spans: list[bytes] = []
    siblings: dict[int | None, int] = {}
    for parent in parents:
        number = siblings[parent] = siblings.get(parent, -1) + 1
        spans.append(_child(root if parent is None else spans[parent], number))
    return spans


def current_traceparent() -> str:
    """The value of the header for a request that the current call makes; empty if its rollout is not traced."""
    span = open_span()
    return "" if span is None or span.trail.trace is None else traceparent(span)


def traceparent(span: Span) -> str:
    """The value of the header for a request that belongs to this call; empty if its rollout is not traced."""
    context = span.trail.trace
    if context is None:
        return ""
    made_by = _span_of(span.trail, context.span, span.index)
    return f"00-{context.trace.hex()}-{made_by.hex()}-01"


def read_traceparent(headers: Iterable[tuple[bytes, bytes]]) -> TraceContext | None:
    """The context that a request brings; None if it has none, or an invalid one."""
    for name, value in headers:
        if name == _RAW_HEADER and (found := _FORM.fullmatch(value)):
            return TraceContext(bytes.fromhex(found[1].decode()), bytes.fromhex(found[2].decode()))
    return None


def _span_of(trail: Trail, root: bytes, index: int) -> bytes:
    if not 0 <= index < len(trail.steps):  # a root, or beyond the number that is recorded
        return root
    parent = trail.steps[index].parent
    number = sum(step.parent == parent for step in trail.steps[:index])
    return _child(root if parent is None else _span_of(trail, root, parent), number)


def _child(parent: bytes, number: int) -> bytes:
    return _digest(b"%b|%d" % (parent, number), 8)


def _digest(text: bytes, size: int) -> bytes:
    return blake2b(text, digest_size=size).digest()
