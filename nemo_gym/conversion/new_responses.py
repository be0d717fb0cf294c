"""Makes requests and responses of the Responses API, whichever dialect they are converted from. Pure.

A response is a dictionary with all keys of its class, in order, whether or not they have a value; its items have only
keys with values.
"""

from collections.abc import Callable, Mapping
from os import urandom
from typing import Any, Final, NamedTuple

from nemo_gym.schemas.responses import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming


class NewId:
    """A new random id. A long history needs hundreds, and the standard UUID would cost more than all the rest."""

    __slots__ = ("hex",)

    def __init__(self) -> None:
        self.hex = urandom(16).hex()


# Callers expect a standard UUID; this has the same randomness and the same ``hex`` attribute.
uuid4 = NewId
Item = dict[str, Any]
MakeId = Callable[[], str]
LOGPROBS: Final = "message.output_text.logprobs"
_EMPTY: Final[Mapping[str, Any]] = dict.fromkeys(NeMoGymResponse.model_fields)
# Fields that a response repeats from its request.
_ECHOED: Final = frozenset(
    NeMoGymResponse.model_fields.keys() & NeMoGymResponseCreateParamsNonStreaming.model_fields.keys()
)


class ConvertedRequest(NamedTuple):
    """A request of the Responses API, and the names of what got lost."""

    request: dict[str, Any]
    lost: list[str]


def response_to(
    request: Mapping[str, Any],
    output: list[dict[str, Any]],
    *,
    id: str,  # noqa: A002 - the name of the field
    created_at: float,
    model: str,
    reason: str | None,
    usage: dict[str, Any] | None,
) -> dict[str, Any]:
    """The response to a request; ``reason`` is why it stopped early, if it did."""
    return {
        **_EMPTY,
        **{name: value for name, value in request.items() if name in _ECHOED},
        "id": id,
        "created_at": created_at,
        "incomplete_details": {"reason": reason} if reason else None,
        "model": model,
        "object": "response",
        "output": output,
        "parallel_tool_calls": request.get("parallel_tool_calls") is not False,
        "tool_choice": request.get("tool_choice") or "auto",
        "tools": request.get("tools") or [],
        "status": "incomplete" if reason else "completed",
        "usage": usage,
    }


def response_usage(
    input_tokens: int, output_tokens: int, *, total: int | None = None, cached: int = 0, reasoning: int = 0
) -> dict[str, Any]:
    """The usage of a response."""
    return {
        "input_tokens": input_tokens,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": input_tokens + output_tokens if total is None else total,
    }


def wants_logprobs(request: Mapping[str, Any]) -> bool:
    """Whether a request wants log-probabilities."""
    return request.get("top_logprobs") is not None or LOGPROBS in (request.get("include") or ())
