"""What a caller sees when a handler raises: status 500 and one JSON string, on every transport.

A failed call to another server carries the body of that server's answer along, so the first cause stays readable
however many servers lie between it and the collector. What class of failure it was, and when to try again, travels in
headers; a server in between that knows no more than "``/verify`` failed" says that.
"""

import json
import logging
from typing import Any, Protocol, runtime_checkable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nemo_gym.schemas.rows import FAILURE_CLASS_HEADER

logger = logging.getLogger(__name__)

JSON_HEADER = (b"content-type", b"application/json")
CLASS_OF_PATH = {"/verify": "verifier_error", "/seed_session": "tool_error"}


@runtime_checkable
class UpstreamFault(Protocol):
    """An exception that knows the answer which caused it (see ``raise_for_status``)."""

    response_content: bytes


def fault_body(error: Exception, server: str) -> bytes:
    """The JSON body of the 500 answer for an exception that escaped a handler of ``server``."""
    text = repr(error)
    if isinstance(error, UpstreamFault):
        text = f"Hit an exception in {server} calling an inner server: {error.response_content!r}"
    return json.dumps(text, ensure_ascii=False).encode(errors="backslashreplace")


def fault_headers(error: Exception) -> list[tuple[bytes, bytes]]:
    """The headers of the 500 answer: what the failing server said of its failure, or what can be told from the call."""
    said: Any = getattr(error, "headers", None) or {}
    info = getattr(error, "request_info", None)
    path = info.real_url.path if info is not None else ""
    kind = said.get(FAILURE_CLASS_HEADER) or CLASS_OF_PATH.get(path)
    headers = [JSON_HEADER]
    if kind:
        headers.append((FAILURE_CLASS_HEADER.lower().encode(), kind.encode("latin-1")))
    if said.get("Retry-After"):
        headers.append((b"retry-after", said["Retry-After"].encode("latin-1")))
    return headers


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
            headers = [*fault_headers(error), (b"content-length", b"%d" % len(body))]
            await send({"type": "http.response.start", "status": 500, "headers": headers})
            await send({"type": "http.response.body", "body": body})
