"""A server that plays scripted bytes to whoever connects and keeps what it was sent."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from nemo_gym.servers.http.connections import close_http_client

Play = Callable[["RawServer", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class RawServer:
    """What happened at the server."""

    play: Play
    port: int = 0
    host: str = "127.0.0.1"
    connections: int = 0
    lost: int = 0
    heads: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    # For scripts that go on when the test says so.
    step: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}/v1/thing"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self.play(self, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.lost += 1
        finally:
            writer.close()

    async def read_request(self, reader: asyncio.StreamReader) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lengths = [int(line[15:]) for line in head.lower().split("\r\n") if line[:15] == "content-length:"]
        self.heads.append(head)
        self.bodies.append(await reader.readexactly(sum(lengths)))


@asynccontextmanager
async def playing(play: Play, host: str = "127.0.0.1") -> AsyncIterator[RawServer]:
    """A server for as long as the block runs; the client is closed before it."""
    raw = RawServer(play, host=host)
    server = await asyncio.start_server(raw.serve, host, 0)
    raw.port = server.sockets[0].getsockname()[1]
    try:
        yield raw
    finally:
        await close_http_client()
        server.close()
        await server.wait_closed()


def replies(*scripts: bytes, hang_up: bool = False) -> Play:
    """Reply to each request of a connection with the next script, the last for ever."""

    async def play(raw: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await raw.read_request(reader)
            writer.write(scripts[min(len(raw.heads), len(scripts)) - 1])
            await writer.drain()
            if hang_up:
                return

    return play


def in_pieces(script: bytes, size: int) -> Play:
    """Reply with a script a few bytes at a time, and hang up."""

    async def play(raw: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await raw.read_request(reader)
        for start in range(0, len(script), size):
            writer.write(script[start : start + size])
            await writer.drain()
            await asyncio.sleep(0)

    return play


def reply(body: bytes = b"{}", status: str = "200 OK", headers: str = "") -> bytes:
    lines = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return lines.encode() + body
