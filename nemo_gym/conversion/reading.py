"""Reads the completions of endpoints: strictly first, and after a repair if that fails. Pure.

A well-formed completion is validated once and costs nothing more. One that does not validate, or can't be true, is
repaired and validated again; if that fails, it is refused with the error of the repaired form. A stream is read as the
completion that it adds up to.

A repair fills in fields that many servers leave out or send as null and whose value is beyond doubt. Items of unknown
types are kept, repeated call ids are made unique, and usage that can't be true is left out. Nothing is guessed about
what the model generated.

Agents continue from a completion and trainers learn from it, so a truncated or missing one must not look complete. Some
engines (llama.cpp and ``transformers serve``, through the Responses API) report a response as complete although it
reached its token limit; their token counts reveal that. A response that is still queued or was cancelled contains no
completion, and neither does a chat that ended for an unknown reason.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import orjson
from pydantic import ValidationError

from nemo_gym.conversion.chat_streams import completion_of_stream
from nemo_gym.conversion.parts import is_unknown, wrap_unknown_item
from nemo_gym.conversion.response_streams import response_of_stream
from nemo_gym.conversion.stream_events import assembled, is_stream, reported_error
from nemo_gym.io.json import refuse_not_finite
from nemo_gym.schemas.chat import NeMoGymChatCompletion
from nemo_gym.schemas.responses import IncompleteDetails, NeMoGymResponse

REPEATED_IDS: Final = "repeated call ids, which were made unique"
FALSE_USAGE: Final = "usage with negative numbers, which was left out"
CUT_OFF: Final = "max_output_tokens"
_LONG: Final = 4096  # bytes
FINAL_STATUSES: Final = frozenset({"completed", "incomplete"})
FINISHED: Final = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})
# Names that other servers use for the same reasons.
OTHER_NAMES: Final[Mapping[str, str]] = {
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
}


class Options(Protocol):
    """The options of a request by name, in a dictionary or parsed one by one."""

    def get(self, name: str, /) -> Any:
        """The value of an option; None if it is not set."""


def is_true(numbers: Iterable[Any]) -> bool:
    """Whether no token count is negative."""
    return all(not isinstance(number, int) or number >= 0 for number in numbers)


def repair_response(payload: dict[str, Any], request: Options, notes: list[str]) -> dict[str, Any]:
    """A response with missing fields filled in. What people should know about it is added to ``notes``."""
    _fill(
        payload,
        id="resp_unnamed",
        created_at=0.0,
        model=request.get("model") or "",
        object="response",
        parallel_tool_calls=request.get("parallel_tool_calls") is not False,
        tool_choice=request.get("tool_choice") or "auto",
        tools=request.get("tools") or [],
    )
    _keep_unknown(payload["output"], notes)
    items = _objects(payload["output"])
    for position, item in enumerate(items):
        _repair_item(item, position)
    _tell_apart([item for item in items if item.get("type") == "function_call"], "call_id", notes)
    usage = payload.get("usage")
    if isinstance(usage, dict):
        _repair_total(usage, "input_tokens", "output_tokens")
        for details, name in (("input_tokens_details", "cached_tokens"), ("output_tokens_details", "reasoning_tokens")):
            _fill(usage, **{details: {}})
            for numbers in _objects([usage[details]]):
                _fill(numbers, **{name: 0})
    _drop_false_usage(payload, notes)
    return payload


def _drop_false_usage(payload: dict[str, Any], notes: list[str]) -> None:
    usage = payload.get("usage")
    if isinstance(usage, dict) and not is_true(usage.values()):
        notes.append(FALSE_USAGE)
        payload["usage"] = None


def _keep_unknown(output: list[Any], notes: list[str]) -> None:
    """Wrap items of unknown types, unless the response has no others: an agent could not continue from that."""
    unknown = [position for position, item in enumerate(output) if isinstance(item, dict) and is_unknown(item)]
    if len(unknown) == len(output):
        return
    for position in unknown:
        notes.append(f"items of type {output[position].get('type')}, which are kept but not understood")
        output[position] = wrap_unknown_item(output[position], position=position)


def _repair_item(item: dict[str, Any], position: int) -> None:
    kind = item.get("type", "message")
    if item.get("status") is None:
        item.pop("status", None)
    if kind == "message":
        _fill(item, id=f"msg_{position}", role="assistant", content=[])
        if isinstance(item["content"], str):
            item["content"] = [{"type": "output_text", "text": item["content"]}]
        for part in _objects(item["content"]):
            if part.get("type") == "output_text":
                _fill(part, annotations=[])
    elif kind == "reasoning":
        _fill(item, id=f"rs_{position}", summary=[])
    elif kind == "function_call":
        _fill(item, call_id=item.get("id"))
        item["arguments"] = _json_text(item.get("arguments"))


def repair_completion(payload: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """A completion with missing fields filled in. What people should know about it is added to ``notes``."""
    _fill(payload, id="chatcmpl_unnamed", created=0, model="", object="chat.completion")
    for position, choice in enumerate(payload["choices"]):
        if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
            continue
        message = choice["message"]
        _fill(choice, index=position, finish_reason="tool_calls" if message.get("tool_calls") else "stop")
        _repair_message(message, notes)
    usage = payload.get("usage")
    if isinstance(usage, dict):
        _repair_total(usage, "prompt_tokens", "completion_tokens")
    _drop_false_usage(payload, notes)
    return payload


def _repair_message(message: dict[str, Any], notes: list[str]) -> None:
    _fill(message, role="assistant")
    if isinstance(message.get("content"), list):
        _join_parts(message, notes)
    calls = _objects(message.get("tool_calls"))
    for number, call in enumerate(calls):
        _fill(call, id=f"call_{number}", type="function")
        if isinstance(call.get("function"), dict):
            call["function"]["arguments"] = _json_text(call["function"].get("arguments"))
    _tell_apart(calls, "id", notes)


def _join_parts(message: dict[str, Any], notes: list[str]) -> None:
    """Replace parts by their text; some servers return reasoning as parts of the type ``thinking`` beside it."""
    parts = _objects(message["content"])
    thoughts = [part.get("thinking") for part in parts if part.get("type") == "thinking"]
    notes += [
        f"content of type {part.get('type')}, which is left out"
        for part in parts
        if part.get("type") not in ("text", "thinking")
    ]
    message["content"] = _text_of([part for part in parts if part.get("type") == "text"])
    if thoughts:
        _fill(message, reasoning_content="".join(_text_of(thought) for thought in thoughts))


def _text_of(parts: Any) -> str:
    if isinstance(parts, str):
        return parts
    texts = [part.get("text") for part in _objects(parts)]
    return "".join(text for text in texts if isinstance(text, str))


def _json_text(arguments: Any) -> Any:
    """Arguments as text. Some servers send them as objects, and leave them out when a tool takes none."""
    if arguments is None:
        return "{}"
    return orjson.dumps(arguments).decode() if isinstance(arguments, dict) else arguments


def _fill(target: dict[str, Any], **defaults: Any) -> None:
    for name, value in defaults.items():
        if target.get(name) is None:
            target[name] = value


def _objects(values: Any) -> list[dict[str, Any]]:
    """The values that are objects."""
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def _tell_apart(calls: Iterable[dict[str, Any]], key: str, notes: list[str]) -> None:
    """Make all call ids different: the second ``x`` becomes ``x_2``."""
    taken: set[str] = set()
    for call in calls:
        given = name = call.get(key)
        if not isinstance(name, str):
            continue
        number = 1
        while name in taken:
            number += 1
            name = f"{given}_{number}"
        taken.add(name)
        if name != given:
            call[key] = name
            notes.append(REPEATED_IDS)


def _repair_total(usage: dict[str, Any], one: str, other: str) -> None:
    _fill(usage, **{one: 0, other: 0})
    if isinstance(usage[one], int) and isinstance(usage[other], int):
        _fill(usage, total_tokens=usage[one] + usage[other])


_SHOWN_ERRORS: Final = 3


class ReadResponse(NamedTuple):
    """A response, whether it had to be changed, and notes for people about that."""

    response: NeMoGymResponse
    is_repaired: bool
    notes: tuple[str, ...] = ()


class ReadCompletion(NamedTuple):
    """A completion, and notes for people about how it was read."""

    completion: NeMoGymChatCompletion
    notes: tuple[str, ...] = ()


def read_response(content: bytes, request: Options) -> ReadResponse:
    """The response in a body, given the request.

    Raises ``ValidationError``, ``NotFiniteError`` or ``BrokenStreamError`` if it is invalid.
    """
    streamed = is_stream(content)
    if streamed:
        content = assembled(content, response_of_stream)
    refuse_not_finite(content)
    try:
        response = NeMoGymResponse.model_validate_json(content)
    except ValidationError:
        payload = _object(content)
        if payload is None or not isinstance(payload.get("output"), list):
            raise
    else:
        usage = response.usage
        numbers = (usage.input_tokens, usage.output_tokens, usage.total_tokens) if usage else ()
        calls = [item.call_id for item in response.output if item.type == "function_call"]
        if _all_different(calls) and is_true(numbers):
            return ReadResponse(response, is_repaired=streamed)  # the body of a stream can't be passed on as it came
        payload = orjson.loads(content)
    notes: list[str] = []
    repaired = repair_response(payload, request, notes)
    return ReadResponse(NeMoGymResponse.model_validate(repaired), is_repaired=True, notes=tuple(notes))


def read_chat_completion(content: bytes) -> ReadCompletion:
    """The completion in a body. Raises ``ValidationError``, ``NotFiniteError`` or ``BrokenStreamError`` if invalid."""
    if is_stream(content):
        content = assembled(content, completion_of_stream)
    try:
        completion = _validated(content)
    except ValidationError:
        payload = _object(content)
        if payload is None or not isinstance(payload.get("choices"), list):
            raise
    else:
        usage = completion.usage
        numbers = (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) if usage else ()
        calls = [[call.id for call in choice.message.tool_calls or ()] for choice in completion.choices]
        if is_true(numbers) and all(map(_all_different, calls)):
            return ReadCompletion(completion)
        payload = orjson.loads(content)
    notes: list[str] = []
    return ReadCompletion(NeMoGymChatCompletion.model_validate(repair_completion(payload, notes)), tuple(notes))


def _validated(content: bytes) -> NeMoGymChatCompletion:
    if len(content) > _LONG:
        # Mostly the scores of tokens. This parser takes 0.09 ms less for 200 of them, of the 0.8 ms that a turn takes.
        with suppress(msgspec.MsgspecError, UnicodeError, RecursionError):
            return NeMoGymChatCompletion.model_validate(msgspec.json.decode(content))
    refuse_not_finite(content)  # which that parser does by itself
    return NeMoGymChatCompletion.model_validate_json(content)


def unwrapped_error(content: bytes) -> bytes:
    """The body with its error in the usual place, if it reports one in a stream or in vLLM's form."""
    if is_stream(content):
        return reported_error(content) or content
    if b'"object"' not in content[:200]:
        return content
    payload = _object(content)
    return orjson.dumps({"error": payload}) if payload and payload.get("object") == "error" else content


