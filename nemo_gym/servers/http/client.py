"""Sends requests: retries, the gate before an endpoint, deadlines, redirects. aiohttp does the rest.

:func:`request` reads a reply to its end before returning it, so a reply that breaks off counts as a connection error,
and no caller can hold a connection by forgetting to read. :func:`stream` is for bodies that are read as they arrive.
Both take the options of aiohttp and these:

    _internal     the call stays inside a Gym: no proxy, more time, and no resending of what may have arrived
    retries       how often to try again, and after which failures (``RetryPolicy``)
    on_retry      called before every further attempt
    gate          the gate that limits requests to an endpoint
    is_final      whether a reply with a status that is worth another attempt is not worth one, given its body
    same_origin   do not follow redirects to another scheme, host or port: the request may hold keys in its headers

Retries are bounded; the error after the last one says what was tried (``request_errors``). A cancelled request closes
its connection, so that the server can stop working on the reply.
"""

import asyncio
import inspect
import io
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from time import perf_counter
from types import EllipsisType
from typing import Any, Final, NamedTuple

import orjson
from multidict import CIMultiDict
from yarl import URL

from nemo_gym.io.json import encode_json
from nemo_gym.servers.http.connections import aiohttp, loop_client, request_errors
from nemo_gym.servers.http.deadlines import not_counted
from nemo_gym.servers.http.gate import RoleGate
from nemo_gym.servers.http.reply import HttpReply, cookie_header, cookie_values
from nemo_gym.servers.http.reply_bodies import read_reply
from nemo_gym.servers.http.retry import RetryPolicy, retry_after_seconds, retry_patience_s
from nemo_gym.servers.http.urls import REDIRECTS, checked, proxy_for, redirect_target, shown
from nemo_gym.steps.recording import note_retry, note_wait

logger = logging.getLogger(__name__)

# Requests that have the same effect however often they arrive.
IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
MAX_REDIRECTS: Final = 10
# aiohttp warns about larger bodies that are passed as bytes.
LARGE_BODY: Final = 2**20
# The headers that are not sent to another origin than they were meant for. Not all releases of aiohttp know them all.
SECRETS: Final = ("Authorization", "Cookie", "Proxy-Authorization")


class Timeout(NamedTuple):
    """Limits in seconds (None: no limit). It stands for aiohttp's class in modules that must not import aiohttp."""

    total: float | None = None
    sock_connect: float | None = None


# A call inside a Gym may be a whole rollout; callers that want it to end sooner pass their own timeout.
INTERNAL_TIMEOUT: Final = Timeout(total=6 * 3600, sock_connect=30)
EXTERNAL_TIMEOUT: Final = Timeout(total=600, sock_connect=30)
INTERNAL_RETRIES: Final = RetryPolicy(resend=False)
EXTERNAL_RETRIES: Final = RetryPolicy()


class Retry(NamedTuple):
    """An attempt that failed and will be repeated."""

    attempt: int
    delay_s: float
    reason: str


def _log_retry(retry: Retry) -> None:
    logger.info("attempt %d failed, trying again in %.1f s: %s", retry.attempt, retry.delay_s, retry.reason)


class RequestSettings:
    """The options of requests. Worked out once by callers that send many requests with the same options."""

    __slots__ = (
        *("follows", "gate", "internal", "is_final", "on_retry", "options", "policy", "same_origin", "timeout"),
        "whole_options",
    )

    def __init__(
        self,
        *,
        _internal: bool = False,
        retries: RetryPolicy | None = None,
        on_retry: Callable[[Retry], None] = _log_retry,
        gate: RoleGate | None = None,
        is_final: Callable[[int, Mapping[str, str], bytes], bool] | None = None,
        same_origin: bool = False,
        allow_redirects: bool = True,
        timeout: "float | Timeout | aiohttp.ClientTimeout | EllipsisType | None" = ...,
        **options: Any,
    ) -> None:
        self.internal = _internal
        self.policy = retries or (INTERNAL_RETRIES if _internal else EXTERNAL_RETRIES)
        self.on_retry = on_retry
        self.gate = gate
        self.is_final = is_final
        self.same_origin = same_origin
        if timeout is ...:
            timeout = INTERNAL_TIMEOUT if _internal else EXTERNAL_TIMEOUT
        self.timeout, without_total = _limits(timeout)
        self.follows = allow_redirects
        options["allow_redirects"] = False  # we look first where they lead
        # For aiohttp. The limit on a whole request is enforced here, which is cheaper.
        self.options = {**options, "timeout": self.timeout}
        self.whole_options = {**options, "timeout": without_total}


