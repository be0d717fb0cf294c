"""Sessions: a signed cookie, repeated in every reply, tells a server who is calling; states belong to a session.

Each server's cookie has its own name, so cookies of several servers travel together. The cookie contains signed JSON
in which ``session_id`` is always set. The signing key is random for each run. The middleware is outside everything that
can fail, so that a caller keeps its session when a handler crashes.

``SessionStates`` stores the state of each rollout for an environment. A rollout that fails never reaches ``/verify``,
so the environment does not learn that its state can be released. States that have not been used for a long time are
therefore dropped, and there are never more than ``max_states``. They are stored in the order of their last use, so
enforcing both limits costs nothing until they are reached.
"""

import logging
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from hashlib import blake2b
from itertools import count
from typing import Any, Final, Generic, TypeVar
from uuid import uuid4

import orjson
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nemo_gym.schemas.rows import FAILURE_CLASS_HEADER, SESSION_LOST_STATUS, FailureClass

SESSION_ID_KEY = "session_id"
ATTRIBUTES = f"path=/; Max-Age={14 * 24 * 60 * 60}; httponly; samesite=lax"
REMEMBERED_COOKIES = 65_536
SIGNATURE_BYTES = 20

# Names of variables for the processes of one server: they share a secret. A process that is the only one, and has taken
# the place of one that crashed, does not have the sessions that this one had.
SECRET_VARIABLE = "NEMO_GYM_SESSION_SECRET"  # noqa: S105 - the name of a variable
OWN_SESSIONS_VARIABLE = "NEMO_GYM_OWN_SESSIONS"


def session_secret() -> str:
    """A random signing key, or the one that the workers of one server share through their environment."""
    return os.environ.get(SECRET_VARIABLE) or secrets.token_urlsafe(32)


def keeps_own_sessions() -> bool:
    """Whether this process is the only one of its server, so that no other process has sessions of it."""
    return OWN_SESSIONS_VARIABLE in os.environ


class SessionLostError(Exception):
    """The session was kept by a process that crashed."""

    def __init__(self) -> None:
        super().__init__("the server crashed and was started again; the session of this rollout is gone")


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


class SessionCookies:
    """Reads and signs the session cookies of one server."""

    def __init__(self, name: str, secret: str, *, own_only: bool = False) -> None:
        self.name = name
        self._own_only = own_only  # whether sessions of other processes with the same secret are lost
        # Copied for every signature: taking in the key is half the work.
        self._keyed = blake2b(key=blake2b(secret.encode()).digest(), digest_size=SIGNATURE_BYTES)
        # A random prefix and a number make ids unique. They may be guessable, because an unsigned id is worthless.
        self._id_prefix = str(uuid4())[:24]
        self._id_numbers = count()
        # A cookie that was signed here need not be verified when it comes back.
        self._sealed: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def open(self, cookie: str | None) -> Session:
        """The session of a cookie; a missing, foreign or forged cookie starts a new one.

        Raises ``SessionLostError`` if a process that crashed kept the session.
        """
        data = self._data(cookie) if cookie else None
        if data and SESSION_ID_KEY in data:
            if self._own_only and cookie not in self._sealed:
                self.require_own(data)
            return Session(data, cookie)
        return Session({SESSION_ID_KEY: self._new_id()})

    def renew(self, cookie: str | None) -> str:
        """The same as ``open`` and ``seal``, for a session that is not read in between."""
        if cookie is not None and SESSION_ID_KEY in (self._data(cookie) or ()):
            return cookie
        return self._sign({SESSION_ID_KEY: self._new_id()})

    def seal(self, session: Mapping[str, Any]) -> str:
        """The signed cookie value for a session."""
        known = session.cookie if isinstance(session, Session) else None
        if known is not None:
            return known
        return self._sign(dict(session))

    def are_signed_in(self, cookies: Mapping[str, str]) -> bool:
        """Whether a request has a cookie that was signed here."""
        given = cookies.get(self.name)
        return given is not None and self._data(given) is not None

    def header(self, sealed: str) -> tuple[bytes, bytes]:
        """The raw ``Set-Cookie`` header for a signed cookie value."""
        return b"set-cookie", f"{self.name}={sealed}; {ATTRIBUTES}".encode("latin-1")

    def require_own(self, data: Mapping[str, Any]) -> None:
        """Raise ``SessionLostError`` if the session began in a process that crashed."""
        if self._own_only and not str(data.get(SESSION_ID_KEY)).startswith(self._id_prefix):
            raise SessionLostError

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
    """Gives every request its session and every reply its cookie. Pure ASGI for speed, because every call uses it."""

    def __init__(self, app: ASGIApp, *, cookies: SessionCookies) -> None:
        self.app = app
        self.cookies = cookies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        try:
            scope["session"] = self.cookies.open(incoming_cookies(scope).get(self.cookies.name))
        except SessionLostError as lost:
            await _refuse(lost, scope, send)
            return

        async def send_with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", ()),
                    self.cookies.header(self.cookies.seal(scope["session"])),
                ]
            await send(message)

        await self.app(scope, receive, send_with_cookie)


async def _refuse(lost: SessionLostError, scope: Scope, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1011, "reason": str(lost)})
        return
    body = orjson.dumps({"detail": str(lost)})
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (FAILURE_CLASS_HEADER.lower().encode(), FailureClass.SERVER_CRASHED.encode()),
    ]
    await send({"type": "http.response.start", "status": SESSION_LOST_STATUS, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def incoming_cookies(scope: Scope) -> dict[str, str]:
    """The cookies of a request."""
    cookies: dict[str, str] = {}
    for name, value in scope["headers"]:
        if name == b"cookie":
            cookies |= cookie_parser(value.decode("latin-1"))
    return cookies


logger = logging.getLogger(__name__)

# Longer than any model takes for one step; a rollout that is still running asks for its state again before that.
MAX_IDLE_S: Final = 4 * 60 * 60.0
MAX_STATES: Final = 100_000

State = TypeVar("State")


class SessionStates(MutableMapping[str, State], Generic[State]):
    """A dictionary from session ids to states that forgets what was abandoned.

    ``on_drop`` is called with each state that is dropped without having been removed by its owner.
    """

    def __init__(
        self,
        *,
        max_idle_s: float = MAX_IDLE_S,
        max_states: int = MAX_STATES,
        on_drop: Callable[[State], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._states: OrderedDict[str, tuple[float, State]] = OrderedDict()
        self._max_idle_s = max_idle_s
        self._max_states = max_states
        self._on_drop = on_drop
        self._clock = clock
        self._warned = False

    def __setitem__(self, session: str, state: State) -> None:
        now = self._clock()
        self._states[session] = (now, state)
        self._states.move_to_end(session)
        self._drop_idle(now)
        if len(self._states) > self._max_states:
            self._drop_oldest()
            if not self._warned:
                self._warned = True
                logger.warning("more than %d sessions are open; the longest unused is dropped", self._max_states)

    def __getitem__(self, session: str) -> State:
        _, state = self._states[session]
        self._states[session] = (self._clock(), state)
        self._states.move_to_end(session)
        return state

    def __delitem__(self, session: str) -> None:
        del self._states[session]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._states))

    def __len__(self) -> int:
        return len(self._states)

    def _drop_idle(self, now: float) -> None:
        # The first is the one that was used least recently.
        while self._states and now - next(iter(self._states.values()))[0] > self._max_idle_s:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, (_, state) = self._states.popitem(last=False)
        if self._on_drop is not None:
            self._on_drop(state)
