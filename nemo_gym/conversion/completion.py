"""A chat completion as the response to a request: bookkeeping, finish reason and usage. Pure."""

from typing import Any, Final

from nemo_gym.schemas.chat import CompletionUsage, NeMoGymChatCompletion
from nemo_gym.schemas.item_union import NeMoGymResponseOutputItem
from nemo_gym.schemas.responses import (
    IncompleteDetails,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseInputTokensDetails,
    NeMoGymResponseOutputTokensDetails,
    NeMoGymResponseUsage,
)

_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
# Fields that a response repeats from its request.
_ECHOED: Final = frozenset(
    NeMoGymResponse.model_fields.keys() & NeMoGymResponseCreateParamsNonStreaming.model_fields.keys()
)


def completion_to_response(
    completion: NeMoGymChatCompletion,
    output: list[NeMoGymResponseOutputItem],
    params: NeMoGymResponseCreateParamsNonStreaming,
    *,
    id: str,  # noqa: A002 - the name of the field
    model: str,
) -> NeMoGymResponse:
    """The response that a completion amounts to; ``output`` is its first choice, converted."""
    reason = _INCOMPLETE.get(completion.choices[0].finish_reason)
    fields: dict[str, Any] = {name: getattr(params, name) for name in params.model_fields_set & _ECHOED}
    fields |= {
        "id": id,
        "created_at": completion.created,
        "model": model,
        "object": "response",
        "output": output,
        "parallel_tool_calls": params.parallel_tool_calls is not False,
        "tool_choice": params.tool_choice,
        "tools": params.tools,
        "status": "incomplete" if reason else "completed",
        "incomplete_details": IncompleteDetails(reason=reason) if reason else None,
        "usage": usage_to_responses(completion.usage) if completion.usage else None,
    }
    return NeMoGymResponse.model_validate(fields)


def usage_to_responses(usage: CompletionUsage) -> NeMoGymResponseUsage:
    """The same numbers under their other names; details that are not given are 0."""
    prompt, completion = usage.prompt_tokens_details or {}, usage.completion_tokens_details or {}
    return NeMoGymResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=NeMoGymResponseInputTokensDetails(cached_tokens=prompt.get("cached_tokens") or 0),
        output_tokens=usage.completion_tokens,
        output_tokens_details=NeMoGymResponseOutputTokensDetails(
            reasoning_tokens=completion.get("reasoning_tokens") or 0
        ),
        total_tokens=usage.total_tokens,
    )
