"""Reads what endpoints answer, strictly first and forgivingly second.

A well-formed answer is validated once and costs nothing more. One that does not validate, or can't be true, is read
again after a repair (see ``repair``); an answer that still does not validate is refused with the error of the repaired
form. A stream is read as the answer that it amounts to.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import orjson
from pydantic import ValidationError

from nemo_gym.conversion.repair import is_true, repair_completion, repair_response
from nemo_gym.conversion.streams import (
    completion_of_stream,
    is_stream,
    reported_error,
    response_of_stream,
    whole_answer,
)
from nemo_gym.schemas.chat import NeMoGymChatCompletion
from nemo_gym.schemas.responses import NeMoGymResponse

_SHOWN_ERRORS: Final = 3


class ReadResponse(NamedTuple):
    """A response, whether its bytes had to change, and what a person should know about that."""

    response: NeMoGymResponse
    is_repaired: bool
    notes: tuple[str, ...] = ()


class ReadCompletion(NamedTuple):
    """A completion, and what a person should know about how it was read."""

    completion: NeMoGymChatCompletion
    notes: tuple[str, ...] = ()


def read_response(content: bytes, asked: Mapping[str, Any]) -> ReadResponse:
    """The response in a body, to what was asked; raises ``ValidationError`` or ``BrokenStreamError`` if it is none."""
    streamed = is_stream(content)
    if streamed:
        content = whole_answer(content, response_of_stream)
    try:
        response = NeMoGymResponse.model_validate_json(content)
    except ValidationError:
        payload = _object(content)
        if payload is None or not isinstance(payload.get("output"), list):
            raise
    else:
        usage = response.usage
        numbers = (usage.input_tokens, usage.output_tokens, usage.total_tokens) if usage else ()
        if _all_different(item.call_id for item in response.output if item.type == "function_call") and is_true(
            numbers
        ):
            return ReadResponse(response, is_repaired=streamed)
        payload = orjson.loads(content)
    notes: list[str] = []
    repaired = repair_response(payload, asked, notes)
    return ReadResponse(NeMoGymResponse.model_validate(repaired), is_repaired=True, notes=tuple(notes))


def read_chat_completion(content: bytes) -> ReadCompletion:
    """The completion in a body; raises ``ValidationError`` or ``BrokenStreamError`` if it is none."""
    if is_stream(content):
        content = whole_answer(content, completion_of_stream)
    try:
        completion = NeMoGymChatCompletion.model_validate_json(content)
    except ValidationError:
        payload = _object(content)
        if payload is None or not isinstance(payload.get("choices"), list):
            raise
    else:
        usage = completion.usage
        numbers = (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) if usage else ()
        calls = [choice.message.tool_calls or () for choice in completion.choices]
        if is_true(numbers) and all(_all_different(call.id for call in some) for some in calls):
            return ReadCompletion(completion)
        payload = orjson.loads(content)
    notes: list[str] = []
    return ReadCompletion(NeMoGymChatCompletion.model_validate(repair_completion(payload, notes)), tuple(notes))


def error_body(content: bytes) -> bytes:
    """The body, with the error that it reports in the place where most put it: out of a stream, out of vLLM's form."""
    if is_stream(content):
        return reported_error(content) or content
    if b'"object"' not in content[:200]:
        return content
    payload = _object(content)
    return orjson.dumps({"error": payload}) if payload and payload.get("object") == "error" else content


def explain(error: ValidationError) -> str:
    """The first few errors in one line."""
    errors = error.errors(include_url=False, include_input=False)
    shown = [f"{'.'.join(map(str, entry['loc'])) or 'body'}: {entry['msg']}" for entry in errors[:_SHOWN_ERRORS]]
    more = len(errors) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more > 0 else "")


def has_unknown_items(error: ValidationError) -> bool:
    """True if the answer is well-formed but for items of types that nobody here knows."""
    return any(entry["type"] == "union_tag_invalid" for entry in error.errors(include_url=False))


def _object(content: bytes) -> dict[str, Any] | None:
    try:
        payload = orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
    return payload if isinstance(payload, dict) else None


def _all_different(names: Iterable[str]) -> bool:
    listed = list(names)
    return len(listed) < 2 or len(set(listed)) == len(listed)
