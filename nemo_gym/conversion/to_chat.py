"""A conversation of items as chat messages.

The Responses API lists what a model did one item at a time; Chat Completions wants one assistant message a turn. So
reasoning, text and tool calls are collected and become a message when somebody else speaks, or at the end.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from nemo_gym.conversion.parts import UnsupportedContentError, parts_to_chat
from nemo_gym.conversion.reasoning import reasoning_texts, wrap_reasoning
from nemo_gym.schemas.item_union import NeMoGymResponseInputItem, TokenIDLogProbMixin
from nemo_gym.schemas.items import (
    NeMoGymFunctionCallOutput,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputText,
    NeMoGymResponseReasoningItem,
)

# What becomes of reasoning in earlier turns: text inside the content, a field beside it, or nothing.
PastReasoning: TypeAlias = Literal["think", "reasoning_content", "drop"]


@dataclass
class ResponsesConverterState:
    """Finished messages, and the assistant's turn as far as it is known."""

    return_token_id_information: bool = False
    past_reasoning: PastReasoning = "think"
    messages: list[dict[str, Any]] = field(default_factory=list)
    content_buffer: str | None = None
    reasoning_buffer: list[str] = field(default_factory=list)
    refusal_buffer: str | None = None
    tool_calls_buffer: list[dict[str, Any]] = field(default_factory=list)
    token_information: dict[str, Any] | None = None
    # What could not be said in a chat.
    lost: list[str] = field(default_factory=list)

    def add_text(self, text: str) -> None:
        """Append to what the assistant says in this turn."""
        self.content_buffer = (self.content_buffer or "") + text

    def add_reasoning(self, texts: list[str]) -> None:
        """Append to what the assistant thinks in this turn."""
        if texts and self.past_reasoning == "think":
            self.add_text(wrap_reasoning(texts))
        elif self.past_reasoning == "reasoning_content":
            self.reasoning_buffer += texts

    def flush_assistant(self) -> None:
        """End the assistant's turn."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content_buffer}
        if self.reasoning_buffer:
            message["reasoning_content"] = "".join(self.reasoning_buffer)
        if self.refusal_buffer is not None:
            message["refusal"] = self.refusal_buffer
        if self.tool_calls_buffer:
            message["tool_calls"] = self.tool_calls_buffer
        if len(message) > 2 or self.content_buffer is not None:
            self.messages.append(message | (self.token_information or {}))
        self.content_buffer = self.refusal_buffer = self.token_information = None
        self.reasoning_buffer, self.tool_calls_buffer = [], []


def items_to_messages(
    items: Iterable[NeMoGymResponseInputItem], state: ResponsesConverterState
) -> list[dict[str, Any]]:
    """All items as chat messages, after those that the state has already."""
    for item in items:
        _add_item(item, state)
        if state.return_token_id_information and isinstance(item, TokenIDLogProbMixin):
            state.token_information = {
                "prompt_token_ids": item.prompt_token_ids,
                "generation_token_ids": item.generation_token_ids,
                "generation_log_probs": item.generation_log_probs,
            }
            if item.routed_experts is not None:
                state.token_information["routed_experts"] = item.routed_experts
    state.flush_assistant()
    return state.messages


def _add_item(item: NeMoGymResponseInputItem, state: ResponsesConverterState) -> None:
    if isinstance(item, NeMoGymResponseFunctionToolCall):
        function = {"name": item.name, "arguments": item.arguments}
        state.tool_calls_buffer.append({"id": item.call_id, "type": "function", "function": function})
    elif isinstance(item, NeMoGymResponseOutputMessage):
        for part in item.content:
            if isinstance(part, NeMoGymResponseOutputText):
                state.add_text(part.text)
            else:
                state.refusal_buffer = (state.refusal_buffer or "") + part.refusal
    elif isinstance(item, NeMoGymResponseReasoningItem):
        texts = reasoning_texts(item)
        state.add_reasoning(texts)
        if item.encrypted_content and not texts:
            state.lost.append("encrypted reasoning")
    elif isinstance(item, NeMoGymFunctionCallOutput):
        state.flush_assistant()
        content = parts_to_chat(item.output)
        state.messages.append({"role": "tool", "tool_call_id": item.call_id, "content": content})
    elif item.role == "assistant":
        _add_easy_assistant(item.content, state)
    else:
        state.flush_assistant()
        state.messages.append({"role": item.role, "content": parts_to_chat(item.content)})


def _add_easy_assistant(content: str | list[Any], state: ResponsesConverterState) -> None:
    if isinstance(content, str):
        state.add_text(content)
        return
    for part in content:
        if part["type"] == "refusal":
            state.refusal_buffer = (state.refusal_buffer or "") + part["refusal"]
        elif part["type"] in ("output_text", "input_text"):
            state.add_text(part["text"])
        else:
            raise UnsupportedContentError(f"Chat Completions has no {part['type']!r} in an assistant message")