async def request(method: str, url: str | URL, *, settings: RequestSettings | None = None, **options: Any) -> HttpReply:
    """Send a request and read its reply, whatever its status. ``json`` may be a pydantic model.

    Settings take the place of all options but the body, cookies and further ``headers``.
    """
    body = _take_body(options)
    headers = options.get("headers") if settings is not None else None
    call = _Call(method, url, body, settings or RequestSettings(**options), headers)
    reply: HttpReply = await call.repeat(call.read_once)
    return reply


@asynccontextmanager
async def stream(
    method: str, url: str | URL, *, settings: RequestSettings | None = None, **options: Any
) -> AsyncIterator["HttpReply | aiohttp.ClientResponse"]:
    """Send a request and stream its reply: ``async for chunk in reply.content.iter_any()``.

    Only failures before the body are retried. Leaving the block before the end of the body closes the connection.
    """
    body = _take_body(options)
    headers = options.get("headers") if settings is not None else None
    call = _Call(method, url, body, settings or RequestSettings(**options), headers)
    response: HttpReply | aiohttp.ClientResponse = await call.repeat(call.open_once)
    try:
        yield response
    except aiohttp.ClientError as error:
        if isinstance(error, request_errors.RequestFailedError):  # raised by another request inside the block
            raise
        raise call.failure(error, attempts=1) from error
    finally:
        response.close()
        call.leave()


