"""Items that carry token ids, and the union of all items.

The union is decided by one look at the item (:func:`item_kind`), never by trial: validation is fast, and an error
names the one class that was meant. An item of an unknown ``type`` is refused by that name. Items that carry token ids
become the ``…ForTraining`` variant of their class.
"""

from typing import Annotated, Any, Final, TypeAlias

from pydantic import BaseModel, Discriminator, SerializeAsAny, Tag

from nemo_gym.schemas.items import (
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymMessage,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseReasoningItem,
)


class TokenIDLogProbMixin(BaseModel):
    """The exact tokens of one model call, on the last item of that call."""

    prompt_token_ids: list[int]
    generation_token_ids: list[int]
    generation_log_probs: list[float]
    routed_experts: Any | None = None


class NeMoGymEasyInputMessageForTraining(NeMoGymEasyInputMessage, TokenIDLogProbMixin):
    """An easy message with its tokens."""


class NeMoGymMessageForTraining(NeMoGymMessage, TokenIDLogProbMixin):
    """An input message with its tokens."""


class NeMoGymResponseOutputMessageForTraining(NeMoGymResponseOutputMessage, TokenIDLogProbMixin):
    """An answer with its tokens."""


class NeMoGymResponseFunctionToolCallForTraining(NeMoGymResponseFunctionToolCall, TokenIDLogProbMixin):
    """A tool call with its tokens."""


class NeMoGymResponseReasoningItemForTraining(NeMoGymResponseReasoningItem, TokenIDLogProbMixin):
    """Reasoning with its tokens."""


RESPONSES_TO_TRAIN: Final[dict[type[BaseModel], type[BaseModel]]] = {
    NeMoGymEasyInputMessage: NeMoGymEasyInputMessageForTraining,
    NeMoGymMessage: NeMoGymMessageForTraining,
    NeMoGymResponseOutputMessage: NeMoGymResponseOutputMessageForTraining,
    NeMoGymResponseFunctionToolCall: NeMoGymResponseFunctionToolCallForTraining,
    NeMoGymResponseReasoningItem: NeMoGymResponseReasoningItemForTraining,
}

_KIND_OF_CLASS: Final[dict[type[BaseModel], str]] = {
    NeMoGymEasyInputMessage: "easy_message",
    NeMoGymMessage: "message",
    NeMoGymResponseOutputMessage: "output_message",
    NeMoGymResponseReasoningItem: "reasoning",
    NeMoGymResponseFunctionToolCall: "function_call",
    NeMoGymFunctionCallOutput: "function_call_output",
    NeMoGymEasyInputMessageForTraining: "easy_message+tokens",
    NeMoGymMessageForTraining: "message+tokens",
    NeMoGymResponseOutputMessageForTraining: "output_message+tokens",
    NeMoGymResponseReasoningItemForTraining: "reasoning+tokens",
    NeMoGymResponseFunctionToolCallForTraining: "function_call+tokens",
}


def item_kind(item: Any) -> str | None:
    """Name the class that an item is meant to be; for an unknown ``type``, that type."""
    if not isinstance(item, dict):
        return next((_KIND_OF_CLASS[cls] for cls in type(item).__mro__ if cls in _KIND_OF_CLASS), None)
    kind = item.get("type", "message")
    if kind == "message":
        kind = _message_kind(item)
    elif not isinstance(kind, str):
        return None
    if kind != "function_call_output" and item.get("generation_token_ids") is not None:
        return f"{kind}+tokens"
    return kind


def _message_kind(item: dict[str, Any]) -> str:
    if isinstance(item.get("content"), list):
        if item.get("role") == "assistant":
            if "id" in item:
                return "output_message"
        elif "status" in item:
            return "message"
    return "easy_message"


NeMoGymResponseInputItem: TypeAlias = Annotated[
    Annotated[NeMoGymEasyInputMessage, Tag("easy_message")]
    | Annotated[NeMoGymMessage, Tag("message")]
    | Annotated[NeMoGymResponseOutputMessage, Tag("output_message")]
    | Annotated[NeMoGymResponseReasoningItem, Tag("reasoning")]
    | Annotated[NeMoGymResponseFunctionToolCall, Tag("function_call")]
    | Annotated[NeMoGymFunctionCallOutput, Tag("function_call_output")]
    | Annotated[NeMoGymEasyInputMessageForTraining, Tag("easy_message+tokens")]
    | Annotated[NeMoGymMessageForTraining, Tag("message+tokens")]
    | Annotated[NeMoGymResponseOutputMessageForTraining, Tag("output_message+tokens")]
    | Annotated[NeMoGymResponseReasoningItemForTraining, Tag("reasoning+tokens")]
    | Annotated[NeMoGymResponseFunctionToolCallForTraining, Tag("function_call+tokens")],
    Discriminator(item_kind),
    # An instance knows its own class: finding it again would cost more than writing it out.
    SerializeAsAny(),
]
# Outputs are sent back as inputs, so both are the same union.
NeMoGymResponseOutputItem: TypeAlias = NeMoGymResponseInputItem
NeMoGymResponseInput: TypeAlias = list[NeMoGymResponseInputItem]
# The tags name the branch in validation errors: ``input.items.0.function_call.call_id``.
TextOrItems: TypeAlias = Annotated[str, Tag("text")] | Annotated[NeMoGymResponseInput, Tag("items")]
