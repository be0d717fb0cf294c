"""A finished reply in the shape of ``aiohttp.ClientResponse``: the base of the replies of every transport.

A transport adds the address, the headers and the cookies. Headers and cookies are built only when they are read,
because that costs time and is rarely needed. The body is complete, so no connection is held and nothing waits. Unlike
those of aiohttp, cookies are strings, so that any client can send them.
"""

import asyncio
import codecs
import json as json_module
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from http import HTTPStatus
from http.cookies import Morsel, SimpleCookie
from types import MappingProxyType, TracebackType
from typing import Any, Self

import orjson
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from nemo_gym.servers.http.connections import aiohttp

Headers = CIMultiDictProxy[str]

# Not the ends of lines and other control characters, which the client refuses.
_NEEDS_QUOTES = re.compile(r'[^\x00-\x1f]*[ ;,"\\][^\x00-\x1f]*')


class Cookie(str):  # noqa: SLOT000 - the attributes have a default
    """The value of a cookie: a string, which any client can send.

    It has what callers expect of aiohttp's cookies, too: a ``value``, and attributes as items.
    """

    attributes: Mapping[str, str] = MappingProxyType({})  # those that arrived in a header

    @property
    def value(self) -> str:
        return str(self)

    def __getitem__(self, key: Any) -> str:
        """An attribute, such as ``path``, or a part of the string."""
        return self.attributes.get(key.lower(), "") if isinstance(key, str) else super().__getitem__(key)


def read_cookies(set_cookie: Iterable[str]) -> dict[str, Cookie]:
    """The cookies of ``Set-Cookie`` headers, including those whose values the standard class rejects."""
    cookies: dict[str, Cookie] = {}
    for header in set_cookie:
        name, _, value = (part.strip() for part in header.partition(";")[0].partition("="))
        known = SimpleCookie(header).get(name)
        if name:
            cookies[name] = Cookie(value if known is None else known.value)
        if known is not None:
            cookies[name].attributes = dict(known)
    return cookies


def cookie_values(cookies: Mapping[str, Any] | None) -> dict[str, str]:
    """Names and values, whether the caller holds strings or the morsels of another client."""
    if not cookies:
        return {}
    return {name: value.value if isinstance(value, Morsel) else value for name, value in cookies.items()}


def cookie_header(cookies: Mapping[str, str]) -> str:
    """The value of a ``Cookie`` header, with quotes around what would end a value early."""
    return "; ".join(
        f"{name}={SimpleCookie().value_encode(value)[1] if _NEEDS_QUOTES.fullmatch(value) else value}"
        for name, value in cookies.items()
    )


def read_json(content: bytes | str) -> Any:
    """Parse JSON, including numbers that only Python's parser accepts (``NaN``, integers beyond 64 bits)."""
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        # Decoded first, as aiohttp does it: the error then tells bytes that are not text from text that is not JSON.
        return json_module.loads(content.decode() if isinstance(content, bytes) else content)


class Body:
    """A complete body with the methods of aiohttp's stream."""

    def __init__(self, content: bytes) -> None:
        self._rest = content

    async def read(self, n: int = -1) -> bytes:
        return self.read_nowait(n)

    async def readline(self) -> bytes:
        return await self.readuntil(b"\n")

    async def readuntil(self, separator: bytes = b"\n") -> bytes:
        line, end, self._rest = self._rest.partition(separator)
        return line + end

    async def readexactly(self, n: int) -> bytes:
        found = await self.read(n)
        if len(found) < n:
            raise asyncio.IncompleteReadError(found, n)
        return found

    async def readany(self) -> bytes:
        return await self.read()

    async def readchunk(self) -> tuple[bytes, bool]:
        return await self.read(), True

    def read_nowait(self, n: int = -1) -> bytes:
        taken = self._rest if n < 0 else self._rest[:n]
        self._rest = self._rest[len(taken) :]
        return taken

    async def wait_eof(self) -> None:
        return

    def is_eof(self) -> bool:
        return True

    def at_eof(self) -> bool:
        return not self._rest

    async def iter_chunked(self, n: int) -> AsyncIterator[bytes]:
        while chunk := await self.read(n):
            yield chunk

    async def iter_any(self) -> AsyncIterator[bytes]:
        if chunk := await self.read():
            yield chunk

    async def iter_chunks(self) -> AsyncIterator[tuple[bytes, bool]]:
        if chunk := await self.read():
            yield chunk, True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while line := await self.readline():
            yield line


