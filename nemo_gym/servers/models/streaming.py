"""Completions of model servers as streams of events, for callers that send ``stream: true``.

A route gets the whole completion from its handler and makes the events from it, so every model server can stream, and
what is cached or recorded is the same either way. A server whose endpoint streams passes the events on as they arrive.
An error before the first event becomes an ordinary error reply; a later one becomes the last event.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final

import orjson
from fastapi import FastAPI
from fastapi.responses import Response, StreamingResponse
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from nemo_gym.conversion.chat_streams import DONE, completion_stream, encode_chunk
from nemo_gym.conversion.losses import LossPolicy, Way
from nemo_gym.conversion.response_streams import response_stream
from nemo_gym.conversion.stream_events import BrokenStreamError, EventSplitter, SentEvent, encode_event
from nemo_gym.servers.direct.handlers import replay
from nemo_gym.servers.http.connections import aiohttp, loop_client
from nemo_gym.servers.http.reply import HttpReply
from nemo_gym.servers.models.endpoint import EVENT_STREAM, Upstream
from nemo_gym.servers.models.failures import STREAM_HINT, ModelCallError, ModelErrorKind
from nemo_gym.servers.models.model_requests import SERVICE_KEYS, takes_unread
from nemo_gym.steps.recording import note_completion

RESPONSES: Final = "/v1/responses"
CHAT_COMPLETIONS: Final = "/v1/chat/completions"
HEADERS: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_STREAM: Final = b'"stream"'
_SERVICE: Final = tuple(f'"{key}"'.encode() for key in sorted(SERVICE_KEYS))

# Replies with a stream, given the HTTP request, its body without the streaming fields, and its stream options.
Relay = Callable[[Request, dict[str, Any], Mapping[str, Any]], Awaitable[Response]]
Make = Callable[[Mapping[str, Any], Mapping[str, Any]], bytes]


def _response_body(response: Mapping[str, Any], _: Mapping[str, Any]) -> bytes:
    return response_stream(response)


def _completion_body(completion: Mapping[str, Any], options: Mapping[str, Any]) -> bytes:
    return completion_stream(completion, usage=bool(options.get("include_usage")))


MADE_FROM_WHOLE: Final[Mapping[str, Make]] = {
    RESPONSES: _response_body,
    CHAT_COMPLETIONS: _completion_body,
}


def noting(handler: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Wrap a handler so that the step of a call has the tokens of the completion, and why the model stopped."""

    @wraps(handler)
    async def note(*values: Any, **named: Any) -> Any:
        result = await handler(*values, **named)
        note_completion(getattr(result, "body", result))  # a response has its JSON there
        return result

    return note


def add_streaming_route(
    app: FastAPI, path: str, handler: Callable[..., Any], relay: Relay | None = None, *, losses: LossPolicy
) -> None:
    """Add a route that returns a handler's completions whole or as streams; ``relay`` passes on an endpoint's own.

    ``losses`` decides about options that the handler does not take.
    """
    make = MADE_FROM_WHOLE[path]
    lacking = frozenset() if path == CHAT_COMPLETIONS or takes_unread(handler) else SERVICE_KEYS

    class StreamingRoute(APIRoute):
        """A route whose requests may want a stream. Other requests are handled without parsing them here."""

        def get_route_handler(self) -> Callable[[Request], Any]:
            reply_whole = super().get_route_handler()

            async def reply(request: Request) -> Response:
                content = await request.body()
                given = _object(content) if any(key in content for key in (_STREAM, *_SERVICE)) else None
                if given is None:
                    return await reply_whole(request)
                losses.check(Way.TO_HANDLER, sorted(name for name in lacking if given.get(name) is not None))
                body = {name: value for name, value in given.items() if name not in lacking}
                if given.get("stream") is not True:
                    return await reply_whole(_with_body(request, body))
                del body["stream"]
                options = body.pop("stream_options", None) or {}
                if relay is not None:
                    return await relay(request, body, options)
                return _as_stream(await reply_whole(_with_body(request, body)), make, options)

            return reply

    app.router.add_api_route(path, handler, methods=["POST"], route_class_override=StreamingRoute)


def _object(content: bytes) -> dict[str, Any] | None:
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
    return body if isinstance(body, dict) else None


def _with_body(request: Request, body: Mapping[str, Any]) -> Request:
    return Request(request.scope, replay(orjson.dumps(body), request.receive))


def _as_stream(whole: Response, make: Make, options: Mapping[str, Any]) -> Response:
    if whole.status_code != 200:
        return whole
    events = Response(make(orjson.loads(whole.body), options), media_type=EVENT_STREAM, headers=dict(HEADERS))
    events.raw_headers += [pair for pair in whole.raw_headers if pair[0] == b"set-cookie"]
    events.background = whole.background
    return events


class RelayedStream(StreamingResponse):
    """A stream that is passed on, together with resources to close afterwards, even if it is never read."""

    def __init__(self, content: AsyncIterator[bytes], held: AsyncExitStack) -> None:
        super().__init__(content, media_type=EVENT_STREAM, headers=HEADERS)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._held:
            await super().__call__(scope, receive, send)


