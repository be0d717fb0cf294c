"""The response that a handler fills in and the reply that its caller gets when there is no HTTP between them.

Handlers get an ordinary Starlette response, and callers a reply in the shape of ``aiohttp.ClientResponse``; neither can
tell that no bytes went through a socket. Agents set two cookies per rollout. Writing them as header text and parsing
them again would cost as much as a call between servers, so a cookie without attributes stays a name and a string. A
session gets its cookie when somebody reads the cookies of a reply.
"""

from collections.abc import Iterable, Mapping
from http.cookies import Morsel
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import Receive, Scope
from yarl import URL

from nemo_gym.servers.http.reply import Cookie, Reply, read_cookies
from nemo_gym.servers.middleware.sessions import Session, SessionCookies

RawHeaders = Iterable[tuple[bytes, bytes]]

JSON_HEADERS = ((b"content-type", b"application/json"),)


class HandlerResponse(Response):
    """An ordinary empty response with nothing set yet."""

    def __init__(self) -> None:  # Starlette's constructor would encode a body and its headers
        self.status_code = None  # type: ignore[assignment]  # FastAPI's way of saying "not set by the handler"
        self.background = None
        self.body = b""
        self.raw_headers: list[tuple[bytes, bytes]] = []
        self.plain_cookies: dict[str, str] = {}

    def set_cookie(self, key: str, value: "str | Morsel[str]" = "", *args: Any, **attributes: Any) -> None:
        """Set a cookie. One without attributes is not written as a header until the headers are read.

        Agents pass on the cookies of other clients unchanged, so the value may be a morsel.
        """
        text = value.value if isinstance(value, Morsel) else value
        if args or attributes:
            super().set_cookie(key, text, *args, **attributes)
        else:
            self.plain_cookies[key] = text

    @property
    def headers(self) -> MutableHeaders:
        """The headers, including all cookies."""
        plain, self.plain_cookies = self.plain_cookies, {}
        self.raw_headers += cookie_headers(plain)
        return super().headers


class JsonResponse(Response):
    """JSON that is already encoded, for servers that pass a reply on unchanged."""

    def __init__(self, content: bytes) -> None:  # Starlette's constructor would look for a charset and headers
        self.status_code = 200
        self.background = None
        self.body = content
        self.raw_headers = [(b"content-length", b"%d" % len(content)), *JSON_HEADERS]


def cookie_headers(cookies: Mapping[str, str] | None) -> list[tuple[bytes, bytes]]:
    """The ``Set-Cookie`` headers of cookies without attributes."""
    if not cookies:
        return []
    response = Response()
    for name, value in cookies.items():
        response.set_cookie(name, value)
    return [pair for pair in response.raw_headers if pair[0] == b"set-cookie"]


class Call:
    """One call of a handler. ``http`` is what ASGI gave if it came over HTTP.

    Its session is opened from ``cookies`` when needed; ``session_cookies`` signs and reads it, and is None for a server
    without sessions.
    """

    __slots__ = ("_session", "base_url", "body", "cookies", "http", "method", "path", "session_cookies")

    def __init__(
        self,
        method: str,
        path: str,
        body: bytes,
        cookies: dict[str, str],
        session_cookies: SessionCookies | None,
        *,
        base_url: str,
        http: tuple[Scope, Receive] | None = None,
    ) -> None:
        self.method = method
        self.path = path
        self.body = body
        self.cookies = cookies
        self.session_cookies = session_cookies
        self.base_url = base_url
        self.http = http
        self._session: Session | None = None

    @property
    def session(self) -> Session | None:
        """The session of the caller, if the server keeps sessions."""
        if self._session is None and self.session_cookies is not None:
            self._session = self.session_cookies.open(self.cookies.get(self.session_cookies.name))
        return self._session

    def session_cookie(self, ours: SessionCookies) -> str:
        """The cookie to reply with."""
        if self._session is None:  # it was never opened, so it cannot have changed
            return ours.renew(self.cookies.get(ours.name))
        return ours.seal(self._session)


class DirectReply(Reply):
    """The finished reply of a handler that was called directly. ``plain_cookies`` are not in its headers."""

    __slots__ = ("call", "plain_cookies", "raw_headers")

    def __init__(
        self,
        call: Call,
        status: int,
        body: bytes,
        headers: RawHeaders = JSON_HEADERS,
        cookies: Mapping[str, str] | None = None,
    ) -> None:
        self.status = status
        self._body = body
        self._headers = None
        self._cookies = None
        self.call = call
        self.raw_headers = headers
        self.plain_cookies = cookies

    @property
    def body(self) -> bytes:
        return self._body

    @property
    def method(self) -> str:
        return self.call.method

    @property
    def url(self) -> URL:
        """The address under which other processes call this server."""
        return URL(self.call.base_url + self.call.path)

    def _read_headers(self) -> Iterable[tuple[str, str]]:
        return [(name.decode("latin-1").title(), value.decode("latin-1")) for name, value in self.raw_headers]

    def _read_cookies(self) -> dict[str, Cookie]:
        set_cookie = [text.decode("latin-1") for name, text in self.raw_headers if name == b"set-cookie"]
        cookies = read_cookies(set_cookie) if set_cookie else {}
        if self.plain_cookies:
            cookies |= {name: Cookie(text) for name, text in self.plain_cookies.items()}
        ours = self.call.session_cookies
        if ours is not None:
            cookies[ours.name] = Cookie(self.call.session_cookie(ours))
        return cookies


class ReplyInParts(DirectReply):
    """The reply to a call over HTTP whose parts are sent as they come, by the response object of the handler."""

    __slots__ = ("response",)

    def __init__(self, call: Call, response: Response) -> None:
        super().__init__(call, response.status_code, b"")
        self.response = response
