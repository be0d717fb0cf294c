"""Converts conversations between items of the Responses API and messages of Chat Completions. Pure.

The Responses API lists what a model did item by item; Chat Completions expects one assistant message per turn. So
reasoning, text and tool calls are collected and become a message when the turn ends.

Items are dictionaries, as on the wire: a long conversation is converted at every call, and that must not cost more than
parsing its JSON.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from nemo_gym.conversion.losses import (
    ANNOTATIONS,
    ENCRYPTED,
    PAST_LOGPROBS,
    PHASE,
    SUMMARY,
    lost_in_call,
    lost_in_parts,
)
from nemo_gym.conversion.new_responses import Item, MakeId
from nemo_gym.conversion.parts import (
    CALL_REFERENCE,
    POLICY_VERSION,
    REASONING_FIELDS,
    TOKEN_FIELDS,
    UnsupportedContentError,
    extract_reasoning,
    joined_refusals,
    joined_text,
    parts_to_chat,
    parts_to_responses,
    reasoning_texts,
    separate_reasoning,
    unknown_item,
    wrap_reasoning,
)

# How reasoning of earlier turns is sent: inside the content, in one field beside it, in both fields that endpoints use,
# or not at all.
PastReasoning: TypeAlias = Literal["think", "reasoning_content", "separate", "drop"]


@dataclass
class ResponsesConverterState:
    """The finished messages, and the assistant's current turn."""

    return_token_id_information: bool = False
    past_reasoning: PastReasoning = "think"
    messages: list[dict[str, Any]] = field(default_factory=list)
    content_buffer: str | None = None
    reasoning_buffer: list[str] = field(default_factory=list)
    refusal_buffer: str | None = None
    tool_calls_buffer: list[dict[str, Any]] = field(default_factory=list)
    token_information: dict[str, Any] | None = None
    # Whether the endpoint knows calls of tools that take free text.
    custom_tools: bool = False
    # What a chat can't express, and remarks on what it expresses.
    lost: list[str] = field(default_factory=list)
    remarks: set[str] = field(default_factory=set)

    def parts(self, content: str | Sequence[Mapping[str, Any]]) -> str | list[dict[str, Any]]:
        """The content of an input message; what is lost of its parts is noted."""
        if not isinstance(content, str):
            self.remarks.update(lost_in_parts(content, images=False))
        return parts_to_chat(content)

    def add_text(self, text: str) -> None:
        """Append to the assistant's text in this turn."""
        self.content_buffer = (self.content_buffer or "") + text

    def add_refusal(self, text: str) -> None:
        """Append to the assistant's refusal in this turn."""
        self.refusal_buffer = (self.refusal_buffer or "") + text

    def add_reasoning(self, item: Mapping[str, Any]) -> None:
        """Append to the assistant's reasoning in this turn."""
        texts = reasoning_texts(item)
        if not texts:
            wrapped = unknown_item(item)
            if wrapped is not None:
                self.lost.append(f"items of type {wrapped.get('type')}")
            elif item.get("encrypted_content"):
                self.lost.append(ENCRYPTED)
            return
        if item.get("content") and item.get("summary"):
            self.remarks.add(SUMMARY)
        if item.get("encrypted_content"):
            self.remarks.add(ENCRYPTED)
        if self.past_reasoning == "think":
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
        # A turn without text, calls, reasoning or refusal gives no message.
        if len(message) > 2 or self.content_buffer is not None:
            if self.token_information is not None:
                message |= self.token_information
            self.messages.append(message)
        self.content_buffer = self.refusal_buffer = self.token_information = None


def items_to_messages(items: Iterable[Mapping[str, Any]], state: ResponsesConverterState) -> list[dict[str, Any]]:
    """All items as chat messages, appended to those already in the state."""
    for item in items:
        kind = item.get("type") or "message"
        if kind == "message":
            _add_message(item, state)
        elif kind == "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            state.tool_calls_buffer.append({"id": item["call_id"], "type": "function", "function": function})
            state.remarks.update(lost_in_call(item))
        elif kind == "custom_tool_call" and state.custom_tools:
            custom = {"name": item["name"], "input": item["input"]}
            state.tool_calls_buffer.append({"id": item["call_id"], "type": "custom", "custom": custom})
            state.remarks.update(lost_in_call(item))
        elif kind == "function_call_output" or (kind == "custom_tool_call_output" and state.custom_tools):
            state.flush_assistant()
            state.remarks.update(lost_in_call(item))
            content = state.parts(item["output"])
            state.messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
        elif kind == "reasoning":
            state.add_reasoning(item)
        else:
            state.lost.append(f"items of type {kind}")
        if state.return_token_id_information:
            _note_tokens(item, state)
    state.flush_assistant()
    return state.messages


def _note_tokens(item: Mapping[str, Any], state: ResponsesConverterState) -> None:
    """Keep the tokens of an item, or the reference to them, for the message that it becomes part of."""
    if item.get("generation_token_ids") is not None:
        state.token_information = {name: item[name] for name in TOKEN_FIELDS if item.get(name) is not None}
    elif item.get(CALL_REFERENCE) is not None:
        state.token_information = {CALL_REFERENCE: item[CALL_REFERENCE]}


