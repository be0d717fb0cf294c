"""Sends requests: retries, the gate before an endpoint, deadlines, redirects. aiohttp does the rest.

:func:`request` reads an answer to its end before returning it, so an answer that breaks off counts as a connection
error, and no caller can hold a connection by forgetting to read. :func:`stream` is for bodies that are read as they
arrive. Both take the options of aiohttp and these:

    _internal     the call stays inside a Gym: no proxy, more time, and no resending of what may have arrived
    retries       how often to try again, and after which failures (``RetryPolicy``)
    on_retry      called before every further attempt
    gate          the gate that limits requests to an endpoint
    same_origin   do not follow redirects to another scheme, host or port: the request may hold keys in its headers
    reused        the settings are for many requests, so prepare what these have in common (default: ``same_origin``)

Retries are bounded; the error after the last one says what was tried (``request_errors``). A cancelled request closes
its connection, so that the server can stop working on the answer.
"""

import asyncio
import inspect
import io
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from time import perf_counter
from types import EllipsisType
from typing import Any, Final, NamedTuple

import orjson
from multidict import CIMultiDict
from yarl import URL

from nemo_gym.io.json import encode_json
from nemo_gym.servers.http.connections import aiohttp, knows_aiohttp, loop_client, request_errors
from nemo_gym.servers.http.posting import LONGEST_BODY, Postings, read_whole
from nemo_gym.servers.http.reply import Body, cookie_header, cookie_values
from nemo_gym.servers.http.retry import RetryPolicy, retry_after_seconds
from nemo_gym.servers.http.urls import REDIRECTS, checked, proxy_for, redirect_target, shown
from nemo_gym.servers.models.gate import RoleGate
from nemo_gym.steps.recording import note_retry, note_wait

logger = logging.getLogger(__name__)

# Requests that have the same effect however often they arrive.
IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
MAX_REDIRECTS: Final = 10
# aiohttp warns about larger bodies that are passed as bytes.
LARGE_BODY: Final = 2**20
# The headers that are not sent to another origin than they were meant for.
SECRETS: Final = ("Authorization", "Cookie", "Proxy-Authorization")
# The options of requests that can be posted without aiohttp's request object.
POSTED: Final = frozenset({"headers", "allow_redirects"})


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
        *("gate", "internal", "on_retry", "options", "policy", "postings", "same_origin", "timeout"),
        "without_total",
    )

    def __init__(
        self,
        *,
        _internal: bool = False,
        retries: RetryPolicy | None = None,
        on_retry: Callable[[Retry], None] = _log_retry,
        gate: RoleGate | None = None,
        same_origin: bool = False,
        reused: bool | None = None,
        timeout: "float | Timeout | aiohttp.ClientTimeout | EllipsisType | None" = ...,
        **options: Any,
    ) -> None:
        self.internal = _internal
        self.policy = retries or (INTERNAL_RETRIES if _internal else EXTERNAL_RETRIES)
        self.on_retry = on_retry
        self.gate = gate
        self.same_origin = same_origin
        if timeout is ...:
            timeout = INTERNAL_TIMEOUT if _internal else EXTERNAL_TIMEOUT
        self.timeout, self.without_total = _limits(timeout)
        if same_origin:
            options["allow_redirects"] = False  # we look first where they lead
        self.options = options  # for aiohttp
        can_post = (same_origin if reused is None else reused) and options.keys() <= POSTED and knows_aiohttp()
        self.postings = Postings(options.get("headers"), self.without_total) if can_post else None


async def request(
    method: str, url: str | URL, *, settings: RequestSettings | None = None, **options: Any
) -> "aiohttp.ClientResponse":
    """Send a request and read its answer, whatever its status. ``json`` may be a pydantic model.

    Settings take the place of all options but the body, cookies and further ``headers``.
    """
    body = _take_body(options)
    headers = options.get("headers") if settings is not None else None
    return await _Call(method, url, body, settings or RequestSettings(**options), headers, whole=True).send()


