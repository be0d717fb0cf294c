"""Plain connections kept open for the next request, and a bound on how many there are at once.

Per host the connection that was used last is used first, so that the others can grow old and be closed. Whoever finds
all places taken waits in line. Only connections in use count; a place is given back when its request ends, however it
ends, and a connection goes back to the pool only if it is fit for another request.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from nemo_gym.servers.http_answer import RawAnswer
from nemo_gym.servers.http_connect import Resolver, open_socket
from nemo_gym.servers.http_connection import Connection
from nemo_gym.servers.http_errors import ClientClosedError, ConnectionLostError, DisconnectedError
from nemo_gym.servers.http_request import Address, Template, end_of_head
from nemo_gym.servers.http_timeout import Limits


class Limit:
    """Places that are taken and given back; whoever waits is served in the order of arrival."""

    __slots__ = ("_line", "free", "size")

    def __init__(self, size: int) -> None:
        self.size = self.free = size
        self._line: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Take a place, as soon as there is one."""
        if self.free:
            self.free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the place was ours already
                self.give()
            raise

    def give(self) -> None:
        """Give a place back: to the first in line, if there is one."""
        while self._line:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.free += 1


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Size of the connection pool; more requests than that wait for a connection."""

    connections: int = 102_400
    connections_per_host: int = 16_384
    # Shorter than what servers usually allow, so that we close idle connections before they do.
    keepalive_s: float = 15.0
    # Larger answers are errors; None: any size.
    max_answer_bytes: int | None = None


@dataclass(slots=True)
class Host:
    """The connections to one host that nobody uses, the newest on the right."""

    limit: Limit
    idle: deque[Connection] = field(default_factory=deque)


# Errors of a connection that may have been closed before the request reached the server.
LOST: Final = (DisconnectedError, ConnectionLostError)


class Pool:
    """The plain connections of an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, settings: HttpSettings) -> None:
        self._loop = loop
        self.settings = settings
        self._total = Limit(settings.connections)
        self._hosts: dict[Address, Host] = {}
        self._busy: set[Connection] = set()
        self._resolver = Resolver(loop)
        self._sweeper: asyncio.TimerHandle | None = None
        self.closed = False

    async def send(self, request: Template, body: bytes | None, limits: Limits, *, resend: bool) -> RawAnswer:
        """Send a request and wait for its answer, all within the total time.

        ``resend``: a kept connection may turn out to be closed when it is used; whether to send the request again then.
        """
        deadline = self._loop.time() + limits.total if limits.total else None
        host = self._hosts.get(request.address)
        if host is None:
            host = self._hosts[request.address] = Host(Limit(self.settings.connections_per_host))
        if host.limit.free and self._total.free:
            host.limit.free -= 1
            self._total.free -= 1
        else:
            await self._wait_for_place(host, deadline)
        try:
            connection = self._pick(host)
            resend = resend and connection is not None
            while True:
                if connection is None:
                    connection = await self._open(request.address, deadline, limits.sock_connect)
                self._busy.add(connection)
                try:
                    return await connection.send(request.head + end_of_head(request, body), body or b"", deadline)
                except LOST:
                    if not (resend and connection.silent):
                        raise
                finally:
                    self._put_back(host, connection)
                connection, resend = None, False
        finally:
            self._total.give()
            host.limit.give()

    async def _wait_for_place(self, host: Host, deadline: float | None) -> None:
        async with asyncio.timeout_at(deadline):
            await host.limit.take()
            try:
                await self._total.take()
            except asyncio.CancelledError:
                host.limit.give()
                raise

    def _pick(self, host: Host) -> Connection | None:
        """The connection that was used last, if the server has not closed it since."""
        while host.idle:
            connection = host.idle.pop()
            if connection.reusable and self._loop.time() < connection.idle_until:
                return connection
            connection.abort()
        return None

    async def _open(self, address: Address, deadline: float | None, connect_s: float | None) -> Connection:
        self._refuse_if_closed()
        async with asyncio.timeout_at(deadline):
            connected = await open_socket(self._resolver, address, connect_s)
            try:
                _, connection = await self._loop.create_connection(self._new_connection, sock=connected)
            except BaseException:
                connected.close()
                raise
        if self.closed:
            connection.abort()
        self._refuse_if_closed()
        return connection

    def _refuse_if_closed(self) -> None:
        if self.closed:
            raise ClientClosedError

    def _new_connection(self) -> Connection:
        return Connection(self._loop, self.settings.max_answer_bytes)

    def _put_back(self, host: Host, connection: Connection) -> None:
        self._busy.discard(connection)
        if self.closed or not connection.reusable:
            connection.abort()
            return
        connection.idle_until = self._loop.time() + self.settings.keepalive_s
        host.idle.append(connection)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(self.settings.keepalive_s, self._sweep)

    def _sweep(self) -> None:
        """Close what was idle for too long; forget hosts that nobody calls."""
        self._sweeper = None
        now = self._loop.time()
        for address, host in list(self._hosts.items()):
            while host.idle and not (host.idle[0].reusable and now < host.idle[0].idle_until):
                host.idle.popleft().abort()
            if not host.idle and host.limit.free == host.limit.size:
                del self._hosts[address]
        oldest = min((host.idle[0].idle_until for host in self._hosts.values() if host.idle), default=None)
        if oldest is not None:
            self._sweeper = self._loop.call_at(oldest, self._sweep)

    async def close(self) -> None:
        """Close all connections; requests under way fail."""
        self.closed = True
        self._resolver.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        connections = [*self._busy, *(connection for host in self._hosts.values() for connection in host.idle)]
        self._hosts.clear()
        for connection in connections:
            connection.abort()
        if connections:
            await asyncio.wait([connection.closed for connection in connections])
