"""Lets programs in under the addresses of their attempts: ``/ng-rollout/<id>/v1/…`` with the key of an open attempt.

Only the routes that call a model can be reached this way, whoever knows a key.
"""

import asyncio
import re
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from nemo_gym.capture.gateway import ID_FORM, Access, Gateway, GatewayAttempt
from nemo_gym.conversion.programs.dialects import Dialect, route_of
from nemo_gym.servers.middleware.rollout_scope import PATH_PREFIX
from nemo_gym.servers.program_exchange import (
    FinishedReply,
    ProgramExchange,
    ask_server,
    closed_reply,
    error_reply,
    send_reply,
)

LONGEST_REQUEST: Final = 1 << 26
_MODELS: Final = r"/v1/models(/.*)?|/v1beta/models"


class GatewayAddress(NamedTuple):
    """An attempt's id in the path of a request, and the path below it."""

    attempt: str
    path: str

    @classmethod
    def parse(cls, path: str) -> "GatewayAddress | None":
        """Read a path; None if it does not belong to an attempt."""
        if not path.startswith(PATH_PREFIX):
            return None
        name, slash, rest = path.removeprefix(PATH_PREFIX).partition("/")
        return cls(name, re.sub("/{2,}", "/", slash + rest)) if ID_FORM.fullmatch(name) else None


@dataclass(frozen=True, slots=True)
class GatewayDoor:
    """Answers requests under the addresses of attempts."""

    gateway: Gateway

    async def serve(self, address: GatewayAddress, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = Headers(scope=scope)
        route = route_of(address.path, scope["query_string"].decode("latin-1")) if scope["method"] == "POST" else None
        dialect = route.dialect if route is not None else Dialect.RESPONSES
        attempt = self.gateway.find(address.attempt)
        access = attempt.access(_key(headers, scope)) if attempt is not None else Access.CLOSED
        if attempt is not None and getattr(app, "name", attempt.server) != attempt.server:
            access = Access.WRONG_KEY
        if access is Access.WRONG_KEY:
            message = "the key does not open this attempt"
            await send_reply(error_reply(dialect, 401, message, "authentication_error"), send)
        elif access is Access.CLOSED or attempt is None:
            if attempt is not None and route is not None:
                attempt.late += 1
            await send_reply(closed_reply(dialect), send)
        elif route is None:
            await send_reply(await _other(attempt, app, scope, address.path), send)
        elif (body := await _read(receive)) is None:
            message = f"a request has at most {LONGEST_REQUEST >> 20} MiB"
            attempt.refuse(413, message, address.path)
            await send_reply(error_reply(dialect, 413, message, "request_too_large"), send)
        else:
            exchange = ProgramExchange(attempt, app, scope, address.path, route)
            await _until_gone(attempt, exchange.answer(body, send), receive)


async def _read(receive: Receive) -> bytes | None:
    """The body of a request; None if it is too long, or if the client has gone."""
    chunks, size = [], 0
    while True:
        message = await receive()
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > LONGEST_REQUEST or message["type"] == "http.disconnect":
            return None
        if not message.get("more_body"):
            return b"".join(chunks)


def _key(headers: Headers, scope: Scope) -> str:
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and given.strip():
        return given.strip()
    named = headers.get("x-api-key") or headers.get("x-goog-api-key")
    return named or next(iter(parse_qs(scope["query_string"].decode("latin-1")).get("key", [])), "")


async def _other(attempt: GatewayAttempt, app: ASGIApp, scope: Scope, path: str) -> FinishedReply:
    """Programs also look whether their server is there, and which models it has. Nothing else can be reached."""
    if scope["method"] in ("GET", "HEAD") and path in ("", "/"):
        return FinishedReply(200, b"{}")
    if scope["method"] == "GET" and re.fullmatch(_MODELS, path):
        return await ask_server(app, {**scope, "path": path, "raw_path": path.encode(), "query_string": b""}, b"")
    message = f"there is no {scope['method']} {path} for programs, only the routes that call a model"
    if scope["method"] == "POST" and path.startswith("/v1"):
        attempt.refuse(404, message, path)
    return error_reply(Dialect.RESPONSES, 404, message, "not_found_error")


async def _until_gone(attempt: GatewayAttempt, work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Work on a request until it is answered, its client has gone, or its attempt is closed."""
    task = asyncio.get_running_loop().create_task(work, context=attempt.context.copy())
    attempt.running.add(task)
    watch = asyncio.ensure_future(_hangs_up(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    finally:
        attempt.running.discard(task)
        watch.cancel()
        task.cancel()


async def _hangs_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
