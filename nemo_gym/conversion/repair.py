"""Reads what endpoints answer, strictly first and forgivingly second.

A well-formed answer is validated once and costs nothing more. One that does not validate is looked at again: fields
that many servers leave out or send as null, and whose value is beyond doubt, are filled in. Nothing is guessed about
what the model said; an answer that still does not validate is refused with the error of the repaired form.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson
from pydantic import ValidationError

from nemo_gym.schemas.chat import NeMoGymChatCompletion
from nemo_gym.schemas.responses import NeMoGymResponse

_SHOWN_ERRORS: Final = 3


class ReadResponse(NamedTuple):
    """A response, and whether anything had to be filled in."""

    response: NeMoGymResponse
    is_repaired: bool


def read_response(content: bytes, asked: Mapping[str, Any]) -> ReadResponse:
    """The response in a body, to what was asked; raises ``ValidationError`` if it is none."""
    try:
        return ReadResponse(NeMoGymResponse.model_validate_json(content), is_repaired=False)
    except ValidationError:
        payload = _object(content)
        if payload is None or not isinstance(payload.get("output"), list):
            raise
        return ReadResponse(NeMoGymResponse.model_validate(_repair_response(payload, asked)), is_repaired=True)


def read_chat_completion(content: bytes) -> NeMoGymChatCompletion:
    """The completion in a body; raises ``ValidationError`` if it is none."""
    try:
        return NeMoGymChatCompletion.model_validate_json(content)
    except ValidationError:
        payload = _object(content)
        if payload is None or not isinstance(payload.get("choices"), list):
            raise
        return NeMoGymChatCompletion.model_validate(_repair_completion(payload))


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


def _fill(target: dict[str, Any], **defaults: Any) -> None:
    for name, value in defaults.items():
        if target.get(name) is None:
            target[name] = value


def _repair_response(payload: dict[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    _fill(
        payload,
        id="resp_unnamed",
        created_at=0.0,
        model=asked.get("model") or "",
        object="response",
        parallel_tool_calls=asked.get("parallel_tool_calls") is not False,
        tool_choice=asked.get("tool_choice") or "auto",
        tools=asked.get("tools") or [],
    )
    for position, item in enumerate(payload["output"]):
        if isinstance(item, dict):
            _repair_item(item, position)
    usage = payload.get("usage")
    if isinstance(usage, dict):
        _repair_usage(usage)
    return payload


def _repair_item(item: dict[str, Any], position: int) -> None:
    kind = item.get("type", "message")
    if item.get("status", kind) is None:
        del item["status"]
    if kind == "message":
        _fill(item, id=f"msg_{position}", role="assistant", content=[])
        if isinstance(item["content"], str):
            item["content"] = [{"type": "output_text", "text": item["content"]}]
        for part in item["content"]:
            if isinstance(part, dict) and part.get("type") == "output_text":
                _fill(part, annotations=[])
    elif kind == "reasoning":
        _fill(item, id=f"rs_{position}", summary=[])
    elif kind == "function_call":
        _fill(item, call_id=item.get("id"))
        item["arguments"] = _json_text(item.get("arguments"))


def _repair_usage(usage: dict[str, Any]) -> None:
    _fill(usage, input_tokens=0, output_tokens=0, input_tokens_details={}, output_tokens_details={})
    _fill(usage, total_tokens=usage["input_tokens"] + usage["output_tokens"])
    _fill(usage["input_tokens_details"], cached_tokens=0)
    _fill(usage["output_tokens_details"], reasoning_tokens=0)


def _repair_completion(payload: dict[str, Any]) -> dict[str, Any]:
    _fill(payload, id="chatcmpl_unnamed", created=0, model="", object="chat.completion")
    for position, choice in enumerate(payload["choices"]):
        if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
            continue
        message = choice["message"]
        _fill(choice, index=position, finish_reason="tool_calls" if message.get("tool_calls") else "stop")
        _fill(message, role="assistant")
        for number, call in enumerate(message.get("tool_calls") or []):
            _fill(call, id=f"call_{number}", type="function")
            if isinstance(call.get("function"), dict):
                call["function"]["arguments"] = _json_text(call["function"].get("arguments"))
    usage = payload.get("usage")
    if isinstance(usage, dict):
        _fill(usage, prompt_tokens=0, completion_tokens=0)
        _fill(usage, total_tokens=usage["prompt_tokens"] + usage["completion_tokens"])
    return payload


def _json_text(arguments: Any) -> Any:
    """Arguments as text: some servers parse them, and leave them out when a tool has none."""
    if arguments is None:
        return "{}"
    return orjson.dumps(arguments).decode() if isinstance(arguments, dict) else arguments
