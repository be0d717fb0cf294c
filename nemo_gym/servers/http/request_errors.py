"""The errors of requests, with messages that are safe to show.

    aiohttp.ClientError
    ├── RequestFailedError         no reply: refused, cut off, not HTTP
    │   └── RequestTimeoutError    no reply in time (also a TimeoutError)
    └── UpstreamResponseError      a reply with an error status; ``response_content`` is its body
        └── PermanentEndpointError that every further request would get too

All of them are subclasses of aiohttp's errors, because those are what authors of servers expect to catch. The cause of
a RequestFailedError is the error of the last attempt. Messages name the method, the address and the number of attempts.
They never contain a query, a login or a header, because these may hold secrets.

Importing this module imports aiohttp; use ``connections.request_errors`` in modules that are imported at start-up.
"""

import os
import ssl

import aiohttp
from yarl import URL

from nemo_gym.servers.http.urls import shown


class RequestFailedError(aiohttp.ClientConnectionError):
    """There was no reply after all attempts; ``reason`` is the message without the address."""

    reason: str = ""
    is_silent: bool = False  # nothing at all came back, and not because a reply takes long
    is_too_large: bool = False  # there was a reply, longer than the client accepts


class RequestTimeoutError(RequestFailedError, TimeoutError):
    """There was no reply in time."""


class UpstreamResponseError(aiohttp.ClientResponseError):
    """The reply has an error status; its body is in ``response_content``."""

    response_content: bytes = b""

    def __str__(self) -> str:
        # Whoever replied may have been a stand-in that knows neither its address nor its method.
        address, method = getattr(self.request_info, "real_url", None), getattr(self.request_info, "method", None)
        place = [part for part in (method, shown(address) if isinstance(address, str | URL) else None) if part]
        return f"{' '.join(map(str, place)) or 'reply'}: status {self.status} {self.message}"


class PermanentEndpointError(UpstreamResponseError):
    """The endpoint will refuse every further request too: the key is not valid, or the account has nothing left."""


class ReplyTooLargeError(aiohttp.ClientError):
    """The reply is longer than the client accepts."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the reply has more than {limit} bytes")


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


# How OpenSSL's releases name a server that replies to a handshake with something else.
NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")
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
    reason = failure_text(cause, timeout) + (f" ({attempts} attempts)" if attempts > 1 else "")
    failure = kind(f"{method} {shown(url)}: {reason}")
    failure.reason = reason
    failure.is_too_large = isinstance(cause, ReplyTooLargeError)
    has_begun = isinstance(cause, aiohttp.ClientPayloadError | ReplyTooLargeError | ClientClosedError)
    failure.is_silent = isinstance(cause, UNSENT) or not (has_begun or isinstance(cause, TimeoutError))
    return failure


def failure_text(error: Exception, timeout: aiohttp.ClientTimeout) -> str:  # noqa: C901, PLR0911, PLR0912 - by case
    """Say what went wrong. aiohttp's messages may contain the whole address, so only those that can't are used."""
    match error:
        case ReplyTooLargeError() | RedirectRefusedError() | ClientClosedError():
            return str(error)
        case aiohttp.ConnectionTimeoutError():
            seconds = timeout.sock_connect or timeout.connect
            return f"no connection within {seconds:g} s" if seconds else "no connection"
        case TimeoutError():
            return f"no reply within {timeout.total:g} s" if timeout.total else "no reply in time"
        case aiohttp.ClientConnectorCertificateError():
            reason = getattr(error.certificate_error, "verify_message", "") or "it is not valid"
            return f"the certificate of the server is not trusted: {reason}"
        case aiohttp.ClientConnectorError() if getattr(error.os_error, "reason", "") in NOT_TLS:
            return "the server does not speak TLS; if it serves plain HTTP, write http:// and not https://"
        case aiohttp.ClientConnectorError():
            return f"cannot connect: {_os_message(error.os_error)}"
        case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
            return "not a valid address"
        case aiohttp.ClientPayloadError():
            return "the reply broke off"
        case aiohttp.TooManyRedirects():
            return "too many redirects"
        case aiohttp.ClientResponseError():
            # The rest of the message quotes the server's own bytes.
            quoted = error.message.partition("\n")[0].partition(": b")[0].rstrip(": ")
            return f"not a valid HTTP reply: {quoted}"
        case aiohttp.ServerDisconnectedError():
            return "the server closed the connection without a reply"
        case OSError():
            return f"connection lost: {error.strerror or type(error).__name__}"
        case _:
            return type(error).__name__


def _os_message(error: OSError) -> str:
    """The system's own message for the error number; event loops put the address into ``strerror``."""
    if isinstance(error, ssl.SSLError):  # its numbers are not those of the system
        return f"TLS failed ({(error.reason or 'no reason given').replace('_', ' ').lower()})"
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)
