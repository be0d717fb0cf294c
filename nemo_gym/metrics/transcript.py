"""What a transcript says about itself: how many tools were called, how often the model spoke.

A *tool call* is an output item whose type ends in ``_call``. A *turn* is a run of items that the model produced in one
go (reasoning, assistant messages, tool calls); a tool's output or a message of somebody else ends it.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from nemo_gym.schemas.rows import RESPONSE_KEY_NAME

TOOL_CALLS: Final = "tool_calls"
TURNS: Final = "turns"
MODEL_ROLES: Final = frozenset({None, "assistant"})


class TranscriptCounts(NamedTuple):
    """Counts of one rollout; None where there is no transcript to count in."""

    tool_calls: int | None
    turns: int | None


NO_TRANSCRIPT: Final = TranscriptCounts(None, None)


def count_items(items: Iterable[tuple[str | None, str | None]]) -> TranscriptCounts:
    """Count over the (type, role) pairs of the output items, in order."""
    calls = turns = 0
    speaking = False
    for kind, role in items:
        calls += kind is not None and kind.endswith("_call")
        by_model = not (kind or "").endswith("_output") and role in MODEL_ROLES
        turns += by_model and not speaking
        speaking = by_model
    return TranscriptCounts(calls, turns)


def count_record(record: Mapping[str, Any]) -> TranscriptCounts:
    """Count in the transcript of a record."""
    output = output_of(record)
    return NO_TRANSCRIPT if output is None else count_items(map(type_and_role, output))


def output_of(record: Mapping[str, Any]) -> list[Any] | None:
    """``response.output``, or a top-level ``output`` as older files have it, if it is a list."""
    response = record.get(RESPONSE_KEY_NAME)
    output = response.get("output") if isinstance(response, Mapping) else None
    if not isinstance(output, list):
        output = record.get("output")
    return output if isinstance(output, list) else None


def type_and_role(item: object) -> tuple[str | None, str | None]:
    """The type of an item and who speaks in it, None where it does not say."""
    if not isinstance(item, Mapping):
        return None, None
    kind, role = item.get("type"), item.get("role")
    return kind if isinstance(kind, str) else None, role if isinstance(role, str) else None