@asynccontextmanager
async def stream(
    method: str, url: str | URL, *, settings: RequestSettings | None = None, **options: Any
) -> AsyncIterator["aiohttp.ClientResponse"]:
    """Send a request and stream its answer: ``async for chunk in answer.content.iter_any()``.

    Only failures before the body are retried. Leaving the block before the end of the body closes the connection.
    """
    body = _take_body(options)
    headers = options.get("headers") if settings is not None else None
    call = _Call(method, url, body, settings or RequestSettings(**options), headers, whole=False)
    response = await call.send()
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

    __slots__ = ("body", "client", "gate", "headers", "inside", "method", "proxy", "settings", "url", "whole")

    def __init__(
        self,
        method: str,
        url: str | URL,
        body: Any,
        settings: RequestSettings,
        headers: Mapping[str, str] | None,
        *,
        whole: bool,
    ) -> None:
        self.method, self.url, self.body = method, url, body
        self.settings = settings
        self.headers = headers  # besides those of the settings
        self.gate = settings.gate
        self.inside = False
        # Whether the body is read before the answer is returned.
        self.whole = whole
        self.client = loop_client()
        self.proxy = proxy_for(URL(url), self.client.proxies) if self.client.proxies and not settings.internal else None

    async def send(self) -> "aiohttp.ClientResponse":
        """Return the first answer that the policy accepts, or the last one; raise if there is no answer."""
        attempt = 1
        while True:
            try:
                response = await self._attempt()
            except (aiohttp.ClientError, OSError) as raised:
                error = self._closed_or(raised)
                delay = self.settings.policy.delay(attempt) if self._may_repeat(error) else None
                if delay is None:
                    raise self.failure(error, attempts=attempt) from error
                reason, failed = request_errors.describe(error, self.settings.timeout), type(error).__name__
            else:
                if self.gate is not None:
                    self.gate.note_answer(response)
                delay = self._delay_after(response, attempt)
                if delay is None:
                    return response
                response.close()
                self.leave()
                reason, failed = f"status {response.status}", str(response.status)
            self.settings.on_retry(Retry(attempt, delay, f"{self.method} {shown(self.url)}: {reason}"))
            note_retry(failed, delay)
            attempt += 1
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

    def _delay_after(self, response: "aiohttp.ClientResponse", attempt: int) -> float | None:
        if response.status not in self.settings.policy.statuses:
            return None
        return self.settings.policy.delay(attempt, retry_after_s=retry_after_seconds(response.headers))

    def _closed_or(self, error: Exception) -> Exception:
        """The error, or ClientClosedError if the client was closed meanwhile, whatever the request saw of that."""
        session = self.client.session
        return request_errors.ClientClosedError() if session is not None and session.closed else error

    async def _attempt(self) -> "aiohttp.ClientResponse":
        """Make one attempt once the gate before the endpoint lets it in."""
        if self.gate is not None and not self.gate.is_free:
            since = perf_counter()
            await self.gate.enter()
            self.inside = True
            note_wait(since, "gate")
        try:
            if not self.whole:
                return await self._send()
            with self.client.deadlines.within(self.settings.timeout.total or None):
                posted = await self._post()
                response = posted if posted and posted.status not in REDIRECTS else await self._send(posted)
                if response is not posted:
                    await read_to_end(response)
            self.leave()
        except BaseException:
            self.leave()
            raise
        return response

    async def _post(self) -> Any:
        """The whole answer, without aiohttp's request object; None if the request must be sent the ordinary way."""
        postings, body, headers = self.settings.postings, self.body, self.headers
        if postings is None or self.proxy or self.method != "POST" or type(body) is not bytes:
            return None
        if len(body) > LONGEST_BODY or (headers and not postings.can_add(headers)):
            return None
        posting = postings.find(self.url, self.client.open_session())
        return await posting.send(body, headers, max_bytes=self.client.settings.max_answer_bytes) if posting else None

    def _options(self) -> dict[str, Any]:
        """The options for aiohttp."""
        settings = self.settings
        # A limit on the whole request is enforced here and not by aiohttp, if the whole request happens here.
        options = {"proxy": self.proxy, **settings.options}
        options["timeout"] = settings.without_total if self.whole else settings.timeout
        if self.headers:
            options["headers"] = CIMultiDict(settings.options.get("headers") or ())
            options["headers"].update(self.headers)
        return options

    async def _send(self, posted: Any = None) -> "aiohttp.ClientResponse":
        """Send the request and follow redirects; ``posted`` is the first answer, if there is one already."""
        try:
            url = checked(self.url)
        except ValueError as error:
            raise aiohttp.InvalidURL(self.url, str(error)) from error
        session, options = self.client.open_session(), self._options()
        method, body = self.method, self.body
        history: list[aiohttp.ClientResponse] = []
        while len(history) <= MAX_REDIRECTS:
            response = posted or await session.request(method, url, data=_payload(body), **options)
            is_ours = posted is not None or self.settings.same_origin  # to follow; aiohttp has followed others
            posted = None
            target = _target_of(response) if is_ours and response.status in REDIRECTS else None
            if target is None:
                return response
            if target.origin() != response.url.origin():
                self._leave_origin(target, response, options)
            response.release()
            history.append(response)
            url = target
            if response.status == 303 or (response.status in (301, 302) and method == "POST"):
                method, body = "GET", None
        raise aiohttp.TooManyRedirects(history[0].request_info, tuple(history))

    def _leave_origin(self, target: URL, response: "aiohttp.ClientResponse", options: dict[str, Any]) -> None:
        """Refuse to follow a redirect to another origin, or leave out what must not go there, as aiohttp does."""
        if self.settings.same_origin:
            response.close()
            raise request_errors.RedirectRefusedError(target)
        options["headers"] = CIMultiDict(options.get("headers") or ())
        for name in SECRETS:
            options["headers"].popall(name, None)


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
    """The body as aiohttp wants it. Bytes are wrapped here, because looking up how to wrap them takes as long."""
    if not body or not isinstance(body, bytes):
        return body
    return aiohttp.BytesPayload(body) if len(body) <= LARGE_BODY else io.BytesIO(body)


