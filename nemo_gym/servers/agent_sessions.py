"""Sessions of an agent that an environment server opens and closes, each with the state that the agent made for it.

Both requests may arrive twice, because their senders repeat what got no reply. So an equal seed finds the same state, a
repeated close gets the stored reply, and a close that overtakes its seed keeps that seed from opening a session that
nobody would close. A close that fails keeps the state, so that it can be tried again. Whatever contradicts what is
known about a session is refused with status 409.
"""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NoReturn, TypeVar

from fastapi import HTTPException
from pydantic import BaseModel, ConfigDict

from nemo_gym.schemas.episodes import (
    AgentCloseSessionRequest,
    AgentSeedSessionRequest,
    EpisodeId,
    FilledText,
)
from nemo_gym.schemas.observations import AgentObservationBundle

AGENT_SESSION_KEY: Final = "agent_session_id"  # in the session cookie
State = TypeVar("State")


class AgentCloseSessionResponse(BaseModel):
    """The session is closed; what its agent observed, and the cookies of the resources server as they are now."""

    model_config = ConfigDict(extra="forbid")

    agent_session_id: FilledText
    agent_observations: AgentObservationBundle | None = None
    resources_cookies: dict[str, str] | None = None


@dataclass
class AgentSessionState:
    """The state of a session; agents subclass it to add what they need."""

    request: AgentSeedSessionRequest


class AgentSessionSetupError(Exception):
    """A session could not be set up, but has a state that must be closed."""

    def __init__(self, state: AgentSessionState, *, error: BaseException) -> None:
        super().__init__(str(error))
        self.state = state
        self.error = error


@dataclass(slots=True)
class _OpenSession:
    request: AgentSeedSessionRequest
    state: Any = None
    is_usable: bool = False
    is_closing: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class _ClosedSession:
    episode_id: EpisodeId
    response: AgentCloseSessionResponse
    until: float


class AgentSessions(Generic[State]):
    """The sessions of one agent. ``window_s`` is how long a closed one is remembered."""

    def __init__(self, *, window_s: float) -> None:
        self.open: dict[str, _OpenSession] = {}
        self.closed: dict[str, _ClosedSession] = {}
        self._window_s = window_s

    async def seed(
        self, body: AgentSeedSessionRequest, make: Callable[[AgentSeedSessionRequest], Awaitable[State] | State]
    ) -> None:
        """Open a session, unless an equal one is open already."""
        self._forget_old()
        name = body.agent_session_id
        if name in self.closed:
            _refuse(f"the agent session {name!r} is closed")
        session = self.open.setdefault(name, _OpenSession(body))
        if session.request != body:
            _refuse(f"the agent session {name!r} was opened with another request")
        async with session.lock:
            if session.is_closing or self.open.get(name) is not session:
                _refuse(f"the agent session {name!r} is being closed")
            if session.is_usable:
                return
            if session.state is not None:
                _refuse(f"the agent session {name!r} could not be set up, and can only be closed")
            await self._make_state(session, make)

    async def _make_state(self, session: _OpenSession, make: Callable[[AgentSeedSessionRequest], Any]) -> None:
        try:
            made = make(session.request)
            session.state = await made if inspect.isawaitable(made) else made
        except AgentSessionSetupError as error:
            session.state = error.state
            raise error.error from error
        except BaseException:
            self.open.pop(session.request.agent_session_id, None)
            raise
        session.is_usable = True

    def require(self, name: str) -> Any:
        """The state of a session that can be used."""
        session = self.open.get(name)
        if session is None or not session.is_usable or session.is_closing:
            _refuse(f"there is no open agent session {name!r}")
        return session.state

    async def close(
        self, body: AgentCloseSessionRequest, end: Callable[[Any], Awaitable[AgentCloseSessionResponse] | Any]
    ) -> AgentCloseSessionResponse:
        """Close a session; a repeated request gets the same reply, and one that was never opened is closed too."""
        self._forget_old()
        name = body.agent_session_id
        session = self.open.get(name)
        if session is None:
            return self._closed_before(body)
        _check_episode(name, session.request.episode_id, body.episode_id)
        session.is_closing = True
        async with session.lock:
            if self.open.get(name) is not session:  # closed by an equal request while this one waited
                return self._closed_before(body)
            try:
                ended = end(session.state) if session.state is not None else _nothing_to_close(name)
                response = await ended if inspect.isawaitable(ended) else ended
            except BaseException:
                session.is_closing = False
                raise
            del self.open[name]
            return self._remember(body, response)

    def _closed_before(self, body: AgentCloseSessionRequest) -> AgentCloseSessionResponse:
        known = self.closed.get(body.agent_session_id)
        if known is None:
            return self._remember(body, _nothing_to_close(body.agent_session_id))
        _check_episode(body.agent_session_id, known.episode_id, body.episode_id)
        return known.response

    def _remember(
        self, body: AgentCloseSessionRequest, response: AgentCloseSessionResponse
    ) -> AgentCloseSessionResponse:
        until = time.monotonic() + self._window_s
        self.closed[body.agent_session_id] = _ClosedSession(body.episode_id, response, until)
        return response

    def _forget_old(self) -> None:
        now = time.monotonic()
        # In the order in which they were closed, so the first that is young enough ends the search.
        for name, session in list(self.closed.items()):
            if session.until > now:
                return
            del self.closed[name]


def session_marker(session: Any) -> str | None:
    """The id of the agent session that a session cookie names; None if it names none."""
    marker = session.get(AGENT_SESSION_KEY)
    if marker is not None and (not isinstance(marker, str) or not marker):
        _refuse("the session cookie does not name an agent session")
    return marker


def mark_session(session: Any, name: str) -> None:
    """Make a session cookie name an agent session; one that names another is refused."""
    if session_marker(session) not in (None, name):
        _refuse("the session cookie belongs to another agent session")
    session[AGENT_SESSION_KEY] = name


def _nothing_to_close(name: str) -> AgentCloseSessionResponse:
    return AgentCloseSessionResponse(agent_session_id=name)


def _check_episode(name: str, known: EpisodeId, given: EpisodeId) -> None:
    if known != given:
        _refuse(f"the agent session {name!r} belongs to another episode")


def _refuse(reason: str) -> NoReturn:
    raise HTTPException(409, reason)
