"""Counts of a transcript: its tool calls and turns, from the types and roles of its items."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, NamedTuple

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


def type_and_role(item: object) -> tuple[str | None, str | None]:
    """The type and the role of an item; None where it has none."""
    if not isinstance(item, dict):
        return None, None
    kind, role = item.get("type"), item.get("role")
    return kind if isinstance(kind, str) else None, role if isinstance(role, str) else None


@lru_cache(maxsize=4096)  # most transcripts follow one of few patterns
def count_pattern(pattern: tuple[tuple[Any, Any], ...]) -> TranscriptCounts:
    """The counts of a transcript, given the types and roles of its items as they are."""
    return count_items([type_and_role({"type": kind, "role": role}) for kind, role in pattern])
