"""Posts JSON to addresses that are used over and over, such as those of a model or of a server of the Gym.

Connections, TLS, limits and the parser are aiohttp's. Only its request object is left out, which costs as much as all
of these: address and most headers are the same every time, so they are written once (:class:`Posting`). Requests that
need more (proxies, logins in the address, headers that change how a body is sent, very long bodies) are sent the
ordinary way. This uses parts of aiohttp that are not documented, so only versions that it was tested with are used like
that (``session.knows_aiohttp``).
"""

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from multidict import CIMultiDict
from yarl import URL

from nemo_gym.servers.http.connections import aiohttp, request_class, request_errors
from nemo_gym.servers.http.reply import Reply
from nemo_gym.servers.http.urls import checked

if TYPE_CHECKING:
    from aiohttp.connector import Connection
    from aiohttp.http_parser import RawResponseMessage

# Shorter bodies are copied behind their headers, and sent in one piece.
SHORT_BODY: Final = 2**16
LONGEST_BODY: Final = 2**20
MOST_ADDRESSES: Final = 64
_LINE_END: Final = re.compile(r"[\r\n\0]")
# Headers about the connection or the form of the body, which only aiohttp knows how to honour.
_SPECIAL: Final = frozenset(
    {"connection", "content-encoding", "content-length", "expect", "host", "te", "trailer", "transfer-encoding"}
    | {"upgrade"}
)


class PostReply(Reply):
    """The whole answer to a request."""

    __slots__ = ("_url", "raw_headers", "reason")

    def __init__(self, url: URL, message: "RawResponseMessage", body: bytes) -> None:
        self.status = message.code
        self._body = body
        self._headers = message.headers
        self._cookies = None
        self._url = url
        self.reason = message.reason  # type: ignore[misc]  # here it is what the server says
        self.raw_headers = message.raw_headers

    @property
    def method(self) -> str:
        """The method of the request."""
        return "POST"

    @property
    def url(self) -> URL:
        """The address that was called."""
        return self._url

    def _read_headers(self) -> Iterable[tuple[str, str]]:
        return self.headers.items()


class Posting:
    """Requests to one address, with the same headers and limits."""

    __slots__ = ("_connector", "_head", "_limits", "_request", "_url", "session")

    def __init__(
        self,
        session: "aiohttp.ClientSession",
        url: URL,
        headers: CIMultiDict[str],
        limits: "aiohttp.ClientTimeout",
    ) -> None:
        assert session.connector is not None
        self.session = session
        self._connector = session.connector
        self._url = url.with_fragment(None)
        self._limits = limits
        # aiohttp makes the headers and knows to which connections the request may be sent. It is never sent itself.
        self._request = request_class()("POST", url, headers=headers, loop=asyncio.get_running_loop(), session=session)
        fixed = {name: value for name, value in self._request.headers.items() if name.lower() != "content-length"}
        self._head = f"POST {url.raw_path_qs} HTTP/1.1\r\n{_lines(fixed)}".encode()

    async def send(self, body: bytes, headers: Mapping[str, str] | None = None, *, max_bytes: int) -> PostReply:
        """Send a body, with further headers, and read the whole answer; raises the errors of aiohttp."""
        try:
            connection = await self._connector.connect(self._request, traces=[], timeout=self._limits)
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError(f"Connection timeout to host {self._url}") from error
        try:
            more = _lines(headers).encode() if headers else b""
            reply = await self._exchange(connection, more, body, max_bytes)
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError) and not isinstance(error, aiohttp.ClientError | TimeoutError):
                raise aiohttp.ClientOSError(*error.args) from error
            raise
        return reply

    async def _exchange(self, connection: "Connection", more: bytes, body: bytes, max_bytes: int) -> PostReply:
        protocol = connection.protocol
        assert protocol is not None
        protocol.set_response_params(read_until_eof=True)
        transport = protocol.transport
        if transport is None or transport.is_closing():
            raise aiohttp.ServerDisconnectedError
        head = b"%b%bContent-Length: %d\r\n\r\n" % (self._head, more, len(body))
        if len(body) < SHORT_BODY:
            transport.write(head + body)
        else:
            transport.writelines((head, body))
        try:
            message, payload = await protocol.read()
            while 100 <= message.code < 200 and message.code != 101:
                message, payload = await protocol.read()
        except aiohttp.http.HttpProcessingError as error:
            info = aiohttp.RequestInfo(self._url, "POST", self._request.headers, self._url)  # type: ignore[arg-type]
            raise aiohttp.ClientResponseError(
                info, (), status=error.code, message=error.message, headers=error.headers
            ) from error
        content = await read_whole(payload, max_bytes)
        if transport.get_write_buffer_size() or protocol.upgraded:
            connection.close()  # the server did not wait for the body, so its rest must not become another request
        else:
            connection.release()
        return PostReply(self._url, message, content)


class Postings:
    """The prepared requests of one set of headers and limits: a ``Posting`` for each address."""

    def __init__(self, headers: Mapping[str, str] | None, limits: "aiohttp.ClientTimeout") -> None:
        self._headers = CIMultiDict(headers or ())
        self._limits = limits
        self._prepared: dict[str | URL, Posting] = {}

    def find(self, url: str | URL, session: "aiohttp.ClientSession") -> Posting | None:
        """The ``Posting`` for an address; None if requests to it have to be sent the ordinary way."""
        posting = self._prepared.get(url)
        if posting is not None and posting.session is session:
            return posting
        try:
            address = checked(url)
        except ValueError:
            return None  # the ordinary way says what is wrong
        if not self._can_send(address):
            return None
        if len(self._prepared) >= MOST_ADDRESSES:
            self._prepared.clear()
        posting = self._prepared[url] = Posting(session, address, self._headers, self._limits)
        return posting

    def can_add(self, headers: Mapping[str, str]) -> bool:
        """Whether a request may have these headers besides those that it has anyway."""
        return _are_plain(headers) and not any(name in self._headers for name in headers)

    def _can_send(self, url: URL) -> bool:
        if url.scheme not in ("http", "https") or url.raw_user is not None or url.raw_password is not None:
            return False
        return self._limits.sock_read is None and _are_plain(self._headers)


def _are_plain(headers: Mapping[str, str]) -> bool:
    """Whether headers can be written as they are."""
    return not any(
        name.lower() in _SPECIAL or type(text) is not str or _LINE_END.search(name) or _LINE_END.search(text)
        for name, text in headers.items()
    )


def _lines(headers: Mapping[str, str]) -> str:
    return "".join([f"{name}: {text}\r\n" for name, text in headers.items()])


async def read_whole(content: Any, max_bytes: int) -> bytes:
    """The rest of a stream; refuses one that is too long."""
    parts: list[bytes] = []
    size = 0
    # Most answers are here as a whole by now, so this is cheaper than an async generator.
    while True:
        parts.append(await content.readany())
        size += len(parts[-1])
        if size > max_bytes:
            raise request_errors.AnswerTooLargeError(max_bytes)
        if content.at_eof():
            return parts[0] if len(parts) == 1 else b"".join(parts)
