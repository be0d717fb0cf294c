"""Reads a chat completion that needs no repair, at a tenth of the cost of validating it.

The types here mirror ``NeMoGymChatCompletion``, but allow only what endpoints usually send. What they accept, pydantic
accepts too, and means the same. What they refuse may still be valid; it is read by ``reading``.
"""

from typing import Annotated, Any, Literal, NotRequired

import msgspec
from msgspec import Meta, Struct
from typing_extensions import TypedDict

from nemo_gym.conversion.chat_answers import ChatAnswer

_Count = Annotated[int, Meta(ge=0)]


class _Function(TypedDict):
    name: str
    arguments: str


class _Call(TypedDict):
    id: str
    type: NotRequired[Literal["function"]]
    function: _Function


class _Message(TypedDict):
    """What a conversion looks at. Other keys are ignored there, too."""

    role: Literal["assistant"]
    content: NotRequired[str | None]
    reasoning_content: NotRequired[str | None]
    reasoning: NotRequired[str | None]
    refusal: NotRequired[str | None]
    tool_calls: NotRequired[list[_Call] | None]
    annotations: NotRequired[list[dict[str, Any]] | None]
    policy_version: NotRequired[Any]
    # Rare, or in need of more checks.
    audio: NotRequired[None]
    function_call: NotRequired[None]
    generation_token_ids: NotRequired[None]


class _Choice(Struct, gc=False):
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter", "function_call"]
    index: int
    message: _Message
    logprobs: dict[str, Any] | None = None


class _Usage(TypedDict):
    prompt_tokens: _Count
    completion_tokens: _Count
    total_tokens: _Count
    prompt_tokens_details: NotRequired[dict[str, Any] | None]
    completion_tokens_details: NotRequired[dict[str, Any] | None]
    reasoning_tokens: NotRequired[_Count]


class _Completion(Struct, gc=False):
    id: str
    choices: Annotated[list[_Choice], Meta(min_length=1)]
    created: int
    model: str
    object: Literal["chat.completion"]
    service_tier: str | None = None
    system_fingerprint: str | None = None
    usage: _Usage | None = None


_decode = msgspec.json.Decoder(_Completion).decode


def read_plain_completion(content: bytes) -> ChatAnswer | None:
    """The first answer of a completion that is certainly valid and needs no repair; None if there is any doubt."""
    try:
        str(content, "utf-8")  # the decoder does not check strings that it skips
        completion: Any = _decode(content)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return None
    if any(_has_repeated_ids(choice.message.get("tool_calls")) for choice in completion.choices):
        return None
    first = completion.choices[0]
    return ChatAnswer(first.message, first.finish_reason, completion.created, first.logprobs, completion.usage)


def _has_repeated_ids(calls: list[_Call] | None) -> bool:
    return calls is not None and len(calls) > 1 and len({call["id"] for call in calls}) < len(calls)
