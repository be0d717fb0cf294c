"""What can go wrong with a request, in words that can be shown.

    aiohttp.ClientError
    ├── RequestFailedError         no answer: refused, cut off, not HTTP
    │   └── RequestTimeoutError    no answer in time (also a TimeoutError)
    └── UpstreamResponseError      an answer with an error status; ``response_content`` is its body

A RequestFailedError has as its cause what happened at the last attempt: an error of aiohttp, or one that our own client
adds to them (``BadAnswerError``, ``CannotConnectError``, ``ClientClosedError``).

Messages name the method, the address and the number of attempts. They never contain a query, a user or a header,
where secrets live.
"""

import os

import aiohttp
from yarl import URL


class RequestFailedError(aiohttp.ClientConnectionError):
    """No answer, after all attempts; ``reason`` is the message without the address."""

    reason: str = ""


class RequestTimeoutError(RequestFailedError, TimeoutError):
    """No answer in time."""


class BadAnswerError(aiohttp.ClientError):
    """What came is not an answer that can be read."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ClientClosedError(aiohttp.ClientConnectionError):
    """The client was closed while it was needed."""


class CannotConnectError(aiohttp.ClientOSError):
    """No connection, so nothing was sent; ``os_error`` says why."""

    def __init__(self, os_error: OSError) -> None:
        super().__init__(os_error.errno, os_error.strerror)
        self.os_error = os_error


class UpstreamResponseError(aiohttp.ClientResponseError):
    """An answer that is an error; its body is in ``response_content``."""

    response_content: bytes = b""

    def __str__(self) -> str:
        return f"{self.request_info.method} {shown(self.request_info.real_url)}: status {self.status} {self.message}"


def request_error(
    error: Exception, method: str, url: str | URL, *, attempts: int, timeout: aiohttp.ClientTimeout
) -> RequestFailedError:
    """The error to raise when there will be no further attempt."""
    kind = RequestTimeoutError if isinstance(error, TimeoutError) else RequestFailedError
    tries = f" ({attempts} attempts)" if attempts > 1 else ""
    reason = f"{describe(error, timeout)}{tries}"
    failure = kind(f"{method} {shown(url)}: {reason}")
    failure.reason = reason
    return failure


def describe(error: Exception, timeout: aiohttp.ClientTimeout) -> str:
    """What went wrong. aiohttp's own words are used only where they can't contain the whole address."""
    words = type(error).__name__
    match error:
        case aiohttp.ConnectionTimeoutError():
            words = f"no connection within {timeout.sock_connect:g} s" if timeout.sock_connect else "no connection"
        case TimeoutError():
            words = f"no answer within {timeout.total:g} s" if timeout.total else "no answer in time"
        case aiohttp.ClientConnectorError() | CannotConnectError():
            words = f"cannot connect: {_os_words(error.os_error)}"
        case aiohttp.InvalidURL():
            words = "not a valid address"
        case aiohttp.ClientPayloadError():
            words = "the answer broke off"
        case aiohttp.ClientResponseError() | BadAnswerError():
            words = f"not a valid HTTP answer: {error.message}"
        case ClientClosedError():
            words = "the client was closed"
        case aiohttp.ServerDisconnectedError():
            words = "the server closed the connection without an answer"
        case OSError():
            words = f"connection lost: {error.strerror or words}"
    return words


def _os_words(error: OSError) -> str:
    """The system's words where it has any; event loops put the address there instead."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)


def shown(url: str | URL) -> str:
    """An address that can be shown."""
    try:
        return str(URL(url).with_user(None).with_query(None).with_fragment(None))
    except ValueError:
        return "(unreadable address)"