@dataclass(frozen=True, slots=True)
class StreamProtocol:
    """How the streams of one protocol end and fail."""

    # Whether an event ends the completion.
    is_end: Callable[[dict[str, Any]], bool]
    # The last event of a failed stream, given the error and the number of the event.
    failure: Callable[[ModelCallError, int], bytes]
    # What follows the last event of a stream.
    closing: bytes = b""


def _is_last_chunk(chunk: dict[str, Any]) -> bool:
    return any(choice.get("finish_reason") is not None for choice in chunk.get("choices") or ())


def response_failure(error: ModelCallError, number: int) -> bytes:
    """The error event of the Responses API; it combines the two shapes that are in use."""
    body = error.body()["error"]
    event = {"type": "error", "code": body["type"], "message": body["message"], "param": None, "error": body}
    return encode_event({**event, "sequence_number": number})


RESPONSE_EVENTS: Final = StreamProtocol(
    lambda event: event.get("type") in ("response.completed", "response.incomplete", "response.failed"),
    response_failure,
)
CHAT_CHUNKS: Final = StreamProtocol(_is_last_chunk, lambda error, _: encode_chunk(error.body()), DONE)
MESSAGE_EVENTS: Final = StreamProtocol(
    lambda event: event.get("type") == "message_stop",
    lambda error, _: encode_event({"type": "error", **error.body()}),
)


def _note_event(event: Mapping[str, Any], *, is_end: bool) -> None:
    """Note what an event says about the whole completion; chats and messages report it in several events."""
    whole = event.get("response") or event.get("message") or event
    if is_end or whole.get("usage"):
        delta = event.get("delta")
        note_completion({**whole, **delta} if isinstance(delta, Mapping) else whole)


class StreamRelay:
    """Passes the streams of an endpoint on, event by event."""

    def __init__(
        self,
        upstream: Upstream,
        protocol: StreamProtocol,
        revise: Callable[[dict[str, Any]], dict[str, Any]] = lambda event: event,
    ) -> None:
        self._upstream = upstream
        self._protocol = protocol
        # Adjusts the event that ends a completion; raises ``ModelCallError`` if that can't be used.
        self._revise = revise

    async def reply(self, path: str, body: bytes, make: Callable[[bytes], bytes]) -> Response:
        """The stream for a request; if the endpoint sends a whole completion, ``make`` turns it into a stream."""
        async with AsyncExitStack() as opening:
            reply = await opening.enter_async_context(self._upstream.stream(path, body))
            if EVENT_STREAM not in reply.headers.get("Content-Type", ""):
                return Response(make(await reply.read()), media_type=EVENT_STREAM, headers=dict(HEADERS))
            events = await opening.enter_async_context(aclosing(self._events(reply)))
            first = await anext(events, None)
            if first is None:
                raise self._upstream.address.unusable(b"", "an empty stream", hint=STREAM_HINT)
            return RelayedStream(self._pass_on(self._checked(first), events), opening.pop_all())
        raise AssertionError("a stream was neither opened nor refused")

    async def _pass_on(self, first: SentEvent, rest: AsyncIterator[SentEvent]) -> AsyncIterator[bytes]:
        number, is_complete = 0, False
        try:
            event: SentEvent | None = first
            while event is not None:
                yield event.raw
                number += 1
                is_complete = is_complete or self._protocol.is_end(event.data)
                event = await anext(rest, None)
                event = event and self._checked(event)
            if not is_complete:
                reason = f"a stream that broke off after {number} events"
                raise self._upstream.address.unusable(b"", reason, hint=STREAM_HINT)
            yield self._protocol.closing
        except ModelCallError as error:
            yield self._protocol.failure(error, number)

    def _checked(self, event: SentEvent) -> SentEvent:
        """The event; raises if it reports an error. The last one is adjusted as a whole completion would be."""
        data = event.data
        if data.get("type") == "error" or (data.get("error") and not data.get("choices") and "response" not in data):
            raise self._upstream.address.unusable(orjson.dumps({"error": data.get("error") or data}), "an error")
        is_end = self._protocol.is_end(data)
        _note_event(data, is_end=is_end)
        if not is_end:
            return event
        revised = self._revise(data)
        return event if revised is data else SentEvent(encode_event(revised), revised)

    async def _events(self, reply: "HttpReply | aiohttp.ClientResponse") -> AsyncGenerator[SentEvent]:
        splitter = EventSplitter(limit=loop_client().settings.max_reply_bytes)
        try:
            async for chunk in reply.content.iter_any():
                for event in splitter.feed(chunk):
                    yield event
            for event in splitter.end():
                yield event
        except BrokenStreamError as error:
            raise self._upstream.address.unusable(b"", str(error), hint=STREAM_HINT) from error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            kind = ModelErrorKind.TIMEOUT if isinstance(error, TimeoutError) else ModelErrorKind.CONNECTION
            reason = f"the stream broke off: {str(error) or type(error).__name__}"
            raise self._upstream.address.error(kind, reason, hint=STREAM_HINT) from error
