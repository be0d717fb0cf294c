"""The events that streams of all protocols consist of: written, split, and read as the whole that they add up to. Pure.

Some endpoints only stream, or stream although that was not requested. Such a stream is read once it has ended; if it
ended before its completion was whole, that is an error. A stream that is passed on is split as the bytes come.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import orjson

Event = dict[str, Any]
_DONE: Final = b"[DONE]"
_END_OF_EVENT: Final = re.compile(rb"\n\r?\n")
_STARTS: Final = (b"data:", b"event:", b":", b"id:", b"retry:")
Assembly = Callable[[Iterator[dict[str, Any]]], dict[str, Any] | None]


class BrokenStreamError(ValueError):
    """A stream does not contain a whole completion."""


def encode_event(event: Mapping[str, Any]) -> bytes:
    """An event under the name of its type, as the Responses API and the Messages API send it."""
    return b"event: %s\ndata: %s\n\n" % (str(event["type"]).encode(), orjson.dumps(event))


def event_bytes(events: Iterator[dict[str, Any]]) -> bytes:
    """The events as the body of a ``text/event-stream``."""
    return b"".join(map(encode_event, events))


def is_stream(content: bytes) -> bool:
    """Whether a body is a stream of events rather than JSON."""
    return content.lstrip().startswith(_STARTS)


def assembled(content: bytes, assemble: Assembly) -> bytes:
    """The body as it would be without streaming; if the stream reports an error, that error."""
    events = list(_events(content))
    error = _error_among(events)
    if error is not None:
        return error
    try:
        completion = assemble(iter(events))
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise BrokenStreamError("a stream with an event of an unexpected form") from error
    if completion is None:
        raise BrokenStreamError(f"a stream that broke off after {len(events)} events")
    return orjson.dumps(completion)


def reported_error(content: bytes) -> bytes | None:
    """The error that a stream reports, as the body of an ordinary reply."""
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
        self._rest = bytearray()
        self._left = self._limit = limit

    def feed(self, chunk: bytes) -> Iterator[SentEvent]:
        """The events that are complete with these bytes."""
        self._left -= len(chunk)
        if self._left < 0:
            raise BrokenStreamError(f"a stream of more than {self._limit} bytes")
        begin = max(0, len(self._rest) - len(b"\n\r\n"))
        self._rest += chunk
        if not _END_OF_EVENT.search(self._rest, begin):  # so that a long event is not searched again with every chunk
            return
        *blocks, rest = bytes(self._rest).replace(b"\r\n", b"\n").split(b"\n\n")
        self._rest = bytearray(rest)
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
