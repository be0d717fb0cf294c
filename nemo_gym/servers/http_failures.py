"""The errors that callers of a request see: subclasses of aiohttp's, because that is what authors expect to catch.

Importing this module imports aiohttp, so nobody does before there is an error to raise (see ``http_errors``).

A RequestFailedError has as its cause what happened at the last attempt: what aiohttp raised, or would have raised, or
one that our own client adds to that (``BadAnswerError``, ``CannotConnectError``, ``ClientClosedError``).
"""

import aiohttp
from yarl import URL

from nemo_gym.servers import http_errors as errors


class RequestFailedError(aiohttp.ClientConnectionError):
    """No answer, after all attempts; ``reason`` is the message without the address."""

    reason: str = ""


class RequestTimeoutError(RequestFailedError, TimeoutError):
    """No answer in time."""


class UpstreamResponseError(aiohttp.ClientResponseError):
    """An answer that is an error; its body is in ``response_content``."""

    response_content: bytes = b""

    def __str__(self) -> str:
        address = errors.shown(self.request_info.real_url)
        return f"{self.request_info.method} {address}: status {self.status} {self.message}"


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


def request_error(cause: Exception, reason: str, method: str, url: str | URL, *, attempts: int) -> RequestFailedError:
    """The error to raise when there will be no further attempt."""
    kind = RequestTimeoutError if isinstance(cause, TimeoutError) else RequestFailedError
    tries = f" ({attempts} attempts)" if attempts > 1 else ""
    failure = kind(f"{method} {errors.shown(url)}: {reason}{tries}")
    failure.reason = f"{reason}{tries}"
    return failure


def cause_of(error: Exception) -> Exception:
    """What callers find as the cause of a failure, in place of an error of our own."""
    if isinstance(error.__cause__, aiohttp.ClientError):
        return error.__cause__
    if not isinstance(error, errors.AttemptError):
        return error
    cause = _as_aiohttp(error).with_traceback(error.__traceback__)
    cause.__cause__ = error.__cause__
    return cause


def _as_aiohttp(error: errors.AttemptError) -> Exception:  # noqa: PLR0911 - one for each
    match error:
        case errors.BadAddressError():
            return aiohttp.InvalidURL(error.address, error.reason)
        case errors.BadAnswerError():
            return BadAnswerError(error.message)
        case errors.BrokenOffError():
            return aiohttp.ClientPayloadError(error.message)
        case errors.CannotConnectError():
            return CannotConnectError(error.os_error)
        case errors.ConnectTimeoutError():
            return aiohttp.ConnectionTimeoutError()
        case errors.ConnectionLostError():
            return aiohttp.ClientOSError(*error.error.args)
        case errors.DisconnectedError():
            return aiohttp.ServerDisconnectedError()
        case _:
            return ClientClosedError()
