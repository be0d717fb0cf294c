"""Converts the steps of rollouts into OpenTelemetry spans, named by its conventions for generative AI.

Each rollout is one trace with its attempts as roots: ``invoke_agent``, with ``chat`` and ``execute_tool`` below it. The
times are the recorded ones. Ids are derived from the run and the position of the span in it, so sending a run twice
gives the same spans. Steps do not contain messages, so messages can't be sent.

Spans are built as finished values, because starting and ending each through a tracer costs several times as much. This
module needs the extra ``otel`` and is imported only if spans are requested.
"""

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from nemo_gym import __version__
from nemo_gym.steps.rollout_steps import COMPLETED, MODEL_KINDS, RolloutSteps, Step, is_outer_model_call
from nemo_gym.steps.trace_context import attempt_context, step_spans

Attributes: TypeAlias = dict[str, str | int | float | list[str]]

SERVICE: Final = "rollout-gym"
SCOPE: Final = InstrumentationScope(SERVICE, __version__)
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_UNSET: Final = Status(StatusCode.UNSET)
_ERROR: Final = Status(StatusCode.ERROR)
_NANO: Final = 1_000_000_000


class SpanBuilder:
    """Makes the spans of one run from its records. ``models`` maps agents to their models, as far as known so far."""

    def __init__(self, run: str, *, name: str = "", models: Mapping[str, str] | None = None) -> None:
        self._run = run
        self._models = models if models is not None else {}
        about = Resource({"service.name": SERVICE, "service.version": __version__, "rollout_gym.run": name})
        self._resource = about.merge(OTELResourceDetector().detect())  # environment variables take precedence

    def spans(self, record: RolloutSteps) -> Iterator[ReadableSpan]:
        """The spans of one attempt, the attempt itself first."""
        trace, root = attempt_context(record.run or self._run, record.task, record.rollout, record.attempt)
        made = [root, *step_spans(root, [step.parent for step in record.steps])]
        contexts = [_context(trace, span) for span in made]
        zero = int(record.started_at * _NANO)
        failed = record.outcome not in (COMPLETED, "")
        yield ReadableSpan(
            name=f"invoke_agent {record.agent}".rstrip(),
            context=contexts[0],
            resource=self._resource,
            attributes=_of_attempt(record),
            kind=SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, record.outcome) if failed else _UNSET,
            start_time=zero,
            end_time=zero + int(record.duration * _NANO),
            instrumentation_scope=SCOPE,
        )
        model = self._models.get(record.agent, "")
        for index, step in enumerate(record.steps):
            parent = contexts[0] if step.parent is None else contexts[step.parent + 1]
            yield self._span(step, zero, contexts[index + 1], parent, model if step.kind == "model" else "")

    def _span(self, step: Step, zero: int, context: SpanContext, parent: SpanContext, model: str) -> ReadableSpan:
        start = zero + int(step.start * _NANO)
        return ReadableSpan(
            name=_name_of(step, model),
            context=context,
            parent=parent,
            resource=self._resource,
            attributes=_of_step(step, model),
            events=[
                Event("retry", {"error.type": retry.failed}, timestamp=zero + int(retry.at * _NANO))
                for retry in step.retries
            ],
            kind=SpanKind.CLIENT if step.kind in MODEL_KINDS else SpanKind.INTERNAL,
            status=_ERROR if _error_of(step) else _UNSET,
            start_time=start,
            end_time=start + int(step.duration * _NANO),
            instrumentation_scope=SCOPE,
        )


def _context(trace: bytes, span: bytes) -> SpanContext:
    return SpanContext(int.from_bytes(trace), int.from_bytes(span), is_remote=False, trace_flags=_SAMPLED)


def _of_attempt(record: RolloutSteps) -> Attributes:
    calls = [step for step in record.steps if is_outer_model_call(step, record.steps)]
    attributes: Attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": SERVICE,
        "gen_ai.agent.name": record.agent,
        "gen_ai.usage.input_tokens": sum(step.tokens_in for step in calls),
        "gen_ai.usage.output_tokens": sum(step.tokens_out for step in calls),
        "rollout_gym.task_index": record.task,
        "rollout_gym.rollout_index": record.rollout,
        "rollout_gym.attempt": record.attempt,
        "rollout_gym.outcome": record.outcome,
    }
    if record.outcome not in (COMPLETED, ""):
        attributes["error.type"] = record.outcome
    return attributes


def _name_of(step: Step, model: str) -> str:
    if step.kind in MODEL_KINDS:
        return f"chat {model or step.server}"
    return f"execute_tool {step.tool}" if step.kind == "tool" else f"{step.kind} {step.server}"


def _of_step(step: Step, model: str) -> Attributes:
    attributes: Attributes = {"rollout_gym.step.kind": step.kind, "rollout_gym.server": step.server}
    if step.route:
        attributes["url.path"] = step.route
    if step.status:
        attributes["http.response.status_code"] = step.status
    if step.waited:
        attributes["rollout_gym.waited_seconds"], attributes["rollout_gym.waited_for"] = step.waited, step.waited_for
    if error := _error_of(step):
        attributes["error.type"] = error
    if step.kind == "tool":
        attributes |= {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": step.tool,
            "gen_ai.tool.type": "function",
        }
    if step.kind in MODEL_KINDS:
        attributes |= _of_model_call(step, model)
    return attributes


def _of_model_call(step: Step, model: str) -> Attributes:
    attributes: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": SERVICE,
        "gen_ai.request.model": model or step.server,
    }
    if step.tokens_in or step.tokens_out:
        attributes["gen_ai.usage.input_tokens"] = step.tokens_in
        attributes["gen_ai.usage.output_tokens"] = step.tokens_out
    if step.tokens_cached:
        attributes["gen_ai.usage.cache_read.input_tokens"] = step.tokens_cached
    if step.finish and not _error_of(step):
        attributes["gen_ai.response.finish_reasons"] = [step.finish]
    return attributes


def _error_of(step: Step) -> str:
    """Why a call failed: its status, or the error raised instead of a reply; empty if it did not fail."""
    if step.status >= 400:
        return str(step.status)
    return step.finish or "_OTHER" if not step.status else ""
