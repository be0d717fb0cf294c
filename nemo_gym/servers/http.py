"""The one HTTP client of a process: connections per event loop, shared by everything that sends requests.

Most requests go to plain ``http://`` endpoints and need little: they are sent by our own lean client (``plain_http``).
Everything else is aiohttp's: TLS, proxies, options that only it knows. Callers can't tell which of the two it was.
aiohttp is imported with the first request that needs it (``http_session``) or with the first error to raise
(``http_failures``): that takes as long as thousands of plain requests.

Both open with the first request and are closed by whoever runs the loop (:func:`close_http_client`). Cookies are never
kept; callers pass them on. A response is always read to its end before it is returned, so an answer that breaks off
counts as a connection error, and no caller can hold a connection by forgetting to read.

Retries are bounded (see ``retry``); the error after the last one says what was tried (see ``http_errors``).
"""

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, cast
from urllib.request import getproxies_environment, proxy_bypass

import orjson
from yarl import URL

from nemo_gym.io.json import cookie_values, encode_json
from nemo_gym.servers import http_errors
from nemo_gym.servers.http_errors import AttemptError, ClientClosedError, describe, shown
from nemo_gym.servers.http_pool import HttpSettings, Pool
from nemo_gym.servers.http_request import plain_request, refuse_control_characters
from nemo_gym.servers.http_timeout import Timeout, timeout_of
from nemo_gym.servers.lazy_aiohttp import aiohttp
from nemo_gym.servers.models.gate import Door
from nemo_gym.servers.plain_http import IDEMPOTENT, REDIRECTS, PlainReply, redirect_of, unpacked
from nemo_gym.servers.retry import RetryPolicy, retry_after_seconds

logger = logging.getLogger(__name__)

# A call inside a Gym may be a whole rollout; whoever wants it to end sooner says so.
INTERNAL_TIMEOUT: Final = Timeout(total=6 * 3600, sock_connect=30)
EXTERNAL_TIMEOUT: Final = Timeout(total=600, sock_connect=30)
INTERNAL_RETRIES: Final = RetryPolicy(resend=False)
EXTERNAL_RETRIES: Final = RetryPolicy()
MAX_REDIRECTS: Final = 10


@dataclass(slots=True)
class _Client:
    pool: Pool
    session: "aiohttp.ClientSession | None" = None
    proxies: dict[str, str] = field(default_factory=getproxies_environment)


# The only state of the module: an event loop can't be asked to remember its client.
_clients: Final[dict[asyncio.AbstractEventLoop, _Client]] = {}


class Retry(NamedTuple):
    """An attempt that failed and will be repeated."""

    attempt: int
    delay_s: float
    reason: str


def get_global_aiohttp_client(settings: HttpSettings | None = None) -> "aiohttp.ClientSession":
    """The session of the running loop, opened if need be; settings count only when it opens."""
    client = _client(settings)
    if client.session is None or client.session.closed:
        from nemo_gym.servers.http_session import open_session  # noqa: PLC0415 - imports aiohttp

        client.session = open_session(client.pool.settings)
    return client.session


def _client(settings: HttpSettings | None = None) -> _Client:
    loop = asyncio.get_running_loop()
    client = _clients.get(loop)
    if client is None:
        client = _clients[loop] = _Client(Pool(loop, settings or HttpSettings()))
    return client


async def close_http_client() -> None:
    """Close the connections of the running loop, if it has any."""
    client = _clients.pop(asyncio.get_running_loop(), None)
    if client is not None:
        await client.pool.close()
        if client.session is not None:
            await client.session.close()
        # Transports close in the next round of the loop, which may be its last.
        await asyncio.sleep(0)


def _log_retry(retry: Retry) -> None:
    logger.info("attempt %d failed, trying again in %.1f s: %s", retry.attempt, retry.delay_s, retry.reason)


