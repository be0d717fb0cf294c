"""The errors of requests, with messages that are safe to show.

    aiohttp.ClientError
    ├── RequestFailedError         no answer: refused, cut off, not HTTP
    │   └── RequestTimeoutError    no answer in time (also a TimeoutError)
    └── UpstreamResponseError      an answer with an error status; ``response_content`` is its body

All of them are subclasses of aiohttp's errors, because those are what authors of servers expect to catch. The cause of
a RequestFailedError is the error of the last attempt. Messages name the method, the address and the number of attempts.
They never contain a query, a login or a header, because these may hold secrets.

Importing this module imports aiohttp; use ``connections.request_errors`` in modules that are imported at start-up.
"""

import os

import aiohttp
from yarl import URL

from nemo_gym.servers.http.urls import shown


class RequestFailedError(aiohttp.ClientConnectionError):
    """There was no answer after all attempts; ``reason`` is the message without the address."""

    reason: str = ""


class RequestTimeoutError(RequestFailedError, TimeoutError):
    """There was no answer in time."""


class UpstreamResponseError(aiohttp.ClientResponseError):
    """The answer has an error status; its body is in ``response_content``."""

    response_content: bytes = b""

    def __str__(self) -> str:
        address = shown(self.request_info.real_url)
        return f"{self.request_info.method} {address}: status {self.status} {self.message}"


class AnswerTooLargeError(aiohttp.ClientError):
    """The answer is longer than the client accepts."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the answer has more than {limit} bytes")


class RedirectRefusedError(aiohttp.ClientError):
    """A request that may hold keys was redirected to another origin."""

    def __init__(self, target: URL) -> None:
        super().__init__(
            f"the endpoint redirects to another origin ({shown(target)}), which is not followed, because the request "
            "contains keys. If that is the right address, make it the base URL"
        )


class ClientClosedError(aiohttp.ClientConnectionError):
    """The client was closed while a request was using it."""

    def __init__(self) -> None:
        super().__init__("the client was closed")


# Nothing was sent, so another attempt is harmless.
UNSENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
# A certificate that is not trusted will not be trusted at the next attempt either.
UNTRUSTED = (aiohttp.ClientSSLError,)
# The server may have received the request already.
LOST = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientPayloadError)


def may_repeat(error: Exception, *, resend: bool) -> bool:
    """Whether another attempt makes sense and is harmless. After a timeout there is no time left for one."""
    if isinstance(error, UNSENT):
        return not isinstance(error, UNTRUSTED)
    return resend and isinstance(error, LOST) and not isinstance(error, TimeoutError | ClientClosedError)


def request_error(
    cause: Exception, timeout: aiohttp.ClientTimeout, method: str, url: str | URL, *, attempts: int
) -> RequestFailedError:
    """The error to raise when there will be no further attempt."""
    kind = RequestTimeoutError if isinstance(cause, TimeoutError) else RequestFailedError
    reason = describe(cause, timeout) + (f" ({attempts} attempts)" if attempts > 1 else "")
    failure = kind(f"{method} {shown(url)}: {reason}")
    failure.reason = reason
    return failure


def describe(error: Exception, timeout: aiohttp.ClientTimeout) -> str:  # noqa: C901, PLR0911 - one case for each error
    """Say what went wrong. aiohttp's messages may contain the whole address, so only those that can't are used."""
    match error:
        case AnswerTooLargeError() | RedirectRefusedError() | ClientClosedError():
            return str(error)
        case aiohttp.ConnectionTimeoutError():
            seconds = timeout.sock_connect or timeout.connect
            return f"no connection within {seconds:g} s" if seconds else "no connection"
        case TimeoutError():
            return f"no answer within {timeout.total:g} s" if timeout.total else "no answer in time"
        case aiohttp.ClientConnectorError():
            return f"cannot connect: {_os_words(error.os_error)}"
        case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
            return "not a valid address"
        case aiohttp.ClientPayloadError():
            return "the answer broke off"
        case aiohttp.TooManyRedirects():
            return "too many redirects"
        case aiohttp.ClientResponseError():
            # The rest of the message quotes the server's own bytes.
            said = error.message.partition("\n")[0].partition(": b")[0].rstrip(": ")
            return f"not a valid HTTP answer: {said}"
        case aiohttp.ServerDisconnectedError():
            return "the server closed the connection without an answer"
        case OSError():
            return f"connection lost: {error.strerror or type(error).__name__}"
        case _:
            return type(error).__name__


def _os_words(error: OSError) -> str:
    """The system's own message for the error number; event loops put the address into ``strerror``."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)
