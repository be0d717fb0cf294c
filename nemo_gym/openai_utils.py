"""Front door: the types that travel between servers, and a client for endpoints that speak OpenAI's protocols."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from nemo_gym.conversion.parts import THINK_TAGS, without_reasoning
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
    HOSTED_CLASSES,
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
    hosted_class,
)
from nemo_gym.schemas.responses import (
    NeMoGymFunctionToolParam,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseInputTokensDetails,
    NeMoGymResponseOutputTokensDetails,
    NeMoGymResponseUsage,
)
from nemo_gym.schemas.rows import SPENT
from nemo_gym.servers.http.connections import request_errors
from nemo_gym.servers.models.endpoint import RATE_LIMIT_ERROR_CODES, RETRY_ERROR_CODES, NeMoGymAsyncOpenAI

__all__ = [
    "CHAT_REQUEST_PROVIDER_EXTENSION_FIELDS",
    "MAX_NUM_TRIES",
    "RATE_LIMIT_ERROR_CODES",
    "REQUIRED_TOKEN_METADATA_FIELDS",
    "RESPONSES_TO_TRAIN",
    "RETRY_ERROR_CODES",
    "THINK_TAGS",
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
    "NeMoGymResponseFunctionCallOutput",
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
    "add_usages",
    "answer_text",
    "training_variant_of",
    "without_reasoning",
]

# An item with only some of the required fields can't be trained on.
MAX_NUM_TRIES: Final = 3
# The result of a tool call, under the name of newer releases.
NeMoGymResponseFunctionCallOutput = NeMoGymFunctionCallOutput
# Options of chat requests that only some providers know.
CHAT_REQUEST_PROVIDER_EXTENSION_FIELDS: Final = frozenset({"chat_template_kwargs", "thinking", "output_config"})
REQUIRED_TOKEN_METADATA_FIELDS: Final = frozenset({"prompt_token_ids", "generation_token_ids", "generation_log_probs"})
TOKEN_METADATA_FIELDS: Final = REQUIRED_TOKEN_METADATA_FIELDS | {"routed_experts"}


def __getattr__(name: str) -> Any:
    if name in HOSTED_CLASSES:
        return hosted_class(name)
    if name == "PermanentEndpointError":
        return request_errors.PermanentEndpointError
    raise AttributeError(f"module 'nemo_gym.openai_utils' has no attribute {name!r}")


def training_variant_of(kind: type[BaseModel]) -> type[BaseModel] | None:
    """The class of the same item with its tokens; None if such items are not trained on."""
    return RESPONSES_TO_TRAIN.get(kind)


def answer_text(
    response: NeMoGymResponse, *, reasoning_tags: tuple[str, str] | None = THINK_TAGS, last_message: bool = False
) -> str:
    """What a verifier reads as the answer: the text of all messages, or of the last one, without reasoning.

    With tools, remarks between the calls precede the last message. Reasoning is never the answer: reasoning items are
    not messages, and what is written between the tags is left out. Without tags, the messages are read as they are.
    """
    messages = [item for item in response.output if isinstance(item, NeMoGymResponseOutputMessage)]
    texts = [
        "".join(part.text for part in message.content if isinstance(part, NeMoGymResponseOutputText))
        for message in (messages[-1:] if last_message else messages)
    ]
    return "".join(texts if reasoning_tags is None else [without_reasoning(text, reasoning_tags) for text in texts])


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
    # What was paid for follows from the sums, unless one of the two states it itself.
    has_spent = any(SPENT in (usage.model_extra or {}) for usage in (total, additional))
    spent = add_spent(total.model_dump(), additional.model_dump()) if has_spent else {}
    return total.model_copy(update={**sums, **details, **spent}, deep=True)


def add_usages(total: dict[str, Any] | None, new: dict[str, Any] | None) -> dict[str, Any] | None:
    """The sum of two usages as JSON, with the tokens that were read from a cache or spent on reasoning."""
    if total is None or new is None:
        return total or new
    return {
        "input_tokens": total["input_tokens"] + new["input_tokens"],
        "input_tokens_details": {"cached_tokens": _cached(total) + _cached(new)},
        "output_tokens": total["output_tokens"] + new["output_tokens"],
        "output_tokens_details": {"reasoning_tokens": _reasoning(total) + _reasoning(new)},
        "total_tokens": total["total_tokens"] + new["total_tokens"],
        **add_spent(total, new),
    }


def add_spent(total: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The field for what was paid for in two usages, to be added to their sum; empty if the sum says it already."""
    if SPENT not in total and SPENT not in new:
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


def _reasoning(usage: Mapping[str, Any]) -> int:
    return (usage.get("output_tokens_details") or {}).get("reasoning_tokens") or 0


def _add_details(first: BaseModel | None, second: BaseModel | None) -> BaseModel | None:
    if first is None or second is None:
        return second if first is None else first
    counts = {
        name: (getattr(first, name, None) or 0) + value
        for name, value in second
        if isinstance(value, int) and not isinstance(value, bool)
    }
    return first.model_copy(update=counts)
