"""The protocols in which programs call a model, each as the same few operations. Pure.

Whoever stands between a program and a model server asks the server for whole completions, reads what was asked and
answered as items of the Responses API, and gives the program what it wanted: the completion, or a stream of it.
"""

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

import orjson

from nemo_gym.conversion.anthropic.message_completions import message_to_items
from nemo_gym.conversion.anthropic.message_history import messages_to_history
from nemo_gym.conversion.anthropic.message_streams import message_events
from nemo_gym.conversion.chat_completions import usage_to_responses
from nemo_gym.conversion.chat_history import assistant_to_items, messages_to_items
from nemo_gym.conversion.chat_streams import completion_stream
from nemo_gym.conversion.gemini.gemini_completions import gemini_error, gemini_stream
from nemo_gym.conversion.gemini.gemini_history import contents_to_items
from nemo_gym.conversion.new_responses import Item, response_usage, uuid4
from nemo_gym.conversion.parts import CALL_REFERENCE
from nemo_gym.conversion.response_streams import response_stream
from nemo_gym.conversion.stream_events import event_bytes

JsonObject = dict[str, Any]


class Dialect(StrEnum):
    """The protocol of a request."""

    RESPONSES = "responses"
    CHAT = "chat"
    MESSAGES = "messages"
    GEMINI = "gemini"


class Route(NamedTuple):
    """What a path asks for."""

    dialect: Dialect
    path: str  # of the whole completion
    streams: bool = False  # by the path alone
    as_events: bool = True
    counts: bool = False  # tokens, instead of generating
    model: str = ""  # if the path names it


_PATHS: Final = {
    "/v1/responses": Dialect.RESPONSES,
    "/v1/chat/completions": Dialect.CHAT,
    "/v1/messages": Dialect.MESSAGES,
}
_COUNTS: Final = {"/v1/responses/input_tokens": Dialect.RESPONSES, "/v1/messages/count_tokens": Dialect.MESSAGES}
_GEMINI: Final = re.compile(r"/v1(?:beta|alpha)?/models/([^:]+):(generateContent|streamGenerateContent|countTokens)")


def route_of(path: str, query: str = "") -> Route | None:
    """What a path asks a model for; None if it is not a call of a model."""
    path = re.sub("/{2,}", "/", path).rstrip("/")
    if path in _PATHS:
        return Route(_PATHS[path], path)
    if path in _COUNTS:
        return Route(_COUNTS[path], path, counts=True)
    found = _GEMINI.fullmatch(path)
    if found is None:
        return None
    model, method = found[1], found[2]
    if method == "countTokens":
        return Route(Dialect.GEMINI, f"/v1beta/models/{model}:countTokens", counts=True, model=model)
    whole = f"/v1beta/models/{model}:generateContent"
    streams, as_events = method == "streamGenerateContent", "alt=sse" in query
    return Route(Dialect.GEMINI, whole, streams, as_events, model=model)


class Answered(NamedTuple):
    """A completion as items of the Responses API."""

    items: list[Item]
    usage: JsonObject | None = None
    reference: str | None = None  # by which the model server finds its tokens
    incomplete: str | None = None  # why it stopped early
    message: Mapping[str, Any] | None = None  # of a chat


def asked_items(dialect: Dialect, body: Mapping[str, Any]) -> list[Item]:
    """The conversation of a request, instructions included."""
    return _ASKED[dialect](body)


def answered_items(dialect: Dialect, completion: Mapping[str, Any]) -> Answered:
    """What a completion says."""
    return _ANSWERED[dialect](completion)


def stream_of(route: Route, completion: JsonObject, request: Mapping[str, Any]) -> bytes:
    """The events that add up to a completion."""
    match route.dialect:
        case Dialect.RESPONSES:
            return response_stream(completion)
        case Dialect.CHAT:
            options = request.get("stream_options") or {}
            return completion_stream(completion, usage=bool(options.get("include_usage")))
        case Dialect.MESSAGES:
            return event_bytes(message_events(completion))
        case Dialect.GEMINI:
            return gemini_stream(completion, as_events=route.as_events)