def _target_of(response: "aiohttp.ClientResponse") -> URL | None:
    """Where a redirect leads."""
    try:
        target = redirect_target(response.url, response.headers)
        if target is not None:
            target.origin()
    except ValueError as error:
        raise aiohttp.InvalidUrlRedirectClientError(response.headers["Location"]) from error
    return target


async def read_to_end(response: "aiohttp.ClientResponse") -> None:
    """Read the whole body into the response; refuse one that is too long."""
    try:
        body = await read_whole(response.content, loop_client().settings.max_answer_bytes)
    except BaseException:
        response.close()
        raise
    response._body = body  # noqa: SLF001 - like read(), which has no limit
    response.content = Body(body)  # type: ignore[assignment]  # some agents read the stream, which is used up


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
    asked = as_aiohttp(timeout)
    parts = {name: getattr(asked, name) for name in ("connect", "sock_connect", "sock_read", "ceil_threshold")}
    return asked, aiohttp.ClientTimeout(total=None, **parts)


def total_seconds(timeout: "float | Timeout | aiohttp.ClientTimeout | None") -> float | None:
    """The time that a request may take in total."""
    return timeout if timeout is None or isinstance(timeout, int | float) else timeout.total


async def raise_for_status(response: Any) -> None:
    """Raise if the answer is an error; the exception holds the body in ``response_content``."""
    if response.ok:
        return
    error = request_errors.UpstreamResponseError(
        response.request_info,
        (),
        status=response.status,
        message=response.reason or "",
        headers=response.headers,
    )
    content = await response.read()
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
