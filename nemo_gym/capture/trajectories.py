"""One rollout as a trajectory: what its agent reported about itself, joined with the model calls that were recorded.

An agent's own turns win. Without them there is a turn for each recorded call that one of its invocations names. What
is missing is said in a gap; nothing here fails a rollout.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import ValidationError

from nemo_gym.capture.call_files import CALLS_KEY
from nemo_gym.capture.call_records import PAYLOADS, ModelCallRecord
from nemo_gym.schemas.observations import (
    AgentInvocation,
    AgentObservationBundle,
    ObservationGap,
    ToolCallObservation,
    TrajectoryModelCall,
    TrajectoryRecord,
    TrajectoryResponseMetadata,
    TrajectoryTokenStats,
    TrajectoryToolCall,
    TrajectoryTurn,
    join_model_call_observations,
)
from nemo_gym.schemas.record import Record, Row
from nemo_gym.schemas.rows import ROLLOUT_ID_KEY_NAME

TRAJECTORY_KEY: Final = "ng_trajectory"
OBSERVATIONS_KEY: Final = "ng_agent_observations"
RESOLVED_KEY: Final = "resolved"
_TASK_IDS: Final = ("task_id", "problem_id", "instance_id")


def trajectory_identity(row: Mapping[str, Any]) -> tuple[str, str]:
    """The ids of task and rollout in a trajectory."""
    record = Record(row)
    named = next((row[name] for name in _TASK_IDS if isinstance(row.get(name), str | int)), None)
    task = record.task if named is None else named
    return str(task), str(row.get(ROLLOUT_ID_KEY_NAME) or f"{record.task}-{record.rollout}")


def attach_trajectory(row: Mapping[str, Any], result: Row) -> None:
    """Give a result its trajectory, and leave the payloads of calls out of the rest of it. Never raises."""
    try:
        trajectory = build_trajectory(row, result)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        task, rollout = trajectory_identity(row)
        gap = ObservationGap(code="trajectory_projection_failed", detail=repr(error)[:500])
        trajectory = TrajectoryRecord(task_id=task, rollout_id=rollout, gaps=[gap])
    result[TRAJECTORY_KEY] = trajectory.model_dump(mode="json", exclude_none=True)
    for call in _calls_of(result):
        for name in PAYLOADS:
            call.pop(name, None)


def build_trajectory(row: Mapping[str, Any], result: Mapping[str, Any]) -> TrajectoryRecord:
    """The trajectory of a result."""
    task, rollout = trajectory_identity(row)
    gaps: list[ObservationGap] = []
    own = _own_trajectory(result, (task, rollout), gaps)
    calls = [ModelCallRecord.model_validate(call) for call in _calls_of(result)]
    if not calls:
        gaps.append(ObservationGap(code="model_calls_unavailable"))
    bundle = _observations(result, gaps)
    joined = join_model_call_observations(bundle, calls) if bundle is not None else None
    invocations = own.invocations if own is not None else (joined.invocations if joined is not None else [])
    turns = list(own.turns) if own is not None else []
    turns = turns or list(_turns(invocations, calls, (task, rollout)))
    if not turns:
        gaps.append(ObservationGap(code="turns_unavailable"))
    if not any(invocation.conversation for invocation in invocations):
        gaps.append(ObservationGap(code="conversation_unavailable"))
    if turns and isinstance(resolved := result.get(RESOLVED_KEY), bool):
        turns[-1] = turns[-1].model_copy(update={RESOLVED_KEY: resolved})
    return TrajectoryRecord(
        task_id=task,
        rollout_id=rollout,
        invocations=invocations,
        turns=turns,
        model_calls=own.model_calls if own is not None and own.model_calls else list(map(_model_call, calls)),
        tool_calls=list(_tool_calls(own, joined)),
        gaps=[*(own.gaps if own is not None else ()), *(joined.gaps if joined is not None else ()), *gaps],
    )


def _calls_of(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    captured = result.get(CALLS_KEY)
    calls = captured.get("calls") if isinstance(captured, Mapping) else None
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def _own_trajectory(
    result: Mapping[str, Any], identity: tuple[str, str], gaps: list[ObservationGap]
) -> TrajectoryRecord | None:
    """The trajectory that the agent made itself, if it is one of this rollout."""
    given = result.get(TRAJECTORY_KEY)
    if given is None:
        return None
    try:
        own = TrajectoryRecord.model_validate(given)
    except ValidationError as error:
        gaps.append(ObservationGap(code="producer_trajectory_invalid", detail=str(error)[:500]))
        return None
    if (own.task_id, own.rollout_id) == identity:
        return own
    detail = f"task {own.task_id}, rollout {own.rollout_id}"
    gaps.append(ObservationGap(code="producer_trajectory_identity_mismatch", detail=detail))
    return None


def _observations(result: Mapping[str, Any], gaps: list[ObservationGap]) -> AgentObservationBundle | None:
    given = result.get(OBSERVATIONS_KEY)
    if given is None:
        return None
    try:
        return AgentObservationBundle.model_validate(given)
    except ValidationError as error:
        gaps.append(ObservationGap(code="agent_observations_invalid", detail=str(error)[:500]))
        return None


def _turns(
    invocations: list[AgentInvocation], calls: list[ModelCallRecord], identity: tuple[str, str]
) -> Iterator[TrajectoryTurn]:
    by_id = {call.model_call_id: call for call in calls}
    for invocation in invocations:
        found = [(ref, by_id[ref.model_call_id]) for ref in invocation.model_calls if ref.model_call_id in by_id]
        for number, (ref, call) in enumerate(found, 1):
            yield TrajectoryTurn(
                invocation_id=invocation.invocation_id,
                task_id=identity[0],
                rollout_id=identity[1],
                turn_no=number,
                timestamp=datetime.fromtimestamp(call.completed_at or call.started_at or 0.0, UTC),
                reasoning_content=call.reasoning_content,
                step_count=len(call.tool_calls),
                model_calls=[ref],
            )


def _model_call(call: ModelCallRecord) -> TrajectoryModelCall:
    fields = call.model_dump()
    known = {name: fields[name] for name in TrajectoryResponseMetadata.model_fields if name in fields}
    tokens = {
        "prompt_tokens": call.tokens_in,
        "completion_tokens": call.tokens_out,
        "reasoning_tokens": call.tokens_reasoning,
        "total_tokens": call.tokens_total,
        "cached_tokens": call.cached_tokens,
    }
    return TrajectoryModelCall(
        model_call_id=call.model_call_id or f"call-{call.call_index}",
        started_at=call.started_at,
        completed_at=call.completed_at,
        duration_ms=call.latency_total_ms,
        request=call.request,
        response=call.response,
        response_metadata=TrajectoryResponseMetadata(**known),
        token_stats=TrajectoryTokenStats(**tokens),
    )


def _tool_calls(own: TrajectoryRecord | None, joined: AgentObservationBundle | None) -> Iterator[TrajectoryToolCall]:
    if own is not None and own.tool_calls:
        yield from own.tool_calls
        return
    for record in joined.records if joined is not None else ():
        if isinstance(record, ToolCallObservation):
            yield TrajectoryToolCall(**record.model_dump())
