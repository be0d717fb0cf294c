"""An agent's own record of what it did: its invocations, tool calls, sandboxes and compactions, and what it missed.

Agents that are programs know things that nobody sees from outside, such as which of several sub-agents made a call.
They report it in these models, which refuse unknown keys. A **bundle** is one agent's report; a **trajectory** is that
report together with the model calls that were captured. What an agent could not observe is said in a **gap**, so that
a reader can tell nothing happened from nothing is known.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nemo_gym.schemas.items import NeMoGymResponseInputItem
from nemo_gym.schemas.refs import ModelServerRef

Moment = float | datetime
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]
ServedBy = ModelServerRef | str


class _Observed(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_assignment=True, protected_namespaces=())


class _Timed(_Observed):
    started_at: Moment | None = None
    completed_at: Moment | None = None
    duration_ms: NotNegative | None = None

    @model_validator(mode="after")
    def _ends_after_its_start(self) -> Self:
        times = (self.started_at, self.completed_at)
        if None not in times and len({type(time) for time in times}) == 1 and times[1] < times[0]:  # type: ignore[operator]
            raise ValueError("completed_at is before started_at")
        return self


# ---- what an agent reports -------------------------------------------------------------------------------------------
class ModelCallRef(_Observed):
    """Names a captured model call: by its id, or by the server and the id of the response."""

    model_call_id: str | None = None
    model_ref: ServedBy | None = None
    response_id: str | None = None

    @model_validator(mode="after")
    def _can_be_found(self) -> Self:
        if self.model_call_id is None and (self.model_ref is None or self.response_id is None):
            raise ValueError("needs model_call_id, or model_ref and response_id")
        return self


class AgentInvocation(_Observed):
    """One run of an agent or of one of its sub-agents."""

    kind: Literal["agent_invocation"] = "agent_invocation"
    invocation_id: str
    parent_invocation_id: str | None = None
    spawned_by_tool_call_id: str | None = None
    status: Literal["completed", "failed", "incomplete", "unknown"] = "unknown"
    duration_ms: NotNegative | None = None
    error_type: str | None = None
    model_calls: list[ModelCallRef] = Field(default_factory=list)
    conversation: list[NeMoGymResponseInputItem] = Field(default_factory=list)


class ToolCallObservation(_Timed):
    """One tool call, seen by the agent that made it."""

    kind: Literal["tool_call"] = "tool_call"
    invocation_id: str
    tool_call_id: str
    sandbox_id: str | None = None
    tool_name: str | None = None
    timing_source: Literal["executor", "artifact", "harness"] | None = None
    status: Literal["completed", "failed", "timeout", "cancelled", "incomplete", "unknown"] = "unknown"
    error_type: str | None = None


class SandboxObservation(_Observed):
    """What a sandbox was used for, and how that ended."""

    kind: Literal["sandbox"] = "sandbox"
    role: Literal["agent", "verifier", "environment"]
    provider: str | None = None
    sandbox_id: str | None = None
    outcome: Literal["completed", "failed", "timeout", "oom", "sandbox_error", "cancelled", "unknown"] = "unknown"
    exit_code: int | None = None
    wall_time_s: NotNegative | None = None
    cpu_time_s: NotNegative | None = None
    peak_memory_mib: NotNegative | None = None
    resource_usage_source: str | None = None
    error_type: str | None = None


class ContextCompactionObservation(_Observed):
    """A conversation that became too long and was summarised."""

    kind: Literal["context_compaction"] = "context_compaction"
    invocation_id: str
    observed_at: Moment | None = None
    trigger: str | None = None
    tokens_before: Count | None = None
    tokens_after: Count | None = None
    outcome: Literal["completed", "failed", "aborted", "unknown"] = "unknown"
    summary: str | None = None
    first_kept_item_id: str | None = None
    before_model_call: ModelCallRef | None = None
    model_calls: list[ModelCallRef] = Field(default_factory=list)
    after_model_call: ModelCallRef | None = None


class ObservationGap(_Observed):
    """Something that could not be observed."""

    code: str
    invocation_id: str | None = None
    detail: str | None = None


Observation = Annotated[
    AgentInvocation | ToolCallObservation | SandboxObservation | ContextCompactionObservation,
    Field(discriminator="kind"),
]


class AgentObservationBundle(_Observed):
    """Everything that one agent reports."""

    source: str
    records: list[Observation] = Field(default_factory=list)
    gaps: list[ObservationGap] = Field(default_factory=list)

    @property
    def invocations(self) -> list[AgentInvocation]:
        return [record for record in self.records if isinstance(record, AgentInvocation)]

    @model_validator(mode="after")
    def _identities_are_consistent(self) -> Self:
        _refuse_repeated("invocation_id", [each.invocation_id for each in self.invocations])
        parents = {each.invocation_id: each.parent_invocation_id for each in self.invocations}
        for start, parent in parents.items():
            seen, here = {start}, parent
            while here is not None:
                if here in seen:
                    raise ValueError(f"the invocation {here!r} is its own ancestor")
                seen.add(here)
                here = parents.get(here)
        return self


@dataclass(frozen=True)
class AgentEpisode:
    """A response and what its agent observed while it made it."""

    response: Any
    observations: AgentObservationBundle


# ---- trajectories ----------------------------------------------------------------------------------------------------
class TrajectoryToolCall(ToolCallObservation):
    """A tool call with what came back."""

    output: Any = None


class TrajectoryTurn(_Observed):
    """One turn of a conversation."""

    invocation_id: str
    task_id: str
    rollout_id: str
    turn_no: int = Field(ge=1)
    timestamp: Moment
    question: Any = None
    answer: Any = None
    reasoning_content: Any = None
    resolved: bool | None = None
    step_count: Count
    model_calls: list[ModelCallRef] = Field(default_factory=list)


class TrajectoryTokenStats(_Observed):
    """The tokens of a model call."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    reasoning_tokens: Count | None = None
    total_tokens: Count | None = None
    cached_tokens: Count | None = None