def error_of(dialect: Dialect, status: int, message: str, kind: str) -> JsonObject:
    """An error in the shape of a protocol."""
    if dialect is Dialect.GEMINI:
        return gemini_error(status, message, kind=kind)
    if dialect is Dialect.MESSAGES:
        return {"type": "error", "error": {"type": kind, "message": message}}
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def _instructions(text: str) -> list[Item]:
    return [{"role": "system", "content": text, "type": "message"}] if text else []


def _asked_of_responses(body: Mapping[str, Any]) -> list[Item]:
    given = body["input"]
    items = [{"role": "user", "content": given, "type": "message"}] if isinstance(given, str) else list(given)
    return _instructions(body.get("instructions") or "") + items


def _asked_of_chat(body: Mapping[str, Any]) -> list[Item]:
    return messages_to_items(body["messages"], lambda message: assistant_to_items(message, _new_id))


def _asked_of_messages(body: Mapping[str, Any]) -> list[Item]:
    system = body.get("system") or ""
    text = system if isinstance(system, str) else "\n".join(block["text"] for block in system)
    return _instructions(text) + messages_to_history(body["messages"])


def _asked_of_gemini(body: Mapping[str, Any]) -> list[Item]:
    system = (body.get("systemInstruction") or {}).get("parts") or ()
    text = "\n".join(part["text"] for part in system if part.get("text"))
    return _instructions(text) + contents_to_items(body["contents"])


def _answered_of_responses(response: Mapping[str, Any]) -> Answered:
    items = list(response["output"])
    reason = (response.get("incomplete_details") or {}).get("reason")
    return Answered(items, response.get("usage"), items[-1].get(CALL_REFERENCE) if items else None, reason)


def _answered_of_chat(completion: Mapping[str, Any]) -> Answered:
    choice = completion["choices"][0]
    message, usage = choice["message"], completion.get("usage")
    reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(choice.get("finish_reason") or "")
    items = assistant_to_items(message, _new_id)
    return Answered(items, usage_to_responses(usage) if usage else None, message.get(CALL_REFERENCE), reason, message)


def _answered_of_messages(message: Mapping[str, Any]) -> Answered:
    given = message.get("usage") or {}
    cached = given.get("cache_read_input_tokens") or 0
    read = (given.get("input_tokens") or 0) + cached + (given.get("cache_creation_input_tokens") or 0)
    usage = response_usage(read, given.get("output_tokens") or 0, cached=cached)
    reason = "max_output_tokens" if message.get("stop_reason") == "max_tokens" else None
    return Answered(message_to_items(message["content"], _new_id), usage, None, reason)


def _answered_of_gemini(completion: Mapping[str, Any]) -> Answered:
    candidate, given = completion["candidates"][0], completion.get("usageMetadata") or {}
    thought = given.get("thoughtsTokenCount") or 0
    usage = response_usage(
        given.get("promptTokenCount") or 0,
        (given.get("candidatesTokenCount") or 0) + thought,
        cached=given.get("cachedContentTokenCount") or 0,
        reasoning=thought,
    )
    reason = {"MAX_TOKENS": "max_output_tokens", "SAFETY": "content_filter"}.get(candidate.get("finishReason") or "")
    items = contents_to_items([candidate["content"]])
    return Answered(items, usage, completion.get(CALL_REFERENCE), reason)


def _new_id() -> str:
    return uuid4().hex


_ASKED: Final[Mapping[Dialect, Callable[[Mapping[str, Any]], list[Item]]]] = {
    Dialect.RESPONSES: _asked_of_responses,
    Dialect.CHAT: _asked_of_chat,
    Dialect.MESSAGES: _asked_of_messages,
    Dialect.GEMINI: _asked_of_gemini,
}
_ANSWERED: Final[Mapping[Dialect, Callable[[Mapping[str, Any]], Answered]]] = {
    Dialect.RESPONSES: _answered_of_responses,
    Dialect.CHAT: _answered_of_chat,
    Dialect.MESSAGES: _answered_of_messages,
    Dialect.GEMINI: _answered_of_gemini,
}


def encode_whole(value: Mapping[str, Any]) -> bytes:
    """A completion or an error as the body of a reply."""
    return orjson.dumps(value)
