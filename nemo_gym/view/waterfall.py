"""The steps of one attempt as a waterfall: in the order of the calls, each below the call that made it."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from nemo_gym.steps.rollout_steps import RolloutSteps, Step
from nemo_gym.steps.summary import call_name
from nemo_gym.steps.totals import summarise

_UNSEEN: Final = frozenset({"", 0})


class PlacedStep(NamedTuple):
    """A step, and how deep it is nested."""

    step: Step
    depth: int


def nested(steps: list[Step]) -> Iterator[PlacedStep]:
    """The steps depth first: every step directly below its caller, before the caller's next sibling."""
    inner: dict[int | None, list[int]] = {}
    for index, step in enumerate(steps):
        inner.setdefault(step.parent, []).append(index)
    for siblings in inner.values():  # what another process reports later may have begun earlier
        siblings.sort(key=lambda index: steps[index].start)
    waiting = [(index, 0) for index in reversed(inner.get(None, []))]
    while waiting:
        index, depth = waiting.pop()
        yield PlacedStep(steps[index], depth)
        waiting += [(each, depth + 1) for each in reversed(inner.get(index, []))]


def tokens_per_s(step: Step) -> float | None:
    """Tokens per second of a model call, not counting the time spent waiting."""
    working = step.duration - min(step.waited, step.duration)
    return step.tokens_out / working if step.tokens_out and working > 0 else None


def waterfall(record: RolloutSteps) -> dict[str, Any]:
    """Everything that is shown about the time of one attempt."""
    summary = summarise([record])
    end = max([record.duration, *(step.end for step in record.steps)])
    return {
        "attempt": record.attempt,
        "outcome": record.outcome,
        "started_at": record.started_at,
        "duration": record.duration,
        "end": end,
        "waited_s": summary.waited_s,
        "shares": [{"name": name, "share": share} for name, share in summary.shares().items()],
        "steps": [_shown(step, depth) for step, depth in nested(record.steps)],
    }


def _shown(step: Step, depth: int) -> dict[str, Any]:
    """The known fields of a step; unknown and empty ones are left out."""
    fields = {
        "label": call_name(step.kind, step.server, step.tool),
        "kind": step.kind,
        "server": step.server,
        "route": step.route,
        "start": step.start,
        "duration": step.duration,
        "waited": min(step.waited, step.duration),
        "waited_for": step.waited_for,
        "depth": depth,
        "status": step.status,
        "tokens_in": step.tokens_in,
        "tokens_out": step.tokens_out,
        "tokens_cached": step.tokens_cached,
        "bytes_in": step.bytes_in,
        "bytes_out": step.bytes_out,
        "finish": step.finish,
    }
    shown: dict[str, Any] = {name: value for name, value in fields.items() if value not in _UNSEEN}
    shown |= {"start": step.start, "duration": step.duration, "depth": depth}
    rate = tokens_per_s(step)
    if rate is not None:
        shown["tokens_per_s"] = rate
    if step.retries:
        shown["retries"] = [{"at": retry.at, "failed": retry.failed} for retry in step.retries]
    return shown
