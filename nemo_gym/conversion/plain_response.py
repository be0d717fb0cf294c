"""Recognizes a response that can be passed on unchanged, at a quarter of the cost of validating it.

The types here mirror ``NeMoGymResponse``, but allow only what endpoints usually send. What they accept, pydantic
accepts too, and nothing has to be repaired. What they refuse may still be valid; it is read by ``reading``.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from nemo_gym.conversion.endings import reached
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


_decode = msgspec.json.Decoder(_Response).decode


def is_plain_response(content: bytes, *, limit: Any = None) -> bool:
    """Whether this is certainly a valid, successful response that needs no repair, to a request with this limit."""
    try:
        if not content.isascii():
            str(content, "utf-8")  # the decoder does not check strings that it skips
        response: Any = _decode(content)
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
