"""What a caller sees when a handler raises: status 500 and one JSON string, on every transport.

A failed call to another server carries the body of that server's answer along, so the first cause stays readable
however many servers lie between it and the collector.
"""

import json
import logging
from typing import Protocol, runtime_checkable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)


@runtime_checkable
class UpstreamFault(Protocol):
    """An exception that knows the body of the answer which caused it (see ``raise_for_status``)."""

    response_content: bytes


def fault_body(error: Exception, server: str) -> bytes:
    """The JSON body of the 500 answer for an exception that escaped a handler of ``server``."""
    text = repr(error)
    if isinstance(error, UpstreamFault):
        text = f"Hit an exception in {server} calling an inner server: {error.response_content!r}"
    return json.dumps(text, ensure_ascii=False).encode(errors="backslashreplace")


def log_fault(error: Exception, server: str, path: str) -> None:
    """Log an escaped exception, with its traceback only where it began: a relayed fault was already logged there."""
    relayed = isinstance(error, UpstreamFault)
    logger.error("%s: %s failed: %r", server, path, error, exc_info=None if relayed else error)


class FaultMiddleware:
    """The innermost middleware: turns an exception into its answer, inside whatever must still see that answer."""

    def __init__(self, app: ASGIApp, *, server: str) -> None:
        self.app = app
        self.server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def send_noting_start(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, send_noting_start)
        except Exception as error:  # the boundary between a handler and its callers
            log_fault(error, self.server, scope["path"])
            if started:
                raise
            body = fault_body(error, self.server)
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": 500, "headers": headers})
            await send({"type": "http.response.body", "body": body})
