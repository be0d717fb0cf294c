"""Determines how an answer ended: complete, cut off, or not an answer at all. Pure.

Agents continue from an answer and trainers learn from it, so a truncated or missing one must not look complete. Some
engines (llama.cpp and ``transformers serve``, through the Responses API) report an answer as complete although it
reached its token limit; their token counts reveal that. A response that is still queued or was cancelled contains no
answer, and neither does a chat that ended for an unknown reason.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from nemo_gym.schemas.chat import NeMoGymChatCompletion
from nemo_gym.schemas.responses import IncompleteDetails, NeMoGymResponse

CUT_OFF: Final = "max_output_tokens"
ANSWERED: Final = frozenset({"completed", "incomplete"})
FINISHED: Final = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})
# Names that other servers use for the same reasons.
OTHER_NAMES: Final[Mapping[str, str]] = {
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
}


def reached(limit: Any, written: Any) -> bool:
    """Whether an answer has exactly as many tokens as its limit; if it has more, the limit was not applied at all."""
    return isinstance(limit, int) and limit == written


def unanswered(response: NeMoGymResponse) -> str | None:
    """Why a response contains no answer, in words; None if it contains one."""
    status = response.status or "completed"
    return None if status in ANSWERED else f"a response that is {status.replace('_', ' ')}"


def mark_cut_off(response: NeMoGymResponse, asked: Mapping[str, Any]) -> bool:
    """Mark a response as incomplete if it reached its limit without reporting that; returns whether it did."""
    if response.status == "incomplete" or response.incomplete_details or response.usage is None:
        return False
    limit = asked.get("max_output_tokens") or response.max_output_tokens
    if not reached(limit, response.usage.output_tokens) or _ends_with_a_call(response):
        return False
    response.status, response.incomplete_details = "incomplete", IncompleteDetails(reason=CUT_OFF)
    return True


def unknown_finish(completion: NeMoGymChatCompletion) -> str | None:
    """The finish reason of a completion if it is unknown, else None; other names of known reasons are replaced."""
    for choice in completion.choices:
        choice.finish_reason = OTHER_NAMES.get(choice.finish_reason, choice.finish_reason)
        if choice.finish_reason not in FINISHED:
            return str(choice.finish_reason)
    return None


def _ends_with_a_call(response: NeMoGymResponse) -> bool:
    """Whether the last item is a complete tool call, after which nothing can be missing."""
    last = response.output[-1] if response.output else None
    if last is None or last.type != "function_call":
        return False
    try:
        json.loads(last.arguments)
    except ValueError:
        return False
    return True
