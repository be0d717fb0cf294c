"""Accepts the connections of workers, and admits only those that know the secret of the run."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from nemo_gym.errors import ConfigError
from nemo_gym.executors.frames import Connection, Frame
from nemo_gym.executors.handshake import HANDSHAKE_S, UNAUTHENTICATED_LIMIT, RefusedError, admit, keep_alive

if TYPE_CHECKING:
    import ssl

logger = logging.getLogger(__name__)

CLOSE_S: Final = 1.0

Frames: TypeAlias = "asyncio.Queue[Frame]"
# The last argument is the worker's description of itself.
Welcome: TypeAlias = Callable[[Connection, Frames, dict[str, Any]], Awaitable[None]]


class Listener:
    """Listens for workers at one address."""

    def __init__(self, secret: bytes, welcome: Welcome) -> None:
        self._secret = secret
        self._welcome = welcome
        self._server: asyncio.Server | None = None
        self._visits: dict[asyncio.Task[None], Connection] = {}

    async def open(self, host: str, port: int = 0, tls: "ssl.SSLContext | None" = None) -> int:
        """Start listening; returns the port."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._receive, host, port, ssl=tls, backlog=1024)
        except OSError as error:
            raise ConfigError(
                f"the collector can't listen at {host}:{port}: {error.strerror or error}",
                hint="give +executor_host=<an address of this machine> or another +executor_port=…",
            ) from None
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Stop listening and close all connections."""
        if self._server is not None:
            # What the event loop has accepted becomes a visit in its next turn, but not if its server is closed by
            # then: asyncio would drop the open socket. So first let nothing more be accepted.
            with contextlib.suppress(NotImplementedError):
                for listening in self._server.sockets:
                    asyncio.get_running_loop().remove_reader(listening.fileno())
            await asyncio.sleep(0)
            self._server.close()
        visits = dict(self._visits)
        for visit in visits:
            visit.cancel()
        await asyncio.gather(*visits, return_exceptions=True)
        for connection in visits.values():
            connection.close()  # a task that was cancelled before it began has not done so
        # Sockets are closed by the event loop, once what was still to be sent is gone; it may be about to end.
        closing = [connection.closed for connection in visits.values()]
        if closing:
            await asyncio.wait(closing, timeout=CLOSE_S)

    def _receive(self) -> Connection:
        frames: Frames = asyncio.Queue()
        connection = Connection(frames.put_nowait, limit=UNAUTHENTICATED_LIMIT)
        visit = asyncio.get_running_loop().create_task(self._attend(connection, frames))
        self._visits[visit] = connection
        visit.add_done_callback(self._visits.pop)
        return connection

    async def _attend(self, connection: Connection, frames: Frames) -> None:
        try:
            about = await self._admit(connection, frames)
            if about is not None:
                await self._welcome(connection, frames, about)
        finally:
            connection.close()

    async def _admit(self, connection: Connection, frames: Frames) -> dict[str, Any] | None:
        """What the worker says about itself; None if it was refused."""
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await connection.opened
            keep_alive(connection)
            return await admit(connection, frames, self._secret)
        except (RefusedError, TimeoutError) as refusal:
            logger.warning("A connection to the collector was refused: %s", str(refusal) or "it was never opened")
            connection.abort()
            return None
