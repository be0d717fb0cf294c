"""Reads streams of events, as the whole answers that they add up to or event by event. Pure.

Some endpoints only stream, or stream without being asked to. Such a stream is read once it has ended; if it ended
before its answer was complete, that is an error. A stream that is passed on is split into its events as the bytes come.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import orjson

_DONE: Final = b"[DONE]"
_STARTS: Final = (b"data:", b"event:", b":", b"id:", b"retry:")
_ENDS_OF_RESPONSES: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})
_GROWING_TEXTS: Final = ("content", "reasoning_content", "reasoning", "refusal")

Assembly = Callable[[Iterator[dict[str, Any]]], dict[str, Any] | None]


class BrokenStreamError(ValueError):
    """A stream does not contain a whole answer."""


def is_stream(content: bytes) -> bool:
    """Whether a body is a stream of events rather than JSON."""
    return content.lstrip().startswith(_STARTS)


def whole_answer(content: bytes, assemble: Assembly) -> bytes:
    """The body as it would be without streaming; if the stream reports an error, that error."""
    events = list(_events(content))
    error = _error_among(events)
    if error is not None:
        return error
    try:
        answer = assemble(iter(events))
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise BrokenStreamError("a stream with an event of an unexpected form") from error
    if answer is None:
        raise BrokenStreamError(f"a stream that broke off after {len(events)} events")
    return orjson.dumps(answer)


def reported_error(content: bytes) -> bytes | None:
    """The error that a stream reports, as the body of an ordinary answer."""
    try:
        return _error_among(list(_events(content)))
    except BrokenStreamError:
        return None


def _error_among(events: list[dict[str, Any]]) -> bytes | None:
    for event in events:
        if event.get("error") and not event.get("choices"):
            return orjson.dumps({"error": event["error"]})
    return None


class SentEvent(NamedTuple):
    """An event as its endpoint sent it, and what it says."""

    raw: bytes
    data: dict[str, Any]


class EventSplitter:
    """Splits the bytes of a stream, however they are cut, into events; comments and the closing mark are left out."""

    def __init__(self, *, limit: int) -> None:
        self._rest = b""
        self._left = self._limit = limit

    def feed(self, chunk: bytes) -> Iterator[SentEvent]:
        """The events that are complete with these bytes."""
        self._left -= len(chunk)
        if self._left < 0:
            raise BrokenStreamError(f"a stream of more than {self._limit} bytes")
        *blocks, self._rest = (self._rest + chunk).replace(b"\r\n", b"\n").split(b"\n\n")
        for block in blocks:
            for data in _events(block):
                yield SentEvent(block.lstrip(b"\n") + b"\n\n", data)

    def end(self) -> Iterator[SentEvent]:
        """The event that the stream ends with, if nothing but the empty line after it is missing."""
        yield from self.feed(b"\n\n")


def _events(content: bytes) -> Iterator[dict[str, Any]]:
    data: list[bytes] = []
    for line in [*content.splitlines(), b""]:
        if line.startswith(b"data:"):
            data.append(line[5:].strip())
        elif not line and data:
            text, data = b"\n".join(data), []
            if text == _DONE:
                return
            yield _event(text)


def _event(text: bytes) -> dict[str, Any]:
    try:
        event = orjson.loads(text)
    except orjson.JSONDecodeError:
        event = None
    if not isinstance(event, dict):
        raise BrokenStreamError("a stream with an event that is not a JSON object")
    return event


def response_of_stream(events: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
    """The response that a stream of the Responses API ends with."""
    for event in events:
        if event.get("type") in _ENDS_OF_RESPONSES and isinstance(event.get("response"), dict):
            return dict(event["response"])
    return None


def completion_of_stream(events: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
    """The completion that the chunks of a chat add up to."""
    completion: dict[str, Any] = {"choices": []}
    choices: dict[int, dict[str, Any]] = {}
    for chunk in events:
        completion |= {name: value for name, value in chunk.items() if name != "choices" and value is not None}
        for part in chunk.get("choices") or ():
            index = part.get("index") or 0
            choice = choices.setdefault(index, {"index": index, "message": {"role": "assistant", "content": None}})
            _grow_choice(choice, part)
    if not choices or any(choice.get("finish_reason") is None for choice in choices.values()):
        return None
    completion["choices"] = [choices[index] for index in sorted(choices)]
    return completion | {"object": "chat.completion"}


def _grow_choice(choice: dict[str, Any], part: dict[str, Any]) -> None:
    for name in ("finish_reason", "stop_reason"):
        if part.get(name) is not None:
            choice[name] = part[name]
    if part.get("token_ids"):
        choice.setdefault("token_ids", []).extend(part["token_ids"])
    scores = (part.get("logprobs") or {}).get("content")
    if scores:
        choice.setdefault("logprobs", {"content": []})["content"].extend(scores)
    _grow_message(choice["message"], part.get("delta") or {})


def _grow_message(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        if value is None or name == "role":
            continue
        if name in _GROWING_TEXTS and isinstance(value, str):
            message[name] = (message.get(name) or "") + value
        elif name == "tool_calls":
            for call in value:
                _grow_call(message.setdefault("tool_calls", []), call)
        elif isinstance(value, list):
            message[name] = [*(message.get(name) or []), *value]
        elif name == "audio":
            _grow_audio(message.setdefault("audio", {}), value)
        else:
            message[name] = value


def _grow_audio(audio: dict[str, Any], part: dict[str, Any]) -> None:
    for name, value in part.items():
        grows = name in ("data", "transcript") and isinstance(value, str)
        audio[name] = (audio.get(name) or "") + value if grows else value


def _grow_call(calls: list[dict[str, Any]], part: dict[str, Any]) -> None:
    """Extend the call with the same index. Endpoints that send a call as a whole may leave the index out."""
    index = part.get("index", len(calls))
    kind, given = ("custom", "input") if part.get("custom") else ("function", "arguments")
    while len(calls) <= index:
        calls.append({"type": kind, kind: {"name": "", given: ""}})
    call, inner = calls[index], part.get(kind) or {}
    if part.get("id"):
        call["id"] = part["id"]
    call[kind]["name"] += inner.get("name") or ""
    added = inner.get(given)
    if isinstance(added, dict):
        added = orjson.dumps(added).decode()
    call[kind][given] += added or ""