class _Call:
    """A request and everything that its attempts share."""

    __slots__ = ("body", "client", "gate", "headers", "inside", "method", "settings", "url")

    def __init__(
        self, method: str, url: str | URL, body: Any, settings: RequestSettings, headers: Mapping[str, str] | None
    ) -> None:
        self.method, self.url, self.body = method, url, body
        self.settings = settings
        self.headers = headers  # besides those of the settings
        self.gate = settings.gate
        self.inside = False
        self.client = loop_client()

    async def repeat(self, attempt_once: Callable[[], Awaitable[Any]]) -> Any:
        """The first reply that the policy accepts, or the last one; raise if there is none."""
        attempt, failing_since = 1, 0.0
        while True:
            try:
                response = await attempt_once()
            except (aiohttp.ClientError, OSError) as raised:
                error, failing_since = self._closed_or(raised), failing_since or perf_counter()
                delay = self.settings.policy.delay_without_reply(attempt) if self._may_repeat(error) else None
                delay = _within_patience(delay, failing_since, self.settings.policy.silent_s)
                if delay is None:
                    raise self.failure(error, attempts=attempt) from error
                reason, failed = request_errors.failure_text(error, self.settings.timeout), type(error).__name__
            else:
                if response.status in self.settings.policy.statuses and await self._is_final(response):
                    return response
                if self.gate is not None:
                    self.gate.note_reply(response)
                failing_since = failing_since or perf_counter()
                delay = _within_patience(self._delay_after(response, attempt), failing_since)
                if delay is None:
                    return response
                response.close()
                self.leave()
                reason, failed = f"status {response.status}", str(response.status)
            self.settings.on_retry(Retry(attempt, delay, f"{self.method} {shown(self.url)}: {reason}"))
            note_retry(failed, delay)
            attempt += 1
            with not_counted():
                await asyncio.sleep(delay)

    def failure(self, error: Exception, *, attempts: int) -> "request_errors.RequestFailedError":
        """The error to raise when there will be no further attempt."""
        return request_errors.request_error(error, self.settings.timeout, self.method, self.url, attempts=attempts)

    def leave(self) -> None:
        """Give up the place behind the gate."""
        if self.inside and self.gate is not None:
            self.inside = False
            self.gate.leave()

    def _may_repeat(self, error: Exception) -> bool:
        return request_errors.may_repeat(error, resend=self.settings.policy.resend or self.method in IDEMPOTENT)

    def _delay_after(self, response: "HttpReply | aiohttp.ClientResponse", attempt: int) -> float | None:
        if response.status not in self.settings.policy.statuses:
            return None
        return self.settings.policy.delay(attempt, retry_after_s=retry_after_seconds(response.headers))

    async def _is_final(self, response: "HttpReply | aiohttp.ClientResponse") -> bool:
        is_final = self.settings.is_final
        return is_final is not None and is_final(response.status, response.headers, await response.read())

    def _closed_or(self, error: Exception) -> Exception:
        """The error, or ClientClosedError if the client was closed meanwhile, whatever the request saw of that."""
        session = self.client.session
        return request_errors.ClientClosedError() if session is not None and session.closed else error

    async def read_once(self) -> HttpReply:
        """Make one attempt and read the reply."""
        if self.gate is not None and not self.gate.is_free:
            await self._enter(self.gate)
        try:
            with self.client.deadlines.within(self.settings.timeout.total or None):
                response = await self._send(self.settings.whole_options)
                return await read_reply(response, internal=self.settings.internal)
        finally:
            self.leave()

    async def open_once(self) -> "HttpReply | aiohttp.ClientResponse":
        """Make one attempt, and hold the place behind the gate until ``leave``. Errors are read to the end."""
        if self.gate is not None and not self.gate.is_free:
            await self._enter(self.gate)
        try:
            response = await self._send(self.settings.options)
            return response if response.ok else await read_reply(response, internal=self.settings.internal)
        except BaseException:
            self.leave()
            raise

    async def _enter(self, gate: RoleGate) -> None:
        since = perf_counter()
        with not_counted():
            await gate.enter()
        self.inside = True
        note_wait(since, "gate")

    async def _send(self, options: dict[str, Any]) -> "aiohttp.ClientResponse":
        """Send the request and follow redirects."""
        try:
            url = checked(self.url)
        except ValueError as error:
            raise aiohttp.InvalidURL(self.url, str(error)) from error
        if self.headers:
            options = {**options, "headers": CIMultiDict(options.get("headers") or ())}
            options["headers"].update(self.headers)
        if self.client.proxies and not self.settings.internal:
            options = {"proxy": proxy_for(url, self.client.proxies), **options}
        response = await self.client.open_session().request(self.method, url, data=_payload(self.body), **options)
        if response.status in REDIRECTS and self.settings.follows:
            return await self._follow(response, options)
        return response

    async def _follow(self, response: "aiohttp.ClientResponse", options: dict[str, Any]) -> "aiohttp.ClientResponse":
        """Follow redirects as aiohttp does it. Those to another origin are refused, or lose what must not go there."""
        method, body = self.method, self.body
        history: list[aiohttp.ClientResponse] = []
        while response.status in REDIRECTS and (target := _target_of(response)) is not None:
            if target.origin() != response.url.origin():
                options = self._leave_origin(target, response, options)
            response.release()
            history.append(response)
            if len(history) > MAX_REDIRECTS:
                raise aiohttp.TooManyRedirects(history[0].request_info, tuple(history))
            if response.status == 303 or (response.status in (301, 302) and method == "POST"):
                method, body = "GET", None
            response = await self.client.open_session().request(method, target, data=_payload(body), **options)
        return response

    def _leave_origin(self, target: URL, response: "aiohttp.ClientResponse", options: dict[str, Any]) -> dict[str, Any]:
        if self.settings.same_origin:
            response.close()
            raise request_errors.RedirectRefusedError(target)
        headers = CIMultiDict(options.get("headers") or ())
        for name in SECRETS:
            headers.popall(name, None)
        return {**options, "headers": headers}


