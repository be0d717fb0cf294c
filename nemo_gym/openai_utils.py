"""Front door: the types that travel between servers, and a client for endpoints that speak OpenAI's protocols."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from nemo_gym.schemas.chat import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionAssistantMessageForTrainingParam,
    NeMoGymChatCompletionAssistantMessageParam,
    NeMoGymChatCompletionContentPartImageParam,
    NeMoGymChatCompletionContentPartTextParam,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymChatCompletionDeveloperMessageParam,
    NeMoGymChatCompletionMessage,
    NeMoGymChatCompletionMessageForTraining,
    NeMoGymChatCompletionMessageParam,
    NeMoGymChatCompletionMessageToolCall,
    NeMoGymChatCompletionMessageToolCallFunctionParam,
    NeMoGymChatCompletionMessageToolCallParam,
    NeMoGymChatCompletionSystemMessageParam,
    NeMoGymChatCompletionToolMessageParam,
    NeMoGymChatCompletionToolParam,
    NeMoGymChatCompletionUserMessageParam,
    NeMoGymChoice,
    NeMoGymFunction,
    NeMoGymFunctionDefinition,
)
from nemo_gym.schemas.items import (
    RESPONSES_TO_TRAIN,
    NeMoGymEasyInputMessage,
    NeMoGymEasyInputMessageForTraining,
    NeMoGymFunctionCallOutput,
    NeMoGymMessage,
    NeMoGymMessageForTraining,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseFunctionToolCallForTraining,
    NeMoGymResponseInput,
    NeMoGymResponseInputItem,
    NeMoGymResponseInputText,
    NeMoGymResponseOutputItem,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputMessageForTraining,
    NeMoGymResponseOutputRefusal,
    NeMoGymResponseOutputText,
    NeMoGymResponseReasoningItem,
    NeMoGymResponseReasoningItemForTraining,
    NeMoGymSummary,
    TokenIDLogProbMixin,
)
from nemo_gym.schemas.responses import (
    SPENT,
    NeMoGymFunctionToolParam,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseInputTokensDetails,
    NeMoGymResponseOutputTokensDetails,
    NeMoGymResponseUsage,
)
from nemo_gym.servers.models.endpoint import RATE_LIMIT_ERROR_CODES, RETRY_ERROR_CODES, NeMoGymAsyncOpenAI

__all__ = [
    "RATE_LIMIT_ERROR_CODES",
    "REQUIRED_TOKEN_METADATA_FIELDS",
    "RESPONSES_TO_TRAIN",
    "RETRY_ERROR_CODES",
    "TOKEN_METADATA_FIELDS",
    "NeMoGymAsyncOpenAI",
    "NeMoGymChatCompletion",
    "NeMoGymChatCompletionAssistantMessageForTrainingParam",
    "NeMoGymChatCompletionAssistantMessageParam",
    "NeMoGymChatCompletionContentPartImageParam",
    "NeMoGymChatCompletionContentPartTextParam",
    "NeMoGymChatCompletionCreateParamsNonStreaming",
    "NeMoGymChatCompletionDeveloperMessageParam",
    "NeMoGymChatCompletionMessage",
    "NeMoGymChatCompletionMessageForTraining",
    "NeMoGymChatCompletionMessageParam",
    "NeMoGymChatCompletionMessageToolCall",
    "NeMoGymChatCompletionMessageToolCallFunctionParam",
    "NeMoGymChatCompletionMessageToolCallParam",
    "NeMoGymChatCompletionSystemMessageParam",
    "NeMoGymChatCompletionToolMessageParam",
    "NeMoGymChatCompletionToolParam",
    "NeMoGymChatCompletionUserMessageParam",
    "NeMoGymChoice",
    "NeMoGymEasyInputMessage",
    "NeMoGymEasyInputMessageForTraining",
    "NeMoGymFunction",
    "NeMoGymFunctionCallOutput",
    "NeMoGymFunctionDefinition",
    "NeMoGymFunctionToolParam",
    "NeMoGymMessage",
    "NeMoGymMessageForTraining",
    "NeMoGymResponse",
    "NeMoGymResponseCreateParamsNonStreaming",
    "NeMoGymResponseFunctionToolCall",
    "NeMoGymResponseFunctionToolCallForTraining",
    "NeMoGymResponseInput",
    "NeMoGymResponseInputItem",
    "NeMoGymResponseInputText",
    "NeMoGymResponseInputTokensDetails",
    "NeMoGymResponseOutputItem",
    "NeMoGymResponseOutputMessage",
    "NeMoGymResponseOutputMessageForTraining",
    "NeMoGymResponseOutputRefusal",
    "NeMoGymResponseOutputText",
    "NeMoGymResponseOutputTokensDetails",
    "NeMoGymResponseReasoningItem",
    "NeMoGymResponseReasoningItemForTraining",
    "NeMoGymResponseUsage",
    "NeMoGymSummary",
    "TokenIDLogProbMixin",
    "accumulate_response_usage",
    "add_spent",
    "final_text",
]

# An item with only some of the required fields can't be trained on.
REQUIRED_TOKEN_METADATA_FIELDS: Final = frozenset({"prompt_token_ids", "generation_token_ids", "generation_log_probs"})
TOKEN_METADATA_FIELDS: Final = REQUIRED_TOKEN_METADATA_FIELDS | {"routed_experts"}


def final_text(response: NeMoGymResponse) -> str:
    """The text of the last message; in ``output_text``, remarks between tool calls precede it."""
    messages = [item for item in response.output if isinstance(item, NeMoGymResponseOutputMessage)]
    content = messages[-1].content if messages else []
    return "".join(part.text for part in content if isinstance(part, NeMoGymResponseOutputText))


def accumulate_response_usage(
    total: NeMoGymResponseUsage | None, additional: NeMoGymResponseUsage | None
) -> NeMoGymResponseUsage | None:
    """The sum of the tokens of two calls. None adds nothing, and a detail missing in both stays missing."""
    if total is None or additional is None:
        known = total if additional is None else additional
        return known.model_copy(deep=True) if known is not None else None
    sums = {
        name: getattr(total, name) + getattr(additional, name)
        for name in ("input_tokens", "output_tokens", "total_tokens")
    }
    details = {
        name: _add_details(getattr(total, name, None), getattr(additional, name, None))
        for name in ("input_tokens_details", "output_tokens_details")
    }
    # The details are summed above, so what was paid for follows from them, unless one of the two states it itself.
    has_spent = any(SPENT in (usage.model_extra or {}) for usage in (total, additional))
    spent = add_spent(total.model_dump(), additional.model_dump()) if has_spent else {}
    return total.model_copy(update={**sums, **details, **spent}, deep=True)


def add_spent(total: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The field for what was paid for in two usages, to be added to their sum; empty if the sum says it already."""
    if not (SPENT in total or SPENT in new or _cached(total) or _cached(new)):
        return {}
    both = [_spent(total), _spent(new)]
    return {SPENT: {name: both[0][name] + both[1][name] for name in both[0]}}


def _spent(usage: Mapping[str, Any]) -> dict[str, int]:
    if usage.get(SPENT) is not None:
        return dict(usage[SPENT])
    counts = {"input_tokens": usage["input_tokens"], "output_tokens": usage["output_tokens"]}
    return {**counts, "cached_tokens": _cached(usage)}


def _cached(usage: Mapping[str, Any]) -> int:
    return (usage.get("input_tokens_details") or {}).get("cached_tokens") or 0


def _add_details(first: BaseModel | None, second: BaseModel | None) -> BaseModel | None:
    if first is None or second is None:
        return second if first is None else first
    counts = {
        name: (getattr(first, name, None) or 0) + value
        for name, value in second
        if isinstance(value, int) and not isinstance(value, bool)
    }
    return first.model_copy(update=counts)
