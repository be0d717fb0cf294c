"""The answer of a server in the same process, in the shape of ``aiohttp.ClientResponse``.

Callers can't tell the two apart: same attributes, same exceptions (see ``reply``). Headers and cookies are made when
they are asked for.
"""

from collections.abc import Iterable, Mapping
from http.cookies import SimpleCookie
from typing import NamedTuple

from starlette.types import Scope
from yarl import URL

from nemo_gym.servers.reply import PlainMorsel, Reply, read_cookies
from nemo_gym.servers.responses import JSON_HEADERS
from nemo_gym.servers.sessions import Session, SessionCookies

RawHeaders = Iterable[tuple[bytes, bytes]]


class Answer(NamedTuple):
    """What a handler's result amounts to on the wire."""

    status: int
    body: bytes
    headers: RawHeaders = JSON_HEADERS
    cookies: Mapping[str, str] | None = None


class Call:
    """One call of a handler; ``http`` is the scope of one that came over HTTP. Its session is opened when needed."""

    __slots__ = ("_session", "body", "cookies", "http", "method", "path", "seals")

    def __init__(
        self,
        method: str,
        path: str,
        body: bytes,
        cookies: Mapping[str, str],
        seals: SessionCookies | None,
        *,
        http: Scope | None = None,
    ) -> None:
        self.method = method
        self.path = path
        self.body = body
        self.cookies = cookies
        self.seals = seals
        self.http = http
        self._session: Session | None = None

    @property
    def session(self) -> Session | None:
        """The session of the caller, if the server keeps sessions."""
        if self._session is None and self.seals is not None:
            self._session = self.seals.open(self.cookies.get(self.seals.name))
        return self._session

    def session_cookie(self) -> str | None:
        """The cookie to answer with, if the server keeps sessions."""
        if self.seals is None:
            return None
        given = self.cookies.get(self.seals.name)
        if self._session is None and self.seals.is_ours(given):
            return given  # nobody looked at the session, so nobody changed it
        return self.seals.seal(self.session or {})


class DirectReply(Reply):
    """A finished answer of a handler that was called directly."""

    __slots__ = ("_answer", "_base_url", "_call")

    def __init__(self, answer: Answer, call: Call, base_url: str) -> None:
        self.status = answer.status
        self._body = answer.body
        self._headers = None
        self._cookies = None
        self._answer = answer
        self._call = call
        self._base_url = base_url

    @property
    def method(self) -> str:
        """The method of the call."""
        return self._call.method

    @property
    def url(self) -> URL:
        """The address this server has for callers in other processes."""
        return URL(self._base_url + self._call.path)

    def _read_headers(self) -> Iterable[tuple[str, str]]:
        return [(name.decode("latin-1").title(), value.decode("latin-1")) for name, value in self._answer.headers]

    def _read_cookies(self) -> SimpleCookie:
        headers = self._answer.headers
        set_cookie = () if headers is JSON_HEADERS else [text for name, text in headers if name == b"set-cookie"]
        cookies = read_cookies(text.decode("latin-1") for text in set_cookie) if set_cookie else SimpleCookie()
        for key, text in (self._answer.cookies or {}).items():
            dict.__setitem__(cookies, key, PlainMorsel(key, text))
        sealed = self._call.session_cookie()
        if sealed is not None and self._call.seals is not None:
            name = self._call.seals.name
            dict.__setitem__(cookies, name, PlainMorsel(name, sealed))
        return cookies
