"""Response objects without what a call between servers does not need.

Agents set two plain cookies per rollout. Writing them as header text and reading them back would cost as much as a call
between servers, so a plain cookie stays a name and a value until somebody wants the headers.
"""

from collections.abc import Mapping
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.responses import Response

JSON_HEADERS = ((b"content-type", b"application/json"),)


class HandlerResponse(Response):
    """An ordinary response, empty, with nothing decided yet."""

    def __init__(self) -> None:  # not Starlette's, which encodes a body and its headers
        self.status_code = None  # type: ignore[assignment]  # FastAPI's way of saying "not set by the handler"
        self.background = None
        self.body = b""
        self.raw_headers: list[tuple[bytes, bytes]] = []
        self.plain_cookies: dict[str, str] = {}

    def set_cookie(self, key: str, value: str = "", *args: Any, **attributes: Any) -> None:
        """Set a cookie; one without attributes of its own is written only when the headers are."""
        if args or attributes:
            super().set_cookie(key, value, *args, **attributes)
        else:
            self.plain_cookies[key] = value

    @property
    def headers(self) -> MutableHeaders:
        """The headers, with all cookies written."""
        plain, self.plain_cookies = self.plain_cookies, {}
        self.raw_headers += cookie_headers(plain)
        return super().headers


class JsonResponse(Response):
    """JSON that is already written: what a server passes on as it came."""

    def __init__(self, content: bytes) -> None:  # not Starlette's, which looks for a charset and existing headers
        self.status_code = 200
        self.background = None
        self.body = content
        self.raw_headers = [(b"content-length", b"%d" % len(content)), *JSON_HEADERS]

    @property
    def is_untouched(self) -> bool:
        """True if nobody has added a header or a cookie since."""
        return len(self.raw_headers) == 1 + len(JSON_HEADERS)


def cookie_headers(cookies: Mapping[str, str] | None) -> list[tuple[bytes, bytes]]:
    """The ``Set-Cookie`` headers of plain cookies."""
    response = Response()
    for name, value in (cookies or {}).items():
        response.set_cookie(name, value)
    return [pair for pair in response.raw_headers if pair[0] == b"set-cookie"]
