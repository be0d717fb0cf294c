"""A conversation of items as chat messages.

The Responses API lists what a model did one item at a time; Chat Completions wants one assistant message a turn. So
reasoning, text and tool calls are collected and become a message when somebody else speaks, or at the end.

Items are dictionaries, as they are on the wire: a long conversation is converted with every call, and must not cost
more than the JSON around it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from nemo_gym.conversion.kept import kept_item
from nemo_gym.conversion.parts import UnsupportedContentError, parts_to_chat
from nemo_gym.conversion.reasoning import REASONING_FIELDS, reasoning_texts, wrap_reasoning

# What becomes of reasoning in earlier turns: text inside the content, one field beside it or both that are in use, or
# nothing.
PastReasoning: TypeAlias = Literal["think", "reasoning_content", "separate", "drop"]
TOKEN_FIELDS: Final = ("prompt_token_ids", "generation_token_ids", "generation_log_probs", "routed_experts")


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

    def add_refusal(self, text: str) -> None:
        """Append to why the assistant says nothing in this turn."""
        self.refusal_buffer = (self.refusal_buffer or "") + text

    def add_reasoning(self, item: Mapping[str, Any]) -> None:
        """Append to what the assistant thinks in this turn."""
        texts = reasoning_texts(item)
        if not texts:
            kept = kept_item(item)
            if kept is not None:
                self.lost.append(f"items of type {kept.get('type')}")
            elif item.get("encrypted_content"):
                self.lost.append("encrypted reasoning")
        elif self.past_reasoning == "think":
            self.add_text(wrap_reasoning(texts))
        elif self.past_reasoning != "drop":
            self.reasoning_buffer += texts

    def flush_assistant(self) -> None:
        """End the assistant's turn."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content_buffer}
        if self.reasoning_buffer:
            names = REASONING_FIELDS if self.past_reasoning == "separate" else REASONING_FIELDS[:1]
            message |= dict.fromkeys(names, "".join(self.reasoning_buffer))
            self.reasoning_buffer = []
        if self.refusal_buffer is not None:
            message["refusal"] = self.refusal_buffer
        if self.tool_calls_buffer:
            message["tool_calls"] = self.tool_calls_buffer
            self.tool_calls_buffer = []
        if len(message) > 2 or self.content_buffer is not None:
            if self.token_information is not None:
                message |= self.token_information
            self.messages.append(message)
        self.content_buffer = self.refusal_buffer = self.token_information = None


def items_to_messages(items: Iterable[Mapping[str, Any]], state: ResponsesConverterState) -> list[dict[str, Any]]:
    """All items as chat messages, after those that the state has already."""
    for item in items:
        kind = item.get("type") or "message"
        if kind == "message":
            _add_message(item, state)
        elif kind == "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            state.tool_calls_buffer.append({"id": item["call_id"], "type": "function", "function": function})
        elif kind == "function_call_output":
            state.flush_assistant()
            content = parts_to_chat(item["output"])
            state.messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
        elif kind == "reasoning":
            state.add_reasoning(item)
        else:
            state.lost.append(f"items of type {kind}")
        if state.return_token_id_information and item.get("generation_token_ids") is not None:
            state.token_information = {name: item[name] for name in TOKEN_FIELDS if item.get(name) is not None}
    state.flush_assistant()
    return state.messages


def _add_message(item: Mapping[str, Any], state: ResponsesConverterState) -> None:
    role, content = item["role"], item["content"]
    if role != "assistant":
        state.flush_assistant()
        state.messages.append({"role": role, "content": parts_to_chat(content)})
    elif isinstance(content, str):
        state.add_text(content)
    else:
        for part in content:
            _add_part(part, state)


def _add_part(part: Mapping[str, Any], state: ResponsesConverterState) -> None:
    kind = part["type"]
    if kind in ("output_text", "input_text"):
        state.add_text(part["text"])
    elif kind == "refusal":
        state.add_refusal(part["refusal"])
    else:
        raise UnsupportedContentError(f"Chat Completions has no {kind!r} in an assistant message")
