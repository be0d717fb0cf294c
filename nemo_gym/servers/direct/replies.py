"""The response that a handler fills in and the reply that its caller gets when there is no HTTP between them.

Handlers get an ordinary Starlette response, and callers an answer in the shape of ``aiohttp.ClientResponse``; neither
can tell that no bytes went through a socket. Agents set two plain cookies per rollout. Writing them as header text and
parsing them again would cost as much as a call between servers, so a plain cookie stays a name and a value until the
headers are read. Most servers never look at their sessions, so a new session is not signed before somebody reads the
value of its cookie; callers that send the cookie back do not.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from http.cookies import Morsel, SimpleCookie
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import Receive, Scope
from yarl import URL

from nemo_gym.servers.http.reply import PlainMorsel, Reply, read_cookies
from nemo_gym.servers.sessions import NewSession, Session, SessionCookies

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

        Agents pass on ``reply.cookies.items()`` unchanged, so the value may be a morsel.
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
    """JSON that is already encoded, for servers that pass an answer on unchanged."""

    def __init__(self, content: bytes) -> None:  # Starlette's constructor would look for a charset and headers
        self.status_code = 200
        self.background = None
        self.body = content
        self.raw_headers = [(b"content-length", b"%d" % len(content)), *JSON_HEADERS]

    @property
    def is_untouched(self) -> bool:
        """Whether no header or cookie has been added."""
        return len(self.raw_headers) == 1 + len(JSON_HEADERS)


def cookie_headers(cookies: Mapping[str, str] | None) -> list[tuple[bytes, bytes]]:
    """The ``Set-Cookie`` headers of plain cookies."""
    if not cookies:
        return []
    response = Response()
    for name, value in cookies.items():
        response.set_cookie(name, value)
    return [pair for pair in response.raw_headers if pair[0] == b"set-cookie"]


class SessionMorsel(PlainMorsel):
    """The cookie of a new session, which is signed when its value is read."""

    _session: NewSession | None = None  # until another value is set

    def __init__(self, name: str, session: NewSession) -> None:
        self._key, self._session = name, session

    # The attributes in which the standard class stores its value. They can still be set.
    @cached_property
    def _value(self) -> str:  # type: ignore[override]
        return self._session.cookie() if self._session is not None else ""

    @cached_property
    def _coded_value(self) -> str:  # type: ignore[override]
        return self._value

    def set(self, key: str, val: str, coded_val: str) -> None:
        """Give the cookie another value."""
        super().set(key, val, coded_val)
        self._session = None

    def copy(self) -> Morsel[str]:
        """A copy with the same value."""
        return PlainMorsel(self.key, self.value)

    def to_send(self) -> str | NewSession:
        """What another call in this process gets."""
        return self._session or self._value


SentCookies = Mapping[str, str | NewSession]


def sent_cookies(cookies: Mapping[str, Any] | None) -> SentCookies:
    """Names and values of the cookies of a call, whether the caller holds strings or the morsels of earlier answers."""
    if not cookies:
        return {}
    return {
        name: cookie.to_send() if type(cookie) is SessionMorsel else getattr(cookie, "value", cookie)
        for name, cookie in cookies.items()
    }


RawHeaders = Iterable[tuple[bytes, bytes]]


@dataclass(slots=True)  # which is made faster than a tuple with names
class DirectAnswer:
    """A handler's result as it would be sent over HTTP."""

    status: int
    body: bytes
    headers: RawHeaders = JSON_HEADERS
    cookies: Mapping[str, str] | None = None


class Call:
    """One call of a handler. ``http`` is what ASGI gave if it came over HTTP. Its session is opened when needed."""

    __slots__ = ("_sent", "_session", "body", "http", "method", "path", "session_cookies")

    def __init__(
        self,
        method: str,
        path: str,
        body: bytes,
        cookies: SentCookies,
        session_cookies: SessionCookies | None,
        *,
        http: tuple[Scope, Receive] | None = None,
    ) -> None:
        self.method = method
        self.path = path
        self.body = body
        self.session_cookies = session_cookies
        self.http = http
        self._sent = cookies
        self._session: Session | None = None

    @property
    def cookies(self) -> dict[str, str]:
        """The cookies that the caller sent, in a new dictionary each time."""
        return {
            name: cookie.cookie() if isinstance(cookie, NewSession) else cookie for name, cookie in self._sent.items()
        }

    @property
    def session(self) -> Session | None:
        """The session of the caller, if the server keeps sessions."""
        if self._session is None and self.session_cookies is not None:
            self._session = self.session_cookies.open(self._sent_session(self.session_cookies.name))
        return self._session

    def session_cookie(self) -> str | None:
        """The cookie to answer with, if the server keeps sessions."""
        if self.session_cookies is None:
            return None
        if self._session is None:  # it was never opened, so it cannot have changed
            return self.session_cookies.renew(self._sent_session(self.session_cookies.name))
        return self.session_cookies.seal(self._session)

    def session_morsel(self, ours: SessionCookies) -> PlainMorsel:
        """The same for a caller in this process; a new session that nobody has opened stays unsigned."""
        sent = self._sent.get(ours.name)
        if self._session is None and (sent is None or (isinstance(sent, NewSession) and sent.is_of(ours))):
            return SessionMorsel(ours.name, sent or NewSession(ours))
        return PlainMorsel(ours.name, self.session_cookie() or "")

    def _sent_session(self, name: str) -> str | None:
        sent = self._sent.get(name)
        return sent.cookie() if isinstance(sent, NewSession) else sent


class DirectReply(Reply):
    """A finished answer of a handler that was called directly."""

    __slots__ = ("_base_url", "answer", "call")

    def __init__(self, answer: DirectAnswer, call: Call, base_url: str) -> None:
        self.status = answer.status
        self._body = answer.body
        self._headers = None
        self._cookies = None
        self.answer = answer
        self.call = call
        self._base_url = base_url

    @property
    def method(self) -> str:
        """The method of the call."""
        return self.call.method

    @property
    def url(self) -> URL:
        """The address under which other processes call this server."""
        return URL(self._base_url + self.call.path)

    def _read_headers(self) -> Iterable[tuple[str, str]]:
        return [(name.decode("latin-1").title(), value.decode("latin-1")) for name, value in self.answer.headers]

    def _read_cookies(self) -> SimpleCookie:
        answer, call = self.answer, self.call
        cookies = SimpleCookie()
        if answer.headers is not JSON_HEADERS:
            cookies = read_cookies(text.decode("latin-1") for name, text in answer.headers if name == b"set-cookie")
        if answer.cookies:
            for key, text in answer.cookies.items():
                dict.__setitem__(cookies, key, PlainMorsel(key, text))
        if call.session_cookies is not None:
            dict.__setitem__(cookies, call.session_cookies.name, call.session_morsel(call.session_cookies))
        return cookies
