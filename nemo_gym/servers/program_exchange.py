"""Answers one call of a program: asks the model server, waits while its endpoint is down, and keeps what was said.

The model server is always asked for a whole completion. So a call can be repeated while the endpoint is down, what was
answered can be kept, and a program never sees half a stream; one that wants a stream gets the events of the whole, and
signs of life before them.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Scope, Send

from nemo_gym.capture.calls import AnsweredRequest, CapturedCall, answered_request
from nemo_gym.capture.gateway import GatewayAttempt
from nemo_gym.capture.program_calls import ProgramCall, keep_answer, likely_parents, thread_hint
from nemo_gym.conversion.parts import UnsupportedContentError
from nemo_gym.conversion.programs.dialects import (
    Answered,
    Dialect,
    Route,
    answered_items,
    asked_items,
    encode_whole,
    error_of,
    stream_of,
)
from nemo_gym.conversion.programs.known_clients import Adapted, adapt, restore
from nemo_gym.schemas.rows import FAILURE_CLASS_HEADER, FailureClass
from nemo_gym.servers.direct.handlers import LocalServer, call_asgi
from nemo_gym.servers.http.deadlines import not_counted
from nemo_gym.servers.models.endpoint import EVENT_STREAM

# Failures that pass. A request that took too long is not asked again: it would take as long.
PASSING: Final = frozenset({FailureClass.CONNECTION, FailureClass.RATE_LIMITED, FailureClass.MODEL_ERROR})
FIRST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 15.0
SIGN_OF_LIFE_S: Final = 10.0
_JSON: Final = (b"content-type", b"application/json")
_MALFORMED: Final = (AttributeError, IndexError, KeyError, TypeError, ValueError, UnsupportedContentError)


class FinishedReply(NamedTuple):
    """A reply with its whole body."""

    status: int
    body: bytes
    headers: list[tuple[bytes, bytes]] = [_JSON]  # noqa: RUF012 - it is never changed

    def header(self, name: str) -> str:
        wanted = name.lower().encode()
        return next((value.decode("latin-1") for key, value in self.headers if key.lower() == wanted), "")


def error_reply(dialect: Dialect, status: int, message: str, kind: str) -> FinishedReply:
    """A refusal in the shape of a protocol."""
    return FinishedReply(status, encode_whole(error_of(dialect, status, message, kind)))


def closed_reply(dialect: Dialect) -> FinishedReply:
    """The refusal of a call that came too late."""
    return error_reply(dialect, 410, "this attempt is closed: its result is being verified", "attempt_closed")


async def ask_server(app: ASGIApp, scope: Scope, body: bytes) -> FinishedReply:
    """Ask a server of this process."""
    if isinstance(app, LocalServer) and scope["method"] == "POST":  # which records a step of the rollout
        direct = await app.call("POST", scope["path"], json=body)
        return FinishedReply(direct.status, await direct.read(), list(direct.raw_headers))
    reply = await call_asgi(app.app if isinstance(app, LocalServer) else app, scope, body)
    return FinishedReply(reply.status, reply.body, reply.headers)


async def send_reply(reply: FinishedReply, send: Send) -> None:
    """Send a whole reply, without what only servers of a Gym say to each other."""
    kept = [pair for pair in reply.headers if pair[0].lower() not in (b"content-length", b"set-cookie")]
    headers = [*kept, (b"content-length", b"%d" % len(reply.body))]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


@dataclass(slots=True)
class ProgramExchange:
    """One call of a program."""

    attempt: GatewayAttempt
    app: ASGIApp
    scope: Scope
    path: str
    route: Route
    _signs: asyncio.Task[None] | None = field(default=None, init=False)
    _has_begun: bool = field(default=False, init=False)  # the reply, with signs of life

    async def answer(self, body: bytes, send: Send) -> None:
        """Answer the call."""
        try:
            reply = await self._reply(body, send)
        except asyncio.CancelledError:
            if self.attempt.report is None:  # the program has hung up
                raise
            reply = closed_reply(self.route.dialect)
        finally:
            if self._signs is not None:
                self._signs.cancel()
        if not self._has_begun:
            await send_reply(reply, send)
            return
        await send({"type": "http.response.body", "body": reply.body})

    async def _reply(self, body: bytes, send: Send) -> FinishedReply:
        given = _object(body)
        if given is None:
            return self._refused(
                error_reply(self.route.dialect, 400, "the body is not a JSON object", "invalid_request_error")
            )
        adapted = adapt(self.route.dialect, given)
        self.attempt.left_out.update(adapted.left_out)
        if self.route.counts:
            return await ask_server(self.app, self._asking(), orjson.dumps(adapted.body))
        each = self._begin(adapted)
        streams = self.route.streams or given.get("stream") is True
        if streams and self.route.dialect is not Dialect.GEMINI:  # whose clients expect nothing but completions
            self._signs = asyncio.create_task(self._show_life(send))
        answered = AnsweredRequest(likely_parents(each.hint, self.attempt.calls))
        answered_request.set(answered)
        reply = await self._ask_until_up(orjson.dumps(adapted.body), each)
        each.ended, each.status = time.time(), reply.status
        if reply.status != 200:
            return self._failed(each, reply, streams=streams)
        completion = orjson.loads(reply.body)
        self._keep(each, adapted, completion, answered.kept[-1] if answered.kept else None)
        completion = restore(self.route.dialect, completion, adapted.names)
        if not streams:
            return reply._replace(body=encode_whole(completion))
        return FinishedReply(200, stream_of(self.route, completion, given), [self._stream_type()])

    def _begin(self, adapted: Adapted) -> ProgramCall:
        body = adapted.body
        headers = Headers(scope=self.scope)
        each = ProgramCall(
            self.route.dialect,
            self.route.model or str(body.get("model") or ""),
            thread_hint(headers),
            offers_tools=bool(body.get("tools")),
            started=time.time(),
        )
        self.attempt.calls.append(each)
        return each

    async def _ask_until_up(self, body: bytes, each: ProgramCall) -> FinishedReply:
        """Ask the model server; again and again while its endpoint is down, up to the patience of the attempt."""
        wait, waited = FIRST_WAIT_S, 0.0
        while True:
            reply = await ask_server(self.app, self._asking(), body)
            each.failure = reply.header(FAILURE_CLASS_HEADER) if reply.status != 200 else ""
            if each.failure not in PASSING or waited >= self.attempt.patience_s:
                return reply
            since = time.monotonic()
            with not_counted():
                await asyncio.sleep(wait)
            slept = time.monotonic() - since
            waited, wait = waited + slept, min(wait * 2, LONGEST_WAIT_S)
            self.attempt.waited_s += slept

    def _asking(self) -> Scope:
        path = self.route.path
        return {**self.scope, "path": path, "raw_path": path.encode(), "query_string": b""}

    def _failed(self, each: ProgramCall, reply: FinishedReply, *, streams: bool) -> FinishedReply:
        each.message = _message(reply.body)
        if not each.failure or each.failure == FailureClass.REJECTED:
            self._refused(reply)
        if streams and self._has_begun:
            error = error_of(self.route.dialect, reply.status, each.message, each.failure or "invalid_request_error")
            return FinishedReply(reply.status, b"event: error\ndata: %s\n\n" % orjson.dumps(error))
        return reply

    def _refused(self, reply: FinishedReply) -> FinishedReply:
        if 400 <= reply.status < 500:
            self.attempt.refuse(reply.status, _message(reply.body), self.path)
        return reply

    def _keep(
        self, each: ProgramCall, adapted: Adapted, completion: Mapping[str, Any], kept: CapturedCall | None
    ) -> None:
        try:
            asked = asked_items(self.route.dialect, adapted.body)
            answered = answered_items(self.route.dialect, completion)
        except _MALFORMED:  # the server could do with it, so it is kept as it is
            asked = [{"role": "user", "type": "message", "content": orjson.dumps(adapted.body).decode()}]
            answered = Answered(
                [{"role": "assistant", "type": "message", "content": orjson.dumps(completion).decode()}]
            )
        each.model = str(completion.get("model") or each.model)
        earlier = self.attempt.calls
        keep_answer(each, self.attempt.store, earlier, asked=asked, answered=answered, kept=kept)

    def _stream_type(self) -> tuple[bytes, bytes]:
        return (b"content-type", EVENT_STREAM.encode()) if self.route.as_events else _JSON

    async def _show_life(self, send: Send) -> None:
        """Begin the reply of a stream after a while, because clients give up on silent connections."""
        await asyncio.sleep(SIGN_OF_LIFE_S)
        self._has_begun = True
        await send({"type": "http.response.start", "status": 200, "headers": [self._stream_type()]})
        while True:
            await send({"type": "http.response.body", "body": b": the model is working\n\n", "more_body": True})
            await asyncio.sleep(SIGN_OF_LIFE_S)


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _message(body: bytes) -> str:
    """What an error says, whichever protocol it is written in."""
    value = _object(body) or {}
    error = value.get("error")
    if isinstance(error, dict) and error.get("message"):
        return str(error["message"])
    return body[:500].decode(errors="replace")
