"""How an answer ended. Pure.

An agent goes on with what it takes for an answer, and a trainer learns from it, so what was cut off or never came must
not look like one. Some engines (llama.cpp and ``transformers serve``, by the Responses API) call an answer complete
that ended at its limit: their count of tokens tells. A response that is still queued, or was cancelled, has no answer
in it, and neither has a chat that ended for an unknown reason.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from nemo_gym.schemas.chat import NeMoGymChatCompletion
from nemo_gym.schemas.responses import IncompleteDetails, NeMoGymResponse

CUT_OFF: Final = "max_output_tokens"
ANSWERED: Final = frozenset({"completed", "incomplete"})
FINISHED: Final = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})
# The same reasons under the names of other servers.
OTHER_NAMES: Final[Mapping[str, str]] = {
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
}


def reached(limit: Any, written: Any) -> bool:
    """Whether an answer has exactly as many tokens as it may have; one with more was not held to the limit."""
    return isinstance(limit, int) and limit == written


def unanswered(response: NeMoGymResponse) -> str | None:
    """The status of a response that is none, in words; None if there is an answer in it."""
    status = response.status or "completed"
    return None if status in ANSWERED else f"a response that is {status.replace('_', ' ')}"


def mark_cut_off(response: NeMoGymResponse, asked: Mapping[str, Any]) -> bool:
    """Mark a response as incomplete that ended at its limit without saying so; tell whether it did."""
    if response.status == "incomplete" or response.incomplete_details or response.usage is None:
        return False
    limit = asked.get("max_output_tokens") or response.max_output_tokens
    if not reached(limit, response.usage.output_tokens) or _ends_with_a_call(response):
        return False
    response.status, response.incomplete_details = "incomplete", IncompleteDetails(reason=CUT_OFF)
    return True


def unknown_finish(completion: NeMoGymChatCompletion) -> str | None:
    """The reason that a completion ended for, if that is not known; other names of known reasons are replaced."""
    for choice in completion.choices:
        choice.finish_reason = OTHER_NAMES.get(choice.finish_reason, choice.finish_reason)
        if choice.finish_reason not in FINISHED:
            return str(choice.finish_reason)
    return None


def _ends_with_a_call(response: NeMoGymResponse) -> bool:
    """Whether the last thing is a whole call, which needs nothing more."""
    last = response.output[-1] if response.output else None
    if last is None or last.type != "function_call":
        return False
    try:
        json.loads(last.arguments)
    except ValueError:
        return False
    return True
