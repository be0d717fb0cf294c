"""Session cookies: a signed cookie, repeated in every answer, tells a server who is calling.

Each server's cookie has its own name, so cookies of several servers travel together. The cookie contains signed JSON
in which ``session_id`` is always set. The signing key is random for each run. The middleware is outside everything that
can fail, so that a caller keeps its session when a handler crashes.
"""

import os
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from hashlib import blake2b
from itertools import count
from typing import Any
from uuid import uuid4

import orjson
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SESSION_ID_KEY = "session_id"
ATTRIBUTES = f"path=/; Max-Age={14 * 24 * 60 * 60}; httponly; samesite=lax"
REMEMBERED_COOKIES = 65_536
SIGNATURE_BYTES = 20

SECRET_VARIABLE = "NEMO_GYM_SESSION_SECRET"  # noqa: S105 - the name of a variable, shared by the workers of one server


def session_secret() -> str:
    """A random signing key, or the one that the workers of one server share through their environment."""
    return os.environ.get(SECRET_VARIABLE) or secrets.token_urlsafe(32)


class Session(dict[str, Any]):
    """The data of one cookie, and the cookie it came from as long as the data is unchanged."""

    __slots__ = ("_cookie", "_cookie_data")

    def __init__(self, data: Mapping[str, Any], cookie: str | None = None) -> None:
        super().__init__(data)
        self._cookie = cookie
        self._cookie_data = data if cookie else None

    @property
    def cookie(self) -> str | None:
        """The cookie that this session came from, if the session has not changed."""
        return self._cookie if self == self._cookie_data else None


class NewSession:
    """A session that nobody has opened yet. It gets its id and its cookie when somebody asks for the cookie."""

    __slots__ = ("_cookie", "_cookies")

    def __init__(self, cookies: "SessionCookies") -> None:
        self._cookies = cookies
        self._cookie: str | None = None

    def cookie(self) -> str:
        """The signed cookie; always the same."""
        if self._cookie is None:
            self._cookie = self._cookies.renew(None)
        return self._cookie

    def is_of(self, cookies: "SessionCookies") -> bool:
        """Whether it is a session of the server with these cookies."""
        return self._cookies is cookies


class SessionCookies:
    """Reads and signs the session cookies of one server."""

    def __init__(self, name: str, secret: str) -> None:
        self.name = name
        # Copied for every signature: taking in the key is half the work.
        self._keyed = blake2b(key=blake2b(secret.encode()).digest(), digest_size=SIGNATURE_BYTES)
        # A random prefix and a number make ids unique. They may be guessable, because an unsigned id is worthless.
        self._id_prefix = str(uuid4())[:24]
        self._id_numbers = count()
        # A cookie that was signed here need not be verified when it comes back.
        self._sealed: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def open(self, cookie: str | None) -> Session:
        """The session of a cookie; a missing, foreign or forged cookie starts a new one."""
        data = self._data(cookie) if cookie else None
        if data and SESSION_ID_KEY in data:
            return Session(data, cookie)
        return Session({SESSION_ID_KEY: self._new_id()})

    def renew(self, cookie: str | None) -> str:
        """The same as ``open`` and ``seal``, for a session that is not read in between."""
        if cookie is not None and (cookie in self._sealed or SESSION_ID_KEY in (self._data(cookie) or {})):
            return cookie
        return self._sign({SESSION_ID_KEY: self._new_id()})

    def seal(self, session: Mapping[str, Any]) -> str:
        """The signed cookie value for a session."""
        known = session.cookie if isinstance(session, Session) else None
        if known is not None:
            return known
        return self._sign(dict(session))

    def header(self, sealed: str) -> tuple[bytes, bytes]:
        """The raw ``Set-Cookie`` header for a signed cookie value."""
        return b"set-cookie", f"{self.name}={sealed}; {ATTRIBUTES}".encode("latin-1")

    def _new_id(self) -> str:
        return f"{self._id_prefix}{next(self._id_numbers):012x}"

    def _sign(self, data: dict[str, Any]) -> str:
        payload = orjson.dumps(data)
        cookie = f"{payload.hex()}.{self._signature(payload)}"
        self._sealed[cookie] = data
        if len(self._sealed) > REMEMBERED_COOKIES:
            self._sealed.popitem(last=False)
        return cookie

    def _signature(self, payload: bytes) -> str:
        signature = self._keyed.copy()
        signature.update(payload)
        return signature.hexdigest()

    def _data(self, cookie: str) -> dict[str, Any] | None:
        known = self._sealed.get(cookie)
        if known is not None:
            return known
        text, _, signature = cookie.partition(".")
        try:
            payload = bytes.fromhex(text)
        except ValueError:
            return None
        if not secrets.compare_digest(self._signature(payload).encode(), signature.encode(errors="replace")):
            return None
        data: dict[str, Any] = orjson.loads(payload)
        return data


class SessionMiddleware:
    """Gives every request its session and every answer its cookie. Pure ASGI for speed, because every call uses it."""

    def __init__(self, app: ASGIApp, *, cookies: SessionCookies) -> None:
        self.app = app
        self.cookies = cookies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        scope["session"] = self.cookies.open(incoming_cookies(scope).get(self.cookies.name))

        async def send_with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", ()),
                    self.cookies.header(self.cookies.seal(scope["session"])),
                ]
            await send(message)

        await self.app(scope, receive, send_with_cookie)


def incoming_cookies(scope: Scope) -> dict[str, str]:
    """The cookies of a request."""
    cookies: dict[str, str] = {}
    for name, value in scope["headers"]:
        if name == b"cookie":
            cookies |= cookie_parser(value.decode("latin-1"))
    return cookies