class TrajectoryResponseMetadata(_Observed):
    """What is known about the reply to a model call, besides its content."""

    response_id: str | None = None
    model_ref: ServedBy | None = None
    model: str | None = None
    dialect: str | None = None
    status_code: int | None = None
    response_status: str | None = None
    finish_reason: str | None = None
    error_category: str | None = None
    latency_ttft_ms: NotNegative | None = None
    upstream_attempted: bool | None = None
    response_source: Literal["upstream", "local"] | None = None
    upstream_status_code: int | None = None
    local_response_reason: str | None = None


class TrajectoryModelCall(_Timed):
    """A model call that was captured."""

    model_call_id: str
    request: Any = None
    response: Any = None
    response_metadata: TrajectoryResponseMetadata = Field(default_factory=TrajectoryResponseMetadata)
    token_stats: TrajectoryTokenStats = Field(default_factory=TrajectoryTokenStats)


class TrajectoryRecord(_Observed):
    """One rollout: what its agent reported and what was captured, in one piece."""

    schema_version: str = "1.0"
    task_id: str
    rollout_id: str
    invocations: list[AgentInvocation] = Field(default_factory=list)
    turns: list[TrajectoryTurn] = Field(default_factory=list)
    model_calls: list[TrajectoryModelCall] = Field(default_factory=list)
    tool_calls: list[TrajectoryToolCall] = Field(default_factory=list)
    gaps: list[ObservationGap] = Field(default_factory=list)

    @model_validator(mode="after")
    def _is_one_rollout(self) -> Self:
        _refuse_repeated("invocation_id", [each.invocation_id for each in self.invocations])
        _refuse_repeated("model_call_id", [each.model_call_id for each in self.model_calls])
        _refuse_repeated("turn_no of an invocation", [(each.invocation_id, each.turn_no) for each in self.turns])
        own = {(each.task_id, each.rollout_id) for each in self.turns} - {(self.task_id, self.rollout_id)}
        if own:
            raise ValueError(f"turns of another rollout: {sorted(own)}")
        return self


def _refuse_repeated(name: str, values: list[Any]) -> None:
    if repeated := [value for value, count in Counter(values).items() if count > 1]:
        raise ValueError(f"{name} must be unique, but {repeated[0]!r} is there more than once")


# ---- references to captured calls ------------------------------------------------------------------------------------
def join_model_call_observations(bundle: AgentObservationBundle, calls: Iterable[Any]) -> AgentObservationBundle:
    """The bundle with its references completed by the calls that were captured, which it must not change itself.

    A call that says which session of the agent made it is given to the invocation of that name. What can't be matched
    becomes a gap.
    """
    captured, joined = list(calls), bundle.model_copy(deep=True)
    gaps: list[ObservationGap] = []
    owned: set[int] = set()
    for invocation in joined.invocations:
        found = [_completed(ref, captured, invocation.invocation_id, gaps, owned) for ref in invocation.model_calls]
        invocation.model_calls = found
    by_id = {invocation.invocation_id: invocation for invocation in joined.invocations}
    for place, call in enumerate(captured):
        if place in owned:
            continue
        owner = by_id.get(getattr(call, "client_session_id", None) or "")
        if owner is not None:
            owner.model_calls = [*owner.model_calls, _reference_to(call)]
        else:
            detail = f"capture:{call.model_call_id}:call_index={call.call_index}"
            gaps.append(ObservationGap(code="model_call_ownership_unavailable", detail=detail))
    joined.gaps = [*joined.gaps, *gaps]
    return joined


def _completed(
    ref: ModelCallRef, calls: list[Any], invocation: str, gaps: list[ObservationGap], owned: set[int]
) -> ModelCallRef:
    """The reference with all its ids; as it was, with a gap, if it names no call, several, or a contradictory one."""
    if ref.model_call_id is not None:
        places = [place for place, call in enumerate(calls) if call.model_call_id == ref.model_call_id]
    else:
        wanted = (_server_name(ref.model_ref), ref.response_id)
        places = [at for at, call in enumerate(calls) if (_server_name(call.model_ref), call.response_id) == wanted]
    owned.update(places)
    problem = {0: "unmatched", 1: ""}.get(len(places), "ambiguous")
    if len(places) == 1 and _contradicts(ref, calls[places[0]]):
        problem = "conflict"
    if not problem:
        return _reference_to(calls[places[0]])
    named = ref.model_call_id or ref.response_id
    gaps.append(ObservationGap(code=f"model_call_reference_{problem}", invocation_id=invocation, detail=named))
    return ref


def _contradicts(ref: ModelCallRef, call: Any) -> bool:
    given = ((_server_name(ref.model_ref), _server_name(call.model_ref)), (ref.response_id, call.response_id))
    return any(None not in pair and pair[0] != pair[1] for pair in given)


def _reference_to(call: Any) -> ModelCallRef:
    return ModelCallRef(model_call_id=call.model_call_id, model_ref=call.model_ref, response_id=call.response_id)


def _server_name(ref: Any) -> str | None:
    return getattr(ref, "name", None) or (ref if isinstance(ref, str) else None)