def _add_message(item: Mapping[str, Any], state: ResponsesConverterState) -> None:
    role, content = item["role"], item["content"]
    if role != "assistant":
        state.flush_assistant()
        state.messages.append({"role": role, "content": state.parts(content)})
        return
    if item.get("phase"):
        state.remarks.add(PHASE)
    if isinstance(content, str):
        state.add_text(content)
    else:
        for part in content:
            _add_part(part, state)


def _add_part(part: Mapping[str, Any], state: ResponsesConverterState) -> None:
    kind = part["type"]
    if kind in ("output_text", "input_text"):
        state.add_text(part["text"])
        if part.get("annotations"):
            state.remarks.add(ANNOTATIONS)
        if part.get("logprobs"):
            state.remarks.add(PAST_LOGPROBS)
    elif kind == "refusal":
        state.add_refusal(part["refusal"])
    else:
        raise UnsupportedContentError(f"Chat Completions has no {kind!r} in an assistant message")


def assistant_to_items(message: Mapping[str, Any], new_id: MakeId, *, parses_reasoning: bool = True) -> list[Item]:
    """An assistant message as reasoning, text and tool calls, in this order; at least one item.

    Without ``parses_reasoning``, ``<think>`` blocks stay in the content.
    """
    get = message.get
    content = get("content")
    text = content if isinstance(content, str) else joined_text(content)
    if not text and get("audio"):
        text = get("audio", {}).get("transcript") or ""
    thoughts, text = extract_reasoning(text) if parses_reasoning else ([], text)
    if get("reasoning_content") or get("reasoning"):
        thoughts = [separate_reasoning(message), *thoughts]
    items: list[Item] = []
    if thoughts:
        summary = [{"text": thought, "type": "summary_text"} for thought in thoughts]
        items.append({"id": f"rs_{new_id()}", "summary": summary, "type": "reasoning"})
    refusal = get("refusal") or (None if isinstance(content, str) else joined_refusals(content))
    calls = get("tool_calls") or _only_call(message, new_id)
    if text or refusal or not (thoughts or calls):
        items.append(_output_message(text, refusal, new_id))
        if get("annotations") and text:
            items[-1]["content"][0]["annotations"] = [_annotation(given) for given in get("annotations") or ()]
    items += map(_call_item, calls)
    return items


def _annotation(given: Mapping[str, Any]) -> dict[str, Any]:
    """A citation without the object that a chat wraps its fields in."""
    kind = given.get("type")
    inner = given.get(kind) if isinstance(kind, str) else None
    return {"type": kind, **inner} if isinstance(inner, Mapping) else dict(given)


def _custom_call_item(call: Mapping[str, Any]) -> Item:
    custom, name = call["custom"], call["id"]
    return {
        "call_id": name,
        "input": custom["input"],
        "name": custom["name"],
        "type": "custom_tool_call",
        "id": name,
        "status": "completed",
    }


def _call_item(call: Mapping[str, Any]) -> Item:
    if call.get("type") == "custom":
        return _custom_call_item(call)
    function, name = call["function"], call["id"]
    return {
        "arguments": function["arguments"],
        "call_id": name,
        "name": function["name"],
        "type": "function_call",
        "id": name,
        "status": "completed",
    }


def _only_call(message: Mapping[str, Any], new_id: MakeId) -> list[Item]:
    """The tool call in the older form, which allowed only one."""
    function = message.get("function_call")
    return [{"id": f"call_{new_id()}", "function": function}] if function else []


def _output_message(text: str, refusal: str | None, new_id: MakeId) -> Item:
    parts: list[dict[str, Any]] = []
    if text or not refusal:
        parts.append({"annotations": [], "text": text, "type": "output_text"})
    if refusal:
        parts.append({"refusal": refusal, "type": "refusal"})
    return {"id": f"msg_{new_id()}", "content": parts, "role": "assistant", "status": "completed", "type": "message"}


def with_tokens(items: list[Item], message: Mapping[str, Any]) -> list[Item]:
    """The items of one model call; the last one gets the tokens of the call, if the message has any."""
    if message.get("generation_token_ids") is not None:
        items[-1] |= {name: message[name] for name in TOKEN_FIELDS if message.get(name) is not None}
    if message.get(CALL_REFERENCE) is not None:
        items[-1][CALL_REFERENCE] = message[CALL_REFERENCE]
    return items


def with_version(items: list[Item], message: Mapping[str, Any]) -> list[Item]:
    """The items of one model call; the last one gets the version of the weights, if the message names one."""
    if message.get(POLICY_VERSION) is not None:
        items[-1][POLICY_VERSION] = message[POLICY_VERSION]
    return items


def messages_to_items(
    messages: Iterable[Mapping[str, Any]], assistant: Callable[[Mapping[str, Any]], list[Item]]
) -> list[Item]:
    """A chat history as items; ``assistant`` converts the messages of the assistant."""
    items: list[Item] = []
    for message in messages:
        role = message["role"]
        if role == "assistant":
            items += assistant(message)
            continue
        content = message.get("content") or ""
        if not isinstance(content, str):
            content = parts_to_responses(content)
        if role == "tool":
            items.append({"call_id": message["tool_call_id"], "output": content, "type": "function_call_output"})
        else:
            items.append({"content": content, "role": role, "type": "message"})
    return items
