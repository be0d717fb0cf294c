"""Which log-probability belongs to which token. Pure.

The engine reports scores where text became complete: a character of several tokens has one entry, for its last token,
and tokens after the end of the visible text (a stop word) have none. Missing ones are found by asking again.
"""

from collections.abc import Mapping, Sequence
from typing import Any


def align(tokens: Sequence[int], scores: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """The log-probability of every token, or None where the engine did not say."""
    aligned: list[float | None] = [None] * len(tokens)
    position = 0
    for number, score in enumerate(scores):
        following = scores[number + 1] if number + 1 < len(scores) else None
        end = _end(tokens, position, score, following)
        if end is None:
            break
        aligned[end - 1] = score["logprob"]
        position = end
    return aligned


def _end(
    tokens: Sequence[int], start: int, score: Mapping[str, Any], following: Mapping[str, Any] | None
) -> int | None:
    """Where the tokens of an entry end: at its id, and where the next entry can begin."""
    # Only a character beyond ASCII can be spread over tokens, of one byte or more each.
    longest = len(score["bytes"]) if any(byte > 127 for byte in score["bytes"]) else 1
    for end in range(start + 1, min(start + max(longest, 1), len(tokens)) + 1):
        if tokens[end - 1] == score["id"] and _can_begin(tokens, end, following):
            return end
    return None


def _can_begin(tokens: Sequence[int], start: int, score: Mapping[str, Any] | None) -> bool:
    if score is None:
        return True
    if any(byte > 127 for byte in score["bytes"]):
        return score["id"] in tokens[start : start + len(score["bytes"])]
    return start < len(tokens) and tokens[start] == score["id"]
