"""The client for plain ``http://``: what most calls need and no more, at a fifth of aiohttp's cost.

The parts: ``http_request`` (what is sent), ``http_connection`` and ``http_answer`` (one exchange), ``http_pool``
(connections kept open), ``http_connect`` (new ones). This module turns what came into an answer that looks like
aiohttp's. It never asks for a packed answer; one that is packed all the same is unpacked.
"""

import zlib
from collections.abc import Iterable
from typing import Final, NamedTuple

from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from nemo_gym.servers.http_answer import RawAnswer
from nemo_gym.servers.http_errors import BadAddressError, BadAnswerError, BrokenOffError
from nemo_gym.servers.http_request import Template
from nemo_gym.servers.lazy_aiohttp import aiohttp
from nemo_gym.servers.reply import Reply

# Requests that do the same however often they arrive.
IDEMPOTENT: Final = frozenset({"GET", "OPTIONS", "PUT", "DELETE"})
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
CREDENTIALS: Final = frozenset({"authorization", "cookie", "proxy-authorization"})
PACKED: Final = frozenset({b"gzip", b"deflate", b"br", b"zstd"})


class PlainReply(Reply):
    """The answer to a plain request."""

    __slots__ = ("_raw", "_request")

    def __init__(self, raw: RawAnswer, request: Template, body: bytes) -> None:
        self.status = raw.status
        self._body = body
        self._headers = None
        self._cookies = None
        self._raw = raw
        self._request = request

    @property
    def method(self) -> str:
        """The method of the request."""
        return self._request.method

    @property
    def url(self) -> URL:
        """The address of the request."""
        return self.real_url.with_fragment(None)

    @property
    def real_url(self) -> URL:
        """The address of the request as it was given."""
        return URL(self._request.url)

    @property
    def reason(self) -> str:
        """The words that came with the status."""
        return self._raw.reason.decode("utf-8", "surrogateescape")

    @property
    def raw_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """The headers as they came."""
        return tuple(self._raw.headers)

    @property
    def request_info(self) -> "aiohttp.RequestInfo":
        """What was asked for, as aiohttp's exceptions want it."""
        headers = CIMultiDictProxy(CIMultiDict(self._request.headers))
        return aiohttp.RequestInfo(self.url, self.method, headers, self.real_url)

    def _read_headers(self) -> Iterable[tuple[str, str]]:
        return [
            (name.decode("utf-8", "surrogateescape"), value.rstrip(b" \t").decode("utf-8", "surrogateescape"))
            for name, value in self._raw.headers
        ]


class Redirect(NamedTuple):
    """Where an answer sends its caller, and with what."""

    method: str
    url: URL
    headers: dict[str, str]
    with_body: bool


def redirect_of(reply: PlainReply, request: Template) -> Redirect | None:
    """What to ask next if the answer is a redirect, by the rules of browsers and aiohttp."""
    location = reply.headers.get("Location") or reply.headers.get("URI")
    if reply.status not in REDIRECTS or not location:
        return None
    try:
        url = reply.url.join(URL(location))
        same_origin = url.origin() == reply.url.origin()
    except ValueError as error:
        raise BadAddressError(location) from error
    turns_to_get = reply.status == 303 or (reply.status in (301, 302) and request.method == "POST")
    headers = {name: value for name, value in request.headers if same_origin or name.lower() not in CREDENTIALS}
    return Redirect("GET" if turns_to_get else request.method, url, headers, with_body=not turns_to_get)


def unpacked(raw: RawAnswer, limit: int | None) -> bytes:
    """The body, unpacked if the server packed it."""
    for name, value in raw.headers:
        if len(name) == 16 and name.lower() == b"content-encoding" and raw.body:
            packing = value.strip().lower()
            if packing in PACKED:
                return _unpack(raw.body, packing, limit)
    return raw.body


def _unpack(body: bytes, packing: bytes, limit: int | None) -> bytes:
    if packing == b"gzip":
        wbits = 16 + zlib.MAX_WBITS
    elif packing == b"deflate":
        # With the header that the standard asks for, or without it, as some servers do.
        wbits = zlib.MAX_WBITS if body[0] & 0xF == 8 else -zlib.MAX_WBITS
    else:
        raise BrokenOffError(f"can't unpack {packing.decode()}")
    parts = []
    rest, room = body, limit
    try:
        while rest:
            unpacker = zlib.decompressobj(wbits)
            parts.append(unpacker.decompress(rest, 0 if room is None else room + 1))
            if room is not None:
                room -= len(parts[-1])
                if room < 0:
                    raise BadAnswerError(f"more than {limit} bytes")
            if not unpacker.eof:
                raise BrokenOffError("the packed answer broke off")
            rest = unpacker.unused_data
    except zlib.error as error:
        raise BrokenOffError("can't unpack the answer") from error
    return b"".join(parts)