def _within_patience(delay: float | None, failing_since: float, most_s: float = float("inf")) -> float | None:
    """The delay before the next attempt; None if there is none, or if nobody waits that long."""
    patience = retry_patience_s.get()
    if delay is None or perf_counter() + delay - failing_since > (
        most_s if patience is None else min(most_s, patience)
    ):
        return None
    return delay


def _take_body(options: dict[str, Any]) -> Any:
    """Take body and cookies out of the options, so that both are encoded once and not at every attempt."""
    if "cookies" not in options and "json" not in options:
        return options.pop("data", None)
    headers = options.get("headers") or {}
    cookies = options.pop("cookies", None)
    if cookies:
        # Given cookies, aiohttp would build a cookie jar for every request.
        headers = {**headers, "Cookie": cookie_header(cookie_values(cookies))}
    content = options.pop("json", None)
    if content is None:
        options["headers"] = headers
        return options.pop("data", None)
    options["headers"] = {"Content-Type": "application/json", **headers}
    return encode_json(content)


def _payload(body: Any) -> Any:
    """The body as aiohttp wants it."""
    return io.BytesIO(body) if isinstance(body, bytes) and len(body) > LARGE_BODY else body


def _target_of(response: "aiohttp.ClientResponse") -> URL | None:
    """Where a redirect leads."""
    try:
        target = redirect_target(response.url, response.headers)
        if target is not None:
            target.origin()
    except ValueError as error:
        raise aiohttp.InvalidUrlRedirectClientError(response.headers["Location"]) from error
    return target


@lru_cache(maxsize=64)
def as_aiohttp(timeout: "float | Timeout | aiohttp.ClientTimeout | None") -> "aiohttp.ClientTimeout":
    """Convert a caller's timeout: seconds for the whole request, or separate limits."""
    if isinstance(timeout, Timeout):
        return aiohttp.ClientTimeout(total=timeout.total, sock_connect=timeout.sock_connect)
    return aiohttp.ClientTimeout(total=timeout) if timeout is None or isinstance(timeout, int | float) else timeout


@lru_cache(maxsize=64)
def _limits(
    timeout: "float | Timeout | aiohttp.ClientTimeout | None",
) -> "tuple[aiohttp.ClientTimeout, aiohttp.ClientTimeout]":
    """The caller's limits, and the part of them for aiohttp if we enforce the limit on the whole request ourselves."""
    whole = as_aiohttp(timeout)
    parts = {name: getattr(whole, name) for name in ("connect", "sock_connect", "sock_read", "ceil_threshold")}
    return whole, aiohttp.ClientTimeout(total=None, **parts)


def total_seconds(timeout: "float | Timeout | aiohttp.ClientTimeout | None") -> float | None:
    """The time that a request may take in total."""
    return timeout if timeout is None or isinstance(timeout, int | float) else timeout.total


async def raise_for_status(response: Any) -> None:
    """Raise if the reply is an error; the exception holds the body in ``response_content``."""
    status = response.status
    if response.ok if hasattr(response, "ok") else status < 400:
        return
    error = request_errors.UpstreamResponseError(
        getattr(response, "request_info", None),  # type: ignore[arg-type]
        (),
        status=status,
        message=str(getattr(response, "reason", None) or ""),
        headers=getattr(response, "headers", None),
    )
    content = response.read() if hasattr(response, "read") else b""
    content = await content if inspect.isawaitable(content) else content
    error.response_content = content.encode() if isinstance(content, str) else content
    raise error


async def get_response_json(response: Any) -> Any:
    """The body as JSON, from any object that looks like a response."""
    reading = response.read()
    content = await reading if inspect.isawaitable(reading) else None
    if isinstance(content, bytes | str):
        return orjson.loads(content)
    # Stand-ins in tests often have only json().
    return await response.json()
