"""What aiohttp does for us: everything that takes more than a plain ``http://`` request.

Importing this module imports aiohttp, so it is imported with the first request that needs it.
"""

import io
from typing import Any, Final

import aiohttp
from yarl import URL

from nemo_gym.servers.http_errors import (
    AttemptError,
    BadAddressError,
    BadAnswerError,
    BrokenOffError,
    CannotConnectError,
    ConnectionLostError,
    ConnectTimeoutError,
    DisconnectedError,
    UntrustedError,
    describe,
)
from nemo_gym.servers.http_pool import HttpSettings
from nemo_gym.servers.http_request import USER_AGENT
from nemo_gym.servers.http_timeout import Limits

# aiohttp warns about larger bodies that are passed as bytes.
LARGE_BODY: Final = 2**20


def open_session(settings: HttpSettings) -> aiohttp.ClientSession:
    """A session for all requests of an event loop."""
    connector = aiohttp.TCPConnector(
        limit=settings.connections,
        limit_per_host=settings.connections_per_host,
        keepalive_timeout=settings.keepalive_s,
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": USER_AGENT},
        # Answers are small and mostly local: packing them costs more than it saves.
        skip_auto_headers=("Accept-Encoding",),
    )


async def send(
    session: aiohttp.ClientSession,
    method: str,
    url: str | URL,
    body: Any,
    options: dict[str, Any],
    *,
    max_bytes: int | None,
) -> aiohttp.ClientResponse:
    """Send a request and read its answer to the end; options are aiohttp's."""
    data = io.BytesIO(body) if isinstance(body, bytes) and len(body) > LARGE_BODY else body
    limits: Limits = options["timeout"]
    if not isinstance(limits, aiohttp.ClientTimeout):
        options = options | {"timeout": aiohttp.ClientTimeout(total=limits.total, sock_connect=limits.sock_connect)}
    try:
        response = await session.request(method, url, data=data, **options)
        content = await response.read()
    except aiohttp.ClientError as error:
        raise _in_our_words(error, limits) from error
    if max_bytes is not None and len(content) > max_bytes:
        raise BadAnswerError(f"more than {max_bytes} bytes")
    return response


def _in_our_words(error: aiohttp.ClientError, limits: Limits) -> Exception:  # noqa: C901, PLR0911 - one for each
    """The same error as the plain client has it. aiohttp's own words may contain the whole address."""
    match error:
        case aiohttp.ConnectionTimeoutError():
            return ConnectTimeoutError(limits.sock_connect)
        case TimeoutError():
            return TimeoutError()
        case aiohttp.ClientSSLError():
            return UntrustedError(error.os_error)
        case aiohttp.ClientConnectorError():
            return CannotConnectError(error.os_error)
        case aiohttp.InvalidURL():
            return BadAddressError(error.url, error.description)
        case aiohttp.ClientPayloadError():
            return BrokenOffError(str(error))
        case aiohttp.ClientResponseError():
            return BadAnswerError(error.message)
        case aiohttp.ServerDisconnectedError():
            return DisconnectedError()
        case aiohttp.ClientOSError():
            return ConnectionLostError(error)
        case OSError():
            return AttemptError(describe(error, limits))
        case _:
            return AttemptError(type(error).__name__)
