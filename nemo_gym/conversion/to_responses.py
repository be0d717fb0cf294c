"""Chat messages as items of a conversation."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nemo_gym.conversion.parts import joined_text, parts_to_responses
from nemo_gym.conversion.reasoning import extract_reasoning
from nemo_gym.schemas.item_union import (
    RESPONSES_TO_TRAIN,
    NeMoGymResponseInputItem,
    NeMoGymResponseOutputItem,
)
from nemo_gym.schemas.items import (
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputRefusal,
    NeMoGymResponseOutputText,
    NeMoGymResponseReasoningItem,
    NeMoGymSummary,
)

_TOKEN_FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs", "routed_experts")


def assistant_to_items(message: Mapping[str, Any], new_id: Callable[[], str]) -> list[NeMoGymResponseOutputItem]:
    """An assistant message as reasoning, text and tool calls, in this order; at least one item."""
    items: list[NeMoGymResponseOutputItem] = []
    thoughts, text = extract_reasoning(joined_text(message.get("content")))
    if thoughts:
        summary = [NeMoGymSummary(text=thought, type="summary_text") for thought in thoughts]
        items.append(NeMoGymResponseReasoningItem(id=f"rs_{new_id()}", summary=summary, type="reasoning"))
    refusal = message.get("refusal")
    calls = message.get("tool_calls") or []
    if text or refusal or not (thoughts or calls):
        items.append(_message(text, refusal, new_id))
    items += [
        NeMoGymResponseFunctionToolCall(
            id=call["id"],
            call_id=call["id"],
            name=call["function"]["name"],
            arguments=call["function"]["arguments"],
            type="function_call",
            status="completed",
        )
        for call in calls
    ]
    return items


def _message(text: str, refusal: str | None, new_id: Callable[[], str]) -> NeMoGymResponseOutputMessage:
    parts: list[NeMoGymResponseOutputText | NeMoGymResponseOutputRefusal] = []
    if text or not refusal:
        parts.append(NeMoGymResponseOutputText(annotations=[], text=text, type="output_text"))
    if refusal:
        parts.append(NeMoGymResponseOutputRefusal(refusal=refusal, type="refusal"))
    return NeMoGymResponseOutputMessage(
        id=f"msg_{new_id()}", content=parts, role="assistant", status="completed", type="message"
    )


def with_tokens(items: list[NeMoGymResponseOutputItem], message: Mapping[str, Any]) -> list[NeMoGymResponseOutputItem]:
    """The items of one model call, the last of them with the tokens of the call, if the message has any."""
    if message.get("generation_token_ids") is None:
        return items
    last = items[-1]
    tokens = {name: message[name] for name in _TOKEN_FIELDS if message.get(name) is not None}
    trained = RESPONSES_TO_TRAIN[type(last)].model_validate(last.model_dump(exclude_unset=True) | tokens)
    return [*items[:-1], trained]  # type: ignore[list-item]  # the table maps items to items


def messages_to_items(
    messages: Iterable[Mapping[str, Any]],
    assistant: Callable[[Mapping[str, Any]], list[NeMoGymResponseOutputItem]],
) -> list[NeMoGymResponseInputItem]:
    """A chat history as items; ``assistant`` converts the messages of the assistant."""
    items: list[NeMoGymResponseInputItem] = []
    for message in messages:
        role, content = message["role"], message.get("content")
        if role == "assistant":
            items += assistant(message)
        elif role == "tool":
            output: Any = parts_to_responses(content or "")
            items.append(
                NeMoGymFunctionCallOutput(call_id=message["tool_call_id"], output=output, type="function_call_output")
            )
        else:
            said: Any = parts_to_responses(content or "")
            items.append(NeMoGymEasyInputMessage(role=role, content=said, type="message"))
    return items
