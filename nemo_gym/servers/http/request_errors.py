"""What can go wrong with a request, in words that can be shown.

    aiohttp.ClientError
    ├── RequestFailedError         no answer: refused, cut off, not HTTP
    │   └── RequestTimeoutError    no answer in time (also a TimeoutError)
    └── UpstreamResponseError      an answer with an error status; ``response_content`` is its body

All of them are subclasses of aiohttp's, because that is what authors of servers expect to catch. The cause of a
RequestFailedError is what happened at the last attempt. Messages name the method, the address and the number of
attempts. They never contain a query, a login or a header, where secrets live.

Importing this module imports aiohttp; use ``lazy.request_errors`` in modules that are imported at the start.
"""

import os

import aiohttp
from yarl import URL

from nemo_gym.servers.http.urls import shown


class RequestFailedError(aiohttp.ClientConnectionError):
    """No answer, after all attempts; ``reason`` is the message without the address."""

    reason: str = ""


class RequestTimeoutError(RequestFailedError, TimeoutError):
    """No answer in time."""


class UpstreamResponseError(aiohttp.ClientResponseError):
    """An answer that is an error; its body is in ``response_content``."""

    response_content: bytes = b""

    def __str__(self) -> str:
        address = shown(self.request_info.real_url)
        return f"{self.request_info.method} {address}: status {self.status} {self.message}"


class AnswerTooLargeError(aiohttp.ClientError):
    """An answer that is longer than the client takes."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the answer has more than {limit} bytes")


class RedirectRefusedError(aiohttp.ClientError):
    """A redirect to another origin, for a request that may carry keys."""

    def __init__(self, target: URL) -> None:
        super().__init__(
            f"the endpoint redirects to another origin ({shown(target)}); this is not followed, because the request "
            "carries keys. If that is the right place, make it the base URL"
        )


class ClientClosedError(aiohttp.ClientConnectionError):
    """The client was closed while it was needed."""

    def __init__(self) -> None:
        super().__init__("the client was closed")


# Nothing was sent, so another attempt does no harm.
UNSENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
# A connection that cannot be trusted stays so: asking again does not help.
UNTRUSTED = (aiohttp.ClientSSLError,)
# The server may have received the request already.
LOST = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientPayloadError)


def may_repeat(error: Exception, *, resend: bool) -> bool:
    """Whether another attempt makes sense and does no harm; a timeout took all the time there was."""
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


def describe(error: Exception, timeout: aiohttp.ClientTimeout) -> str:  # noqa: C901, PLR0911 - one for each
    """What went wrong. aiohttp's own words may contain the whole address, so they are used only where they can't."""
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
            # What follows are the server's own bytes.
            said = error.message.partition("\n")[0].partition(": b")[0].rstrip(": ")
            return f"not a valid HTTP answer: {said}"
        case aiohttp.ServerDisconnectedError():
            return "the server closed the connection without an answer"
        case OSError():
            return f"connection lost: {error.strerror or type(error).__name__}"
        case _:
            return type(error).__name__


def _os_words(error: OSError) -> str:
    """The system's words where it has any; event loops put the address there instead."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)
