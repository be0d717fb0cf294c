"""Recognizes answers that need no repair, at a fraction of the cost of validating them.

The types here mirror ``NeMoGymResponse`` and ``NeMoGymChatCompletion``, but allow only what endpoints usually send.
What they accept, pydantic accepts too, and means the same. What they refuse may still be valid; it is read by
``reading``.
"""

from typing import Annotated, Any, Literal, NotRequired

import msgspec
from msgspec import Meta, Struct
from typing_extensions import TypedDict

from nemo_gym.conversion.chat_answers import ChatAnswer
from nemo_gym.conversion.reading import reached
from nemo_gym.steps.recording import current_span

_Status = Literal["in_progress", "completed", "incomplete"]
_Count = Annotated[int, Meta(ge=0)]


class _Object(Struct, gc=False):
    """Any object; its content is not looked at."""


class _Text(Struct, tag_field="type", tag="output_text", gc=False):
    annotations: list[_Object] | None
    text: str
    logprobs: list[_Object] | None = None


class _Refusal(Struct, tag_field="type", tag="refusal", gc=False):
    refusal: str


class _Item(Struct, gc=False, kw_only=True):
    generation_token_ids: None = None  # items with tokens need more checks than these


class _Message(_Item, tag_field="type", tag="message", gc=False):
    id: str
    content: list[_Text | _Refusal]
    role: Literal["assistant"]
    status: _Status = "completed"


class _Call(_Item, tag_field="type", tag="function_call", gc=False):
    arguments: str
    call_id: str
    name: str
    id: str | None = None
    status: _Status | None = None


class _Summary(Struct, gc=False):
    text: str
    type: Literal["summary_text"] = "summary_text"


class _Reasoning(_Item, tag_field="type", tag="reasoning", gc=False):
    id: str
    summary: list[_Summary]
    encrypted_content: str | None = None


class _InputDetails(Struct, gc=False):
    cached_tokens: _Count


class _OutputDetails(Struct, gc=False):
    reasoning_tokens: _Count


class _Usage(Struct, gc=False):
    input_tokens: _Count
    input_tokens_details: _InputDetails
    output_tokens: _Count
    output_tokens_details: _OutputDetails
    total_tokens: _Count


class _Incomplete(Struct, gc=False):
    reason: str | None = None


class _Response(Struct, gc=False, kw_only=True):
    # In the order in which endpoints usually send them, because the decoder expects the next field first.
    id: str
    object: Literal["response"]
    created_at: float
    status: Literal["completed", "incomplete"] | None = None
    background: bool | None = None
    error: None = None
    incomplete_details: _Incomplete | None = None
    instructions: str | None = None
    metadata: dict[str, str] | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    model: str
    output: list[_Message | _Call | _Reasoning]
    parallel_tool_calls: bool
    previous_response_id: str | None = None
    prompt: _Object | None = None
    prompt_cache_key: str | None = None
    reasoning: _Object | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    temperature: float | None = None
    text: _Object | None = None
    tool_choice: Literal["none", "auto", "required"]
    tools: list[_Object]
    top_logprobs: int | None = None
    top_p: float | None = None
    truncation: Literal["auto", "disabled"] | None = None
    usage: _Usage | None = None
    user: str | None = None
    conversation: None = None


_decode_response = msgspec.json.Decoder(_Response).decode


def is_plain_response(content: bytes, *, limit: Any = None) -> bool:
    """Whether this is certainly a valid, successful response that needs no repair, to a request with this limit."""
    try:
        if not content.isascii():
            str(content, "utf-8")  # the decoder does not check strings that it skips
        response: Any = _decode_response(content)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return False
    written = response.usage.output_tokens if response.usage else None
    if response.status != "incomplete" and reached(limit or response.max_output_tokens, written):
        return False  # it may have been cut off
    calls = [item.call_id for item in response.output if type(item) is _Call]
    if len(calls) != len(set(calls)):
        return False
    _tell_step(content, response)
    return True


def _tell_step(content: bytes, response: _Response) -> None:
    """Give the figures to the step that is being recorded, if any, which would otherwise search the answer for them."""
    span, usage, incomplete = current_span.get(), response.usage, response.incomplete_details
    if span is not None and usage is not None:
        finish = "completed" if incomplete is None else incomplete.reason or ""
        cached = usage.input_tokens_details.cached_tokens
        span.answer = (content, (usage.input_tokens, usage.output_tokens, cached, finish))


class _ChatFunction(TypedDict):
    name: str
    arguments: str


class _ChatCall(TypedDict):
    id: str
    type: NotRequired[Literal["function"]]
    function: _ChatFunction


class _ChatMessage(TypedDict):
    """What a conversion looks at. Other keys are ignored there, too."""

    role: Literal["assistant"]
    content: NotRequired[str | None]
    reasoning_content: NotRequired[str | None]
    reasoning: NotRequired[str | None]
    refusal: NotRequired[str | None]
    tool_calls: NotRequired[list[_ChatCall] | None]
    annotations: NotRequired[list[dict[str, Any]] | None]
    policy_version: NotRequired[Any]
    # Rare, or in need of more checks.
    audio: NotRequired[None]
    function_call: NotRequired[None]
    generation_token_ids: NotRequired[None]


class _ChatChoice(Struct, gc=False):
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter", "function_call"]
    index: int
    message: _ChatMessage
    logprobs: dict[str, Any] | None = None


class _ChatUsage(TypedDict):
    prompt_tokens: _Count
    completion_tokens: _Count
    total_tokens: _Count
    prompt_tokens_details: NotRequired[dict[str, Any] | None]
    completion_tokens_details: NotRequired[dict[str, Any] | None]
    reasoning_tokens: NotRequired[_Count]


class _Completion(Struct, gc=False):
    id: str
    choices: Annotated[list[_ChatChoice], Meta(min_length=1)]
    created: int
    model: str
    object: Literal["chat.completion"]
    service_tier: str | None = None
    system_fingerprint: str | None = None
    usage: _ChatUsage | None = None


_decode_completion = msgspec.json.Decoder(_Completion).decode


def read_plain_completion(content: bytes) -> ChatAnswer | None:
    """The first answer of a completion that is certainly valid and needs no repair; None if there is any doubt."""
    try:
        str(content, "utf-8")  # the decoder does not check strings that it skips
        completion: Any = _decode_completion(content)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return None
    if any(_has_repeated_ids(choice.message.get("tool_calls")) for choice in completion.choices):
        return None
    first = completion.choices[0]
    return ChatAnswer(first.message, first.finish_reason, completion.created, first.logprobs, completion.usage)


def _has_repeated_ids(calls: list[_ChatCall] | None) -> bool:
    return calls is not None and len(calls) > 1 and len({call["id"] for call in calls}) < len(calls)