async def request(
    method: str,
    url: str | URL,
    *,
    _internal: bool = False,
    retries: RetryPolicy | None = None,
    on_retry: Callable[[Retry], None] = _log_retry,
    door: Door | None = None,
    **options: Any,
) -> "aiohttp.ClientResponse":
    """Send a request and read its answer, whatever the status; options are aiohttp's, ``json`` may be a model."""
    client = _client()
    policy = retries or (INTERNAL_RETRIES if _internal else EXTERNAL_RETRIES)
    timeout = options.setdefault("timeout", INTERNAL_TIMEOUT if _internal else EXTERNAL_TIMEOUT)
    if type(timeout) is not Timeout:
        timeout = options["timeout"] = timeout_of(timeout)
    body = _take_body(options)
    if client.proxies and not _internal:
        options.setdefault("proxy", _proxy(client.proxies, URL(url)))
    attempt = 1
    while True:
        try:
            send = _send if door is None or door.is_free else partial(_send_in_turn, door)
            response = await send(client, method, url, body, options, resend=policy.resend)
        except (AttemptError, OSError) as error:
            reason = describe(error, timeout)
            delay = policy.delay(attempt) if _may_repeat(error, policy) else None
            if delay is None:
                cause = http_errors.cause_of(error)
                raise http_errors.request_error(cause, reason, method, url, attempts=attempt) from cause
        else:
            if door is not None:
                door.note_answer(response)
            is_good = response.status not in policy.statuses
            if is_good or (delay := policy.delay(attempt, retry_after_s=retry_after_seconds(response.headers))) is None:
                return response
            reason = f"status {response.status}"
        on_retry(Retry(attempt, delay, f"{method} {shown(url)}: {reason}"))
        attempt += 1
        await asyncio.sleep(delay)


async def _send_in_turn(door: Door, *what: Any, resend: bool) -> "aiohttp.ClientResponse":
    """One attempt, when the gate before the endpoint lets it in."""
    await door.enter()
    try:
        return await _send(*what, resend=resend)
    finally:
        door.leave()


async def _send(
    client: _Client, method: str, url: str | URL, body: Any, options: dict[str, Any], *, resend: bool
) -> "aiohttp.ClientResponse":
    """One attempt, by the plain client if it can and by aiohttp if not."""
    plain = plain_request(method, url, body, options)
    if plain is None:
        return await _send_by_aiohttp(client, method, url, body, options)
    pool = client.pool
    answer = await pool.send(plain, body, options["timeout"], resend=resend or method in IDEMPOTENT)
    reply = PlainReply(answer, plain, unpacked(answer, pool.settings.max_answer_bytes))
    redirect = redirect_of(reply, plain) if reply.status in REDIRECTS else None
    if redirect is None:
        # Nobody can tell it from aiohttp's, and type checkers need not.
        return cast("aiohttp.ClientResponse", reply)
    body = body if redirect.with_body else None
    options = {"headers": redirect.headers, "timeout": options["timeout"], "max_redirects": MAX_REDIRECTS - 1}
    return await _send_by_aiohttp(client, redirect.method, redirect.url, body, options)


async def _send_by_aiohttp(
    client: _Client, method: str, url: str | URL, body: Any, options: dict[str, Any]
) -> "aiohttp.ClientResponse":
    refuse_control_characters(url)
    if client.pool.closed:
        raise ClientClosedError
    from nemo_gym.servers.http_session import send  # noqa: PLC0415 - imports aiohttp

    session, limit = get_global_aiohttp_client(), client.pool.settings.max_answer_bytes
    return await send(session, method, url, body, options, max_bytes=limit)


def _take_body(options: dict[str, Any]) -> Any:
    """Take body and cookies out of the options; both are encoded once, not once an attempt."""
    headers = options.get("headers") or {}
    cookies = options.pop("cookies", None)
    if cookies:
        # aiohttp would build a cookie jar for every request.
        pairs = cookie_values(cookies)
        headers = {**headers, "Cookie": "; ".join(f"{name}={value}" for name, value in pairs.items())}
    content = options.pop("json", None)
    if content is None:
        options["headers"] = headers
        return options.pop("data", None)
    options["headers"] = {"Content-Type": "application/json", **headers}
    return encode_json(content)


def _proxy(proxies: Mapping[str, str], url: URL) -> str | None:
    """The proxy that the environment asks for, but never for this machine."""
    host = url.host or ""
    if host == "localhost" or host.startswith("127.") or host == "::1" or proxy_bypass(host):
        return None
    return proxies.get(url.scheme) or proxies.get("all")


def _may_repeat(error: AttemptError | OSError, policy: RetryPolicy) -> bool:
    """Whether another attempt makes sense and does no harm; a timeout took all the time there was."""
    return isinstance(error, AttemptError) and (error.unsent or (error.lost and policy.resend))


async def raise_for_status(response: Any) -> None:
    """Raise if the answer is an error; the exception has the body as ``response_content``."""
    if response.ok:
        return
    error = http_errors.UpstreamResponseError(
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
    """The body as JSON, from anything that looks like a response."""
    reading = response.read()
    content = await reading if inspect.isawaitable(reading) else None
    if isinstance(content, bytes | str):
        return orjson.loads(content)
    # Stand-ins in tests often have only json().
    return await response.json()
