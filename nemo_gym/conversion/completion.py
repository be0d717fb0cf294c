"""A chat completion as the response to a request: bookkeeping, finish reason, usage, log-probabilities. Pure.

A response is a dictionary with every key of its class, in order, whether or not it has a value; its items have only
keys with values.
"""

from collections.abc import Mapping
from typing import Any, Final

from nemo_gym.schemas.chat import CompletionUsage, NeMoGymChatCompletion, NeMoGymChatCompletionMessage
from nemo_gym.schemas.responses import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming

INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
LOGPROBS: Final = "message.output_text.logprobs"
_EMPTY: Final[Mapping[str, Any]] = dict.fromkeys(NeMoGymResponse.model_fields)
# Fields that a response repeats from its request.
_ECHOED: Final = frozenset(
    NeMoGymResponse.model_fields.keys() & NeMoGymResponseCreateParamsNonStreaming.model_fields.keys()
)


def completion_to_response(
    completion: NeMoGymChatCompletion,
    output: list[dict[str, Any]],
    asked: Mapping[str, Any],
    *,
    id: str,  # noqa: A002 - the name of the field
    model: str,
) -> dict[str, Any]:
    """The response that a completion amounts to; ``output`` is its first choice, converted."""
    choice = completion.choices[0]
    if choice.logprobs and wants_logprobs(asked):
        _add_logprobs(output, choice.logprobs.get("content"))
    return response_to(
        asked,
        output,
        id=id,
        created_at=float(completion.created),
        model=model,
        reason=INCOMPLETE.get(choice.finish_reason),
        usage=usage_to_responses(completion.usage) if completion.usage else None,
    )


def message_as_received(message: NeMoGymChatCompletionMessage) -> dict[str, Any]:
    """An answer as a dictionary. Its tokens may be many, and are not copied."""
    received = {**message.__dict__, **(message.__pydantic_extra__ or {})}
    if message.tool_calls:
        received["tool_calls"] = [call.model_dump() for call in message.tool_calls]
    if message.function_call:
        received["function_call"] = message.function_call.model_dump()
    return received


def response_to(
    asked: Mapping[str, Any],
    output: list[dict[str, Any]],
    *,
    id: str,  # noqa: A002 - the name of the field
    created_at: float,
    model: str,
    reason: str | None,
    usage: dict[str, Any] | None,
) -> dict[str, Any]:
    """The response to a request; ``reason`` is why it stops early, if it does."""
    return {
        **_EMPTY,
        **{name: value for name, value in asked.items() if name in _ECHOED},
        "id": id,
        "created_at": created_at,
        "incomplete_details": {"reason": reason} if reason else None,
        "model": model,
        "object": "response",
        "output": output,
        "parallel_tool_calls": asked.get("parallel_tool_calls") is not False,
        "tool_choice": asked.get("tool_choice") or "auto",
        "tools": asked.get("tools") or [],
        "status": "incomplete" if reason else "completed",
        "usage": usage,
    }


def usage_to_responses(usage: CompletionUsage) -> dict[str, Any]:
    """The same numbers under their other names; details that are not given are 0."""
    prompt, completion = usage.prompt_tokens_details or {}, usage.completion_tokens_details or {}
    return response_usage(
        usage.prompt_tokens,
        usage.completion_tokens,
        total=usage.total_tokens,
        cached=prompt.get("cached_tokens") or 0,
        reasoning=completion.get("reasoning_tokens") or 0,
    )


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


def wants_logprobs(asked: Mapping[str, Any]) -> bool:
    """True if the request asks how likely its answer was."""
    return asked.get("top_logprobs") is not None or LOGPROBS in (asked.get("include") or ())


def _add_logprobs(output: list[dict[str, Any]], scores: Any) -> None:
    parts = [part for item in output if item["type"] == "message" for part in item["content"]]
    texts = [part for part in parts if part["type"] == "output_text"]
    if texts and isinstance(scores, list):
        texts[0]["logprobs"] = scores