def first_errors(error: ValidationError) -> str:
    """The first few errors in one line."""
    errors = error.errors(include_url=False, include_input=False)
    shown = [f"{'.'.join(map(str, entry['loc'])) or 'body'}: {entry['msg']}" for entry in errors[:_SHOWN_ERRORS]]
    more = len(errors) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more > 0 else "")


def has_unknown_items(error: ValidationError) -> bool:
    """Whether the response contains items of unknown types."""
    return any(entry["type"] == "union_tag_invalid" for entry in error.errors(include_url=False))


def _object(content: bytes) -> dict[str, Any] | None:
    try:
        payload = orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
    return payload if isinstance(payload, dict) else None


def _all_different(names: Sequence[str]) -> bool:
    return len(set(names)) == len(names)


def reached(limit: Any, written: Any) -> bool:
    """Whether a completion has exactly as many tokens as its limit; if it has more, the limit was not applied."""
    return isinstance(limit, int) and limit == written


def missing_completion(response: NeMoGymResponse) -> str | None:
    """What a response is that contains no completion; None if it contains one."""
    status = response.status or "completed"
    return None if status in FINAL_STATUSES else f"a response that is {status.replace('_', ' ')}"


def mark_cut_off(response: NeMoGymResponse, request: Options) -> bool:
    """Mark a response as incomplete if it reached its limit without reporting that; returns whether it did."""
    if response.status == "incomplete" or response.incomplete_details or response.usage is None:
        return False
    limit = request.get("max_output_tokens") or response.max_output_tokens
    if not reached(limit, response.usage.output_tokens) or _ends_with_a_call(response):
        return False
    response.status, response.incomplete_details = "incomplete", IncompleteDetails(reason=CUT_OFF)
    return True


def unknown_finish(completion: NeMoGymChatCompletion) -> str | None:
    """The finish reason of a completion if it is unknown, else None; other names of known reasons are replaced."""
    for choice in completion.choices:
        choice.finish_reason = OTHER_NAMES.get(choice.finish_reason, choice.finish_reason)
        if choice.finish_reason not in FINISHED:
            return str(choice.finish_reason)
    return None


def _ends_with_a_call(response: NeMoGymResponse) -> bool:
    """Whether the last item is a complete tool call, after which nothing can be missing."""
    last = response.output[-1] if response.output else None
    if last is None or last.type != "function_call":
        return False
    try:
        json.loads(last.arguments)
    except ValueError:
        return False
    return True
