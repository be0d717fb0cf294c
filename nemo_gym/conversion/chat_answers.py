"""Converts chat messages to items, and a chat completion to a response: finish reason, usage, log-probabilities.

A response is a dictionary with all keys of its class, in order, whether or not they have a value; its items have only
keys with values.
"""

from collections.abc import Callable, Iterable, Mapping
from os import urandom
from typing import Any, Final, NamedTuple

import orjson

from nemo_gym.conversion.parts import (
    POLICY_VERSION,
    TOKEN_FIELDS,
    extract_reasoning,
    joined_refusals,
    joined_text,
    parts_to_responses,
    separate_reasoning,
)
from nemo_gym.io.json import EncodedJson, encode_json
from nemo_gym.schemas.chat import NeMoGymChatCompletion, NeMoGymChatCompletionMessage
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
        items.append(_message(text, refusal, new_id))
        if get("annotations") and text:
            items[-1]["content"][0]["annotations"] = [_annotation(given) for given in get("annotations") or ()]
    items += map(_call, calls)
    return items


def _annotation(given: Mapping[str, Any]) -> dict[str, Any]:
    """A citation without the object that a chat wraps its fields in."""
    kind = given.get("type")
    inner = given.get(kind) if isinstance(kind, str) else None
    return {"type": kind, **inner} if isinstance(inner, Mapping) else dict(given)


def _custom_call(call: Mapping[str, Any]) -> Item:
    custom, name = call["custom"], call["id"]
    return {
        "call_id": name,
        "input": custom["input"],
        "name": custom["name"],
        "type": "custom_tool_call",
        "id": name,
        "status": "completed",
    }


def _call(call: Mapping[str, Any]) -> Item:
    if call.get("type") == "custom":
        return _custom_call(call)
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


def _message(text: str, refusal: str | None, new_id: MakeId) -> Item:
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


INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
LOGPROBS: Final = "message.output_text.logprobs"
_EMPTY: Final[Mapping[str, Any]] = dict.fromkeys(NeMoGymResponse.model_fields)
# Fields that a response repeats from its request.
_ECHOED: Final = frozenset(
    NeMoGymResponse.model_fields.keys() & NeMoGymResponseCreateParamsNonStreaming.model_fields.keys()
)


class ChatAnswer(NamedTuple):
    """What a response is made from: the first choice of a completion, and what the completion says about it."""

    message: Mapping[str, Any]
    finish_reason: str
    created: int
    logprobs: Mapping[str, Any] | None = None
    usage: Mapping[str, Any] | None = None


def answer_of(completion: NeMoGymChatCompletion) -> ChatAnswer:
    """The answer in a validated completion."""
    choice = completion.choices[0]
    usage = {**completion.usage.__dict__, **(completion.usage.model_extra or {})} if completion.usage else None
    return ChatAnswer(
        message_as_received(choice.message), choice.finish_reason, completion.created, choice.logprobs, usage
    )


def answer_to_response(
    answer: ChatAnswer,
    output: list[dict[str, Any]],
    asked: Mapping[str, Any],
    *,
    id: str,  # noqa: A002 - the name of the field
    model: str,
) -> dict[str, Any]:
    """The response for an answer; ``output`` is its message, already converted."""
    if answer.logprobs and wants_logprobs(asked):
        _add_logprobs(output, answer.logprobs.get("content"))
    return response_to(
        asked,
        output,
        id=id,
        created_at=float(answer.created),
        model=model,
        reason=INCOMPLETE.get(answer.finish_reason),
        usage=usage_to_responses(answer.usage) if answer.usage else None,
    )


# Those fields of a response that differ between the answers to requests with the same options, in their order.
_OF_ANSWERS: Final = ("id", "created_at", "incomplete_details", "output", "status", "usage")

# The usage of an answer without details.
_USAGE: Final = (
    b'{"input_tokens":%d,"input_tokens_details":{"cached_tokens":0},"output_tokens":%d,'
    b'"output_tokens_details":{"reasoning_tokens":0},"total_tokens":%d}'
)


class ResponseTemplate:
    """The JSON of all responses to requests with the same options: what they have in common is written once."""

    __slots__ = ("_pieces", "_wants_logprobs", "asked", "model")

    def __init__(self, asked: Mapping[str, Any], *, model: str) -> None:
        self.asked = asked
        self.model = model
        self._wants_logprobs = wants_logprobs(asked)
        marker = encode_json(urandom(16).hex())
        same = response_to(asked, [], id="", created_at=0.0, model=model, reason=None, usage=None)
        text = encode_json({**same, **dict.fromkeys(_OF_ANSWERS, EncodedJson(marker))})
        self._pieces = text.split(marker)

    def fill(self, answer: ChatAnswer, output: list[dict[str, Any]], *, id: str) -> bytes:  # noqa: A002 - of the field
        """The response for an answer; ``output`` is its message, already converted."""
        if answer.logprobs and self._wants_logprobs:
            _add_logprobs(output, answer.logprobs.get("content"))
        usage = _usage_text(answer.usage) if answer.usage else b"null"
        reason = INCOMPLETE.get(answer.finish_reason)
        return self.join(output, id=id, created=answer.created, reason=reason, usage=usage)

    def join(
        self,
        output: list[dict[str, Any]],
        *,
        id: str,  # noqa: A002 - the name of the field
        created: int,
        reason: str | None,
        usage: bytes,
    ) -> bytes:
        """The response with this output; ``reason`` is why it stopped early, if it did."""
        start, after_id, after_time, after_details, after_output, after_status, end = self._pieces
        return b"".join(
            (
                *(start, orjson.dumps(id), after_id, b"%d.0" % created, after_time),
                *(orjson.dumps({"reason": reason}) if reason else b"null", after_details, encode_json(output)),
                *(after_output, b'"incomplete"' if reason else b'"completed"', after_status),
                *(usage, end),
            )
        )


def _usage_text(usage: Mapping[str, Any]) -> bytes:
    if usage.get("prompt_tokens_details") or usage.get("completion_tokens_details") or "reasoning_tokens" in usage:
        return encode_json(usage_to_responses(usage))
    return _USAGE % (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"])


def message_as_received(message: NeMoGymChatCompletionMessage) -> dict[str, Any]:
    """An answer as a dictionary. Its tokens are not copied, because there may be many."""
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
    """The response to a request; ``reason`` is why it stopped early, if it did."""
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


def usage_to_responses(usage: Mapping[str, Any]) -> dict[str, Any]:
    """The same numbers under the names of the Responses API; missing details are 0."""
    prompt, completion = usage.get("prompt_tokens_details") or {}, usage.get("completion_tokens_details") or {}
    return response_usage(
        usage["prompt_tokens"],
        usage["completion_tokens"],
        total=usage["total_tokens"],
        cached=prompt.get("cached_tokens") or 0,
        reasoning=completion.get("reasoning_tokens") or usage.get("reasoning_tokens") or 0,  # SGLang's are beside
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
    """Whether the request asks for log-probabilities."""
    return asked.get("top_logprobs") is not None or LOGPROBS in (asked.get("include") or ())


def _add_logprobs(output: list[dict[str, Any]], scores: Any) -> None:
    parts = [part for item in output if item["type"] == "message" for part in item["content"]]
    texts = [part for part in parts if part["type"] == "output_text"]
    if texts and isinstance(scores, list):
        texts[0]["logprobs"] = scores
