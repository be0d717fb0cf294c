"""The answer of a server in the same process, in the shape of ``aiohttp.ClientResponse``.

Callers can't tell the two apart: same attributes, same exceptions. Everything that costs time and is rarely looked at
(headers, cookies) is made when it is asked for.
"""

from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from http.cookies import Morsel, SimpleCookie
from types import TracebackType
from typing import Any, NamedTuple, Self

import aiohttp
import orjson
from multidict import CIMultiDict, CIMultiDictProxy
from starlette.types import Scope
from yarl import URL

from nemo_gym.servers.sessions import Session, SessionCookies

RawHeaders = Iterable[tuple[bytes, bytes]]
JSON_HEADERS = ((b"content-type", b"application/json"),)


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


class PlainMorsel(Morsel[str]):
    """A cookie that is only a name and a value; the standard class spends most of its time on attributes it lacks."""

    def __init__(self, name: str, value: str) -> None:
        self._key, self._value, self._coded_value = name, value, value

    def __missing__(self, attribute: str) -> str:
        return ""


class DirectReply:
    """A finished answer: status, body, headers and cookies."""

    __slots__ = ("_answer", "_base_url", "_call", "_cookies", "status")

    def __init__(self, answer: Answer, call: Call, base_url: str) -> None:
        self.status = answer.status
        self._answer = answer
        self._call = call
        self._base_url = base_url
        self._cookies: SimpleCookie | None = None

    @property
    def method(self) -> str:
        """The method of the call."""
        return self._call.method

    @property
    def ok(self) -> bool:
        """True unless the status tells of an error."""
        return self.status < 400

    @property
    def reason(self) -> str:
        """The words that go with the status."""
        try:
            return HTTPStatus(self.status).phrase
        except ValueError:
            return ""

    @property
    def url(self) -> URL:
        """The address this server has for callers in other processes."""
        return URL(self._base_url + self._call.path)

    @property
    def real_url(self) -> URL:
        """The same as ``url``: nothing in between can redirect."""
        return self.url

    @property
    def headers(self) -> "CIMultiDictProxy[str]":
        """The headers of the answer."""
        pairs = [(name.decode("latin-1").title(), value.decode("latin-1")) for name, value in self._answer.headers]
        return CIMultiDictProxy(CIMultiDict(pairs))

    @property
    def cookies(self) -> SimpleCookie:
        """The cookies to send along with the next call."""
        if self._cookies is None:
            self._cookies = SimpleCookie()
            for header, value in self._answer.headers:
                if header == b"set-cookie":
                    self._cookies.load(value.decode("latin-1"))
            for key, text in (self._answer.cookies or {}).items():
                dict.__setitem__(self._cookies, key, PlainMorsel(key, text))
            sealed = self._call.session_cookie()
            if sealed is not None and self._call.seals is not None:
                name = self._call.seals.name
                dict.__setitem__(self._cookies, name, PlainMorsel(name, sealed))
        return self._cookies

    @property
    def content_type(self) -> str:
        """The media type without its parameters."""
        return self.headers.get("Content-Type", "application/octet-stream").split(";")[0].strip()

    async def read(self) -> bytes:
        """The whole body."""
        return self._answer.body

    async def text(self, encoding: str | None = None, errors: str = "strict") -> str:
        """The body as text."""
        return self._answer.body.decode(encoding or "utf-8", errors)

    async def json(
        self,
        *,
        encoding: str | None = None,
        loads: Callable[[Any], Any] = orjson.loads,
        content_type: str | None = "application/json",
    ) -> Any:
        """The body parsed as JSON."""
        if content_type and content_type not in self.content_type:
            raise aiohttp.ContentTypeError(
                self.request_info,
                (),
                status=self.status,
                message=f"not JSON: {self.content_type}",
                headers=self.headers,
            )
        return loads(self._answer.body if encoding is None else self._answer.body.decode(encoding))

    @property
    def request_info(self) -> aiohttp.RequestInfo:
        """What was asked for, as aiohttp's exceptions want it."""
        return aiohttp.RequestInfo(self.url, self.method, CIMultiDictProxy(CIMultiDict()), self.url)

    def raise_for_status(self) -> None:
        """Raise the exception that aiohttp raises for this status."""
        if not self.ok:
            raise aiohttp.ClientResponseError(
                self.request_info, (), status=self.status, message=self.reason, headers=self.headers
            )

    def release(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def __repr__(self) -> str:
        return f"<DirectReply({self.method} {self.url}) [{self.status} {self.reason}]>"