class Reply(ABC):
    """A reply with its status and body; subclasses add what depends on the transport."""

    __slots__ = ("_body", "_cookies", "_headers", "_stream", "status")

    # The transport has already followed redirects and closed the connection.
    history: tuple[()] = ()
    links: Mapping[str, Any] = MappingProxyType({})
    version = (1, 1)
    closed = True

    # Transports set these themselves: calling a constructor would cost as much as the rest of a reply.
    status: int
    _body: bytes
    _headers: Headers | None
    _cookies: dict[str, Cookie] | None
    _stream: Body

    @property
    @abstractmethod
    def method(self) -> str:
        """The method of the call."""

    @property
    @abstractmethod
    def url(self) -> URL:
        """The address that was called."""

    @abstractmethod
    def _read_headers(self) -> Iterable[tuple[str, str]]:
        """The headers of the reply, decoded."""

    def _read_cookies(self) -> dict[str, Cookie]:
        return read_cookies(self.headers.getall("Set-Cookie", ()))

    @property
    def headers(self) -> Headers:
        if self._headers is None:
            self._headers = CIMultiDictProxy(CIMultiDict(self._read_headers()))
        return self._headers

    @property
    def cookies(self) -> dict[str, Cookie]:
        """The cookies to send along with the next call."""
        if self._cookies is None:
            self._cookies = self._read_cookies()
        return self._cookies

    @property
    def ok(self) -> bool:
        """Whether the status is not an error."""
        return self.status < 400

    @property
    def reason(self) -> str:
        """The phrase that belongs to the status."""
        try:
            return HTTPStatus(self.status).phrase
        except ValueError:
            return ""

    @property
    def real_url(self) -> URL:
        """The address as the caller gave it."""
        return self.url

    @property
    def host(self) -> str | None:
        return self.url.host

    @property
    def content_type(self) -> str:
        """The media type without its parameters."""
        return self.headers.get("Content-Type", "application/octet-stream").partition(";")[0].strip().lower()

    @property
    def charset(self) -> str | None:
        """The encoding named in the content type."""
        for parameter in self.headers.get("Content-Type", "").split(";")[1:]:
            name, _, value = parameter.partition("=")
            if name.strip().lower() == "charset":
                return value.strip().strip("\"'").lower()
        return None

    def get_encoding(self) -> str:
        """The encoding of the body: UTF-8 unless the content type names another known one."""
        try:
            return codecs.lookup(self.charset or "utf-8").name
        except (LookupError, ValueError):
            return "utf-8"

    async def read(self) -> bytes:
        return self._body

    async def text(self, encoding: str | None = None, errors: str = "strict") -> str:
        return self._body.decode(encoding or self.get_encoding(), errors)

    async def json(
        self,
        *,
        encoding: str | None = None,
        loads: Callable[[Any], Any] = read_json,
        content_type: str | None = "application/json",
    ) -> Any:
        """The body parsed as JSON; None if there is no body."""
        if content_type and not self._is_of_type(content_type):
            raise aiohttp.ContentTypeError(
                self.request_info,
                (),
                status=self.status,
                message=f"Attempt to decode JSON with unexpected mimetype: {self.content_type}",
                headers=self.headers,
            )
        if not self._body or self._body.isspace():
            return None
        encoding = encoding or self.get_encoding()
        if loads is read_json and encoding == "utf-8":
            return read_json(self._body)
        return loads(self._body.decode(encoding))

    def _is_of_type(self, expected: str) -> bool:
        given = self.content_type
        if expected == "application/json":
            return given == expected or (given.startswith("application/") and given.endswith("+json"))
        return expected in self.headers.get("Content-Type", "").lower()

    @property
    def request_info(self) -> "aiohttp.RequestInfo":
        """The request, as aiohttp's exceptions expect it."""
        return aiohttp.RequestInfo(self.url, self.method, CIMultiDictProxy(CIMultiDict()), self.real_url)

    def raise_for_status(self) -> None:
        """Raise the exception that aiohttp raises for this status."""
        if not self.ok:
            raise aiohttp.ClientResponseError(
                self.request_info, (), status=self.status, message=self.reason, headers=self.headers
            )

    @property
    def content(self) -> "Body":
        """The body as a stream; always the same object, so that reading goes on where it stopped."""
        try:
            return self._stream
        except AttributeError:
            self._stream = Body(self._body)
            return self._stream

    def release(self) -> None:
        """Do nothing: a complete reply holds no connection."""
        return

    def close(self) -> None:
        """Do nothing: a complete reply holds no connection."""
        return

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def __repr__(self) -> str:
        return f"<{type(self).__name__}({self.method} {self.url}) [{self.status} {self.reason}]>"


class HttpReply(Reply):
    """A reply that came over HTTP, with its whole body."""

    __slots__ = ("_response",)

    def __init__(self, response: "aiohttp.ClientResponse", body: bytes) -> None:
        self.status = response.status
        self._body = body
        self._headers = response.headers
        self._cookies = None
        self._response = response

    @property
    def method(self) -> str:
        """The method of the request, or of the last one if redirects were followed."""
        return self._response.method

    @property
    def url(self) -> URL:
        return self._response.url

    @property
    def real_url(self) -> URL:
        return self._response.real_url

    @property
    def reason(self) -> str:
        return self._response.reason or ""

    @property
    def raw_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        return self._response.raw_headers

    @property
    def history(self) -> tuple["aiohttp.ClientResponse", ...]:  # type: ignore[override]
        return self._response.history

    @property
    def request_info(self) -> "aiohttp.RequestInfo":
        return self._response.request_info

    def take_end(self, size: int) -> bytes:
        """Remove and return the last bytes of the body; nothing if it has no more than that."""
        if not 0 < size <= len(self._body):
            return b""
        end, self._body = self._body[-size:], self._body[:-size]
        return end

    def _read_headers(self) -> Iterable[tuple[str, str]]:
        return self._response.headers.items()
