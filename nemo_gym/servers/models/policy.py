"""Which weights a model server answers with, and who may change them while it runs.

A trainer sends new weights, or has others send them, and the version goes up. Every turn records the version that it
began with. A paused server takes requests and keeps them waiting; those that have begun are not disturbed. Weights
decide what every rollout is made of, so only callers who hold ``weights_token`` may touch them; a server without one
has no such routes.
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
    """What ``GET /weights`` tells: the version, and how many turns are being answered."""

    version: int
    paused: bool
    in_flight: int


class Policy:
    """The version of a model server's weights, and the turns that are being answered with them."""

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
        """How things are."""
        return PolicyState(version=self.version, paused=not self._open.is_set(), in_flight=self._in_flight)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[int]:
        """Answer one request; gives the version that it begins with. Waits while the server is paused."""
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
        """Change the weights, one change at a time; the version counts once it has succeeded."""
        async with self._changing:
            following = self.version + 1 if version is None else version
            if following <= self.version:
                raise HTTPException(409, f"version {following} is not newer than {self.version}")
            yield following
            self.version = following

    @asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """Wait until nothing is being answered. If what follows fails, the server stays paused."""
        was_open = self._open.is_set()
        self.pause()
        await self._idle.wait()
        yield
        if was_open:
            self.resume()

    def pause(self) -> None:
        """Let requests wait from now on."""
        self._open.clear()

    def resume(self) -> None:
        """Answer again."""
        self._open.set()

    def guard(self, authorization: Annotated[str, Header()] = "") -> None:
        """Let nobody through but those who hold the token."""
        if not secrets.compare_digest(authorization.encode(), f"Bearer {self._token}".encode()):
            raise HTTPException(
                401, "weights_token of this server is needed: send Authorization: Bearer <weights_token>"
            )

    def add_routes(self, app: FastAPI, update: Callable[..., Awaitable[Any]]) -> None:
        """Offer the routes; ``update`` answers ``POST /weights``."""
        guarded = [Depends(self.guard)]
        app.post(WEIGHTS_PATH, dependencies=guarded)(update)
        app.get(WEIGHTS_PATH, dependencies=guarded)(self._show)
        app.post(PAUSE_PATH, dependencies=guarded)(self._pause)
        app.post(RESUME_PATH, dependencies=guarded)(self._resume)

    async def _show(self) -> PolicyState:
        return self.state

    async def _pause(self, *, drain: bool = False) -> PolicyState:
        """Pause; with ``drain``, answer only when nothing is in flight any more."""
        self.pause()
        if drain:
            await self._idle.wait()
        return self.state

    async def _resume(self) -> PolicyState:
        self.resume()
        return self.state
