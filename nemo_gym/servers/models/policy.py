"""The version of a model server's weights, and the routes that change them while it runs.

A trainer sends new weights, or has them sent, and the version goes up. Every turn records the version that it began
with. A paused server accepts requests and keeps them waiting; requests that have begun are not disturbed. Weights
determine every rollout, so only callers with ``weights_token`` may change them; a server without a token does not have
these routes.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException
from pydantic import BaseModel

WEIGHTS_PATH = "/weights"
PAUSE_PATH = "/pause"
RESUME_PATH = "/resume"


class PolicyState(BaseModel):
    """The reply to ``GET /weights``: the version, and how many turns are in progress."""

    version: int
    paused: bool
    in_flight: int


class Policy:
    """The version of a model server's weights, and the turns that are generated with them."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._open = asyncio.Event()
        self._idle = asyncio.Event()
        self._open.set()
        self._idle.set()
        self._changing = asyncio.Lock()
        self._in_flight = 0
        self.version = 0

    @property
    def state(self) -> PolicyState:
        """The current state, for ``GET /weights``."""
        return PolicyState(version=self.version, paused=not self._open.is_set(), in_flight=self._in_flight)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[int]:
        """Surround one request, and give the version that it begins with. Waits during a pause."""
        await self._open.wait()
        self._in_flight += 1
        self._idle.clear()
        try:
            yield self.version
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    @asynccontextmanager
    async def change(self, version: int | None) -> AsyncIterator[int]:
        """Change the weights, one change at a time. The version goes up only if the change succeeds."""
        async with self._changing:
            following = self.version + 1 if version is None else version
            if following <= self.version:
                raise HTTPException(409, f"version {following} is not newer than {self.version}")
            yield following
            self.version = following

    @asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """Pause until nothing is in progress. If the block fails, the server stays paused."""
        was_open = self._open.is_set()
        self.pause()
        await self._idle.wait()
        yield
        if was_open:
            self.resume()

    def pause(self) -> None:
        """Keep new requests waiting."""
        self._open.clear()

    def resume(self) -> None:
        self._open.set()

    def guard(self, authorization: Annotated[str, Header()] = "") -> None:
        """Refuse callers without the token."""
        # Takes equally long for every wrong token, so that it cannot be guessed piece by piece.
        if not secrets.compare_digest(authorization.encode(), f"Bearer {self._token}".encode()):
            raise HTTPException(
                401, "the weights_token of this server is required: send Authorization: Bearer <weights_token>"
            )

    def add_routes(self, app: FastAPI, update: Callable[..., Awaitable[Any]]) -> None:
        """Add the routes; ``update`` handles ``POST /weights``."""
        guarded = [Depends(self.guard)]
        app.post(WEIGHTS_PATH, dependencies=guarded)(update)
        app.get(WEIGHTS_PATH, dependencies=guarded)(self._show)
        app.post(PAUSE_PATH, dependencies=guarded)(self._pause)
        app.post(RESUME_PATH, dependencies=guarded)(self._resume)

    async def _show(self) -> PolicyState:
        return self.state

    async def _pause(self, *, drain: bool = False) -> PolicyState:
        """Pause; with ``drain``, reply once no request is in flight."""
        self.pause()
        if drain:
            await self._idle.wait()
        return self.state

    async def _resume(self) -> PolicyState:
        self.resume()
        return self.state
