"""What a caller sees when a handler raises: status 500 and one JSON string, on every transport.

A failed call to another server includes the body of that server's reply, so the first cause stays readable however
many servers lie between it and the collector. The class of the failure and the time to wait before a retry travel in
headers. If the failing server named no class, the path decides: a failed ``/verify`` is the verifier's error.

The reverse is optional: ``CancellationMiddleware`` ends the work on a request whose caller has gone away.
"""

import ast
import asyncio
import json
import logging
import re
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

from multidict import CIMultiDict
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nemo_gym.schemas.rows import FAILURE_CLASS_HEADER, USAGE_HEADER, FailureClass

logger = logging.getLogger(__name__)

JSON_HEADER = (b"content-type", b"application/json")
RELAYED = re.compile(r"Hit an exception in \S+ calling an inner server: (b(['\"]).*\2)", re.DOTALL)
CLASS_OF_PATH = {"/verify": FailureClass.VERIFIER_ERROR, "/seed_session": FailureClass.TOOL_ERROR}
_UNREACHABLE = FailureClass.CONNECTION
MOST_FAULTS = 100  # different ones that are counted separately


@runtime_checkable
class UpstreamFault(Protocol):
    """An exception that holds the reply that caused it (see ``raise_for_status``)."""

    response_content: bytes


def fault_body(error: Exception, server: str) -> bytes:
    """The JSON body of the 500 reply for an exception that escaped a handler of ``server``."""
    text = repr(error)
    if isinstance(error, UpstreamFault):
        text = f"Hit an exception in {server} calling an inner server: {error.response_content!r}"
    return json.dumps(text, ensure_ascii=False).encode(errors="backslashreplace")


def fault_headers(error: Exception) -> list[tuple[bytes, bytes]]:
    """The headers of the 500 reply: those of the failing server, or those that follow from the failed call."""
    given: Any = getattr(error, "headers", None) or {}
    info = getattr(error, "request_info", None)
    path = info.real_url.path if info is not None else ""
    kind = given.get(FAILURE_CLASS_HEADER) or CLASS_OF_PATH.get(path) or (_UNREACHABLE if _is_gone(error) else None)
    headers = [JSON_HEADER]
    if kind:
        headers.append((FAILURE_CLASS_HEADER.lower().encode(), kind.encode("latin-1")))
    if given.get(USAGE_HEADER):
        headers.append((USAGE_HEADER.lower().encode(), given[USAGE_HEADER].encode("latin-1")))
    if given.get("Retry-After"):
        headers.append((b"retry-after", given["Retry-After"].encode("latin-1")))
    return headers


class AttachUsage:
    """Attaches to a passing exception what was spent before it: a usage of the Responses API, or None.

    A class, and not a generator, because every rollout enters it.
    """

    __slots__ = ("_spent",)

    def __init__(self, spent: Callable[[], Any]) -> None:
        self._spent = spent

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Add the header that ``fault_headers`` passes on."""
        usage = self._spent() if isinstance(error, Exception) else None
        if isinstance(usage, dict):
            headers = CIMultiDict(getattr(error, "headers", None) or {})
            headers.setdefault(USAGE_HEADER, json.dumps(usage))
            error.headers = headers  # type: ignore[union-attr]


def _is_gone(error: Exception) -> bool:
    """Whether an inner server could not be reached. aiohttp's class is compared by name to avoid importing aiohttp."""
    names = {base.__name__ for base in type(error).__mro__}
    return isinstance(error, ConnectionError) or "ClientConnectionError" in names


def first_cause(body: bytes) -> str:
    """The message and hint of the server where a fault began, unwrapped from any number of relayed bodies."""
    try:
        content = json.loads(body)
    except ValueError:
        return body.decode(errors="replace")
    if isinstance(content, str):
        relayed = _relayed_body(content)
        return content if relayed is None else first_cause(relayed)
    error = content.get("error") if isinstance(content, dict) else None
    if isinstance(error, dict) and "message" in error:
        return "; ".join(str(error[part]) for part in ("message", "hint") if error.get(part))
    return body.decode(errors="replace")


def _relayed_body(text: str) -> bytes | None:
    relayed = RELAYED.fullmatch(text)
    try:
        # The relayed body is the repr of bytes, and literal_eval reads it without running anything.
        body = ast.literal_eval(relayed[1]) if relayed else None
    except (SyntaxError, ValueError):
        return None
    return body if isinstance(body, bytes) else None


class FaultLog:
    """Logs the exceptions that escape the handlers of one server.

    The log has a traceback where a fault began, and elsewhere the message of its first cause, once for all routes of a
    server that it passes (an agent's ``/v1/responses`` and then its ``/run``). An endpoint that is down
    fails thousands of rollouts in the same way, so a fault that repeats is logged again only at 10, 100, … times; the
    failures file has every one of them.
    """

    def __init__(self, server: str) -> None:
        self.server = server
        self._counts: Counter[str] = Counter()
        self._first_paths: dict[str, str] = {}  # of faults that began elsewhere

    def add(self, error: Exception, path: str) -> None:
        """Count a fault, and log it if it is the first of its kind, the tenth, the hundredth, …"""
        relayed = first_cause(error.response_content) if isinstance(error, UpstreamFault) else None
        if relayed is not None and len(self._first_paths) < MOST_FAULTS:
            self._first_paths.setdefault(relayed, path)
        if relayed is not None and self._first_paths.get(relayed, path) != path:
            return
        text = f"{path} failed: {relayed or repr(error)}"
        if text not in self._counts and len(self._counts) >= MOST_FAULTS:
            text = "requests failed for further reasons"  # messages may hold text of a model and never be the same
        self._counts[text] += 1
        count = self._counts[text]
        if count == 1:
            logger.error("%s: %s", self.server, text, exc_info=error if relayed is None else None)
        elif count == 10 ** (len(str(count)) - 1):
            logger.error("%s: %s (%d times so far)", self.server, text, count)


class FaultMiddleware:
    """Turns an exception into its reply. It is the innermost middleware, so that all others still see the reply."""

    def __init__(self, app: ASGIApp, *, server: str) -> None:
        self.app = app
        self.server = server
        self.log = FaultLog(server)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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
            self.log.add(error, scope["path"])
            if started:  # the status has been sent, so all that is left is to break off the body
                raise
            body = fault_body(error, self.server)
            headers = [*fault_headers(error), (b"content-length", b"%d" % len(body))]
            await send({"type": "http.response.start", "status": 500, "headers": headers})
            await send({"type": "http.response.body", "body": body})


class CancellationMiddleware:
    """Cancels a request whose client disconnects before the reply is complete."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        messages: list[Message] = [await receive()]
        while messages[-1]["type"] == "http.request" and messages[-1].get("more_body"):
            messages.append(await receive())
        gone = asyncio.Event()

        async def next_message() -> Message:
            if messages:
                return messages.pop(0)
            await gone.wait()
            return {"type": "http.disconnect"}

        work = asyncio.ensure_future(self._app(scope, next_message, send))
        watch = asyncio.ensure_future(_left(receive, gone))
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
            await asyncio.gather(work, return_exceptions=gone.is_set())
        finally:
            watch.cancel()
            work.cancel()


async def _left(receive: Receive, gone: asyncio.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    gone.set()
