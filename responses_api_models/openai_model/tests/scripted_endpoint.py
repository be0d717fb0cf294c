"""An endpoint that answers with scripted bytes over real HTTP. The tests of all model servers use it."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from nemo_gym.servers.http.connections import close_http_client

# At the end of an answer: hang up, or repeat what comes before it until the client does.
CUT = b"<cut>"
ENDLESS = b"<endless>"


def reply(body: Any, status: int = 200, headers: str = "") -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(content)}\r\n{headers}\r\n".encode() + content


def stream(*events: Any) -> bytes:
    """An answer that is a stream of events."""
    lines = [event if isinstance(event, bytes) else b"data: " + json.dumps(event).encode() for event in events]
    return reply(b"\n\n".join([*lines, b""]), headers="Content-Type: text/event-stream\r\n")


def error(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, **more}}


@dataclass
class Endpoint:
    """Gives the answers of a path one after the other, the last of them for ever; ``*`` is for all other paths."""

    routes: dict[str, list[bytes]]
    delay_s: float = 0.0
    url: str = ""
    heads: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    busy: int = 0
    most_busy: int = 0

    def sent_to(self, path: str) -> list[dict[str, Any]]:
        """The bodies of the requests to a path."""
        return [body for body, to in zip(self.bodies, self.paths, strict=True) if to == path]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._answer(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        _, _, length = head.lower().partition("content-length: ")
        body = await reader.readexactly(int(length.split("\r\n")[0] or 0) if length else 0)
        path = head.split(" ")[1]
        self.heads.append(head)
        self.paths.append(path)
        self.bodies.append(json.loads(body) if body else {})
        self.busy += 1
        self.most_busy = max(self.busy, self.most_busy)
        await asyncio.sleep(self.delay_s)
        self.busy -= 1
        answers = self.routes.get(path, self.routes.get("*", [reply(error("no such route"), 404)]))
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        writer.write(answer.removesuffix(ENDLESS))
        await writer.drain()
        while answer.endswith(ENDLESS):
            writer.write(b"5\r\n: hi\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.005)
        return not answer.endswith(CUT)


@asynccontextmanager
async def serving(
    *answers: bytes, routes: Mapping[str, bytes | list[bytes]] | None = None, delay_s: float = 0.0
) -> AsyncIterator[Endpoint]:
    """The endpoint while the context lasts, with answers for every path and for certain ones."""
    listed = {path: [given] if isinstance(given, bytes) else list(given) for path, given in (routes or {}).items()}
    endpoint = Endpoint(listed | ({"*": list(answers)} if answers else {}), delay_s)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await endpoint.serve(reader, writer)
        finally:
            tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    endpoint.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield endpoint
    finally:
        server.close()
        await close_http_client()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
