"""What can go wrong with a request, in words that can be shown.

Callers see errors of aiohttp, whichever client they used:

    aiohttp.ClientError
    ├── RequestFailedError         no answer: refused, cut off, not HTTP
    │   └── RequestTimeoutError    no answer in time (also a TimeoutError)
    └── UpstreamResponseError      an answer with an error status; ``response_content`` is its body

They are made by ``http_failures``, which imports aiohttp, and can be had from here by asking for them: written as
``except http_errors.RequestFailedError``, nothing is imported before something was raised.

Below that, an attempt fails with an ``AttemptError`` or with an error of the system, whoever sent it.

Messages name the method, the address and the number of attempts. They never contain a query, a user or a header,
where secrets live.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from yarl import URL

from nemo_gym.servers.http_timeout import Limits

__all__ = [
    "AttemptError",
    "BadAddressError",
    "BadAnswerError",
    "BrokenOffError",
    "CannotConnectError",
    "ClientClosedError",
    "ConnectTimeoutError",
    "ConnectionLostError",
    "DisconnectedError",
    "RequestFailedError",
    "RequestTimeoutError",
    "UntrustedError",
    "UpstreamResponseError",
    "cause_of",
    "describe",
    "os_words",
    "request_error",
    "shown",
]

if TYPE_CHECKING:
    from nemo_gym.servers.http_failures import (
        RequestFailedError,
        RequestTimeoutError,
        UpstreamResponseError,
        cause_of,
        request_error,
    )
else:

    def __getattr__(name: str) -> Any:
        if name in __all__:  # and not found: it is one of those that need aiohttp
            return getattr(import_module("nemo_gym.servers.http_failures"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class AttemptError(Exception):
    """One attempt failed; the text says how, without the address."""

    # Nothing was sent, so another attempt does no harm.
    unsent = False
    # Another attempt may help, but the server may have received the request already.
    lost = False


class BadAddressError(AttemptError):
    """An address that can't be used."""

    def __init__(self, address: str | URL, reason: str | None = None) -> None:
        super().__init__("not a valid address")
        self.address = address
        self.reason = reason


class BadAnswerError(AttemptError):
    """What came is not an answer that can be read."""

    def __init__(self, message: str) -> None:
        super().__init__(f"not a valid HTTP answer: {message}")
        self.message = message


class BrokenOffError(AttemptError):
    """Not all of the answer came, or not all of it can be unpacked."""

    lost = True

    def __init__(self, message: str) -> None:
        super().__init__("the answer broke off")
        self.message = message


class CannotConnectError(AttemptError):
    """No connection; ``os_error`` says why."""

    unsent = True

    def __init__(self, os_error: OSError) -> None:
        super().__init__(f"cannot connect: {os_words(os_error)}")
        self.os_error = os_error


class UntrustedError(CannotConnectError):
    """No connection that could be trusted, which another attempt would not change."""

    unsent = False


class ConnectTimeoutError(AttemptError):
    """No connection in time."""

    unsent = True

    def __init__(self, seconds: float | None) -> None:
        super().__init__(f"no connection within {seconds:g} s" if seconds else "no connection")


class ConnectionLostError(AttemptError):
    """The connection ended with an error before an answer began."""

    lost = True

    def __init__(self, error: Exception) -> None:
        # Without words of the system, the name under which callers find it as the cause.
        super().__init__(f"connection lost: {getattr(error, 'strerror', None) or 'ClientOSError'}")
        self.error = error


class DisconnectedError(AttemptError):
    """The server closed the connection before an answer began."""

    lost = True

    def __init__(self) -> None:
        super().__init__("the server closed the connection without an answer")


class ClientClosedError(AttemptError):
    """The client was closed while it was needed."""

    def __init__(self) -> None:
        super().__init__("the client was closed")


def describe(error: AttemptError | OSError, limits: Limits) -> str:
    """What went wrong."""
    match error:
        case AttemptError():
            return str(error)
        case TimeoutError():
            return f"no answer within {limits.total:g} s" if limits.total else "no answer in time"
        case _:
            return f"connection lost: {error.strerror or type(error).__name__}"


def os_words(error: OSError) -> str:
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
