"""The one address that a program in a sandbox can reach: it leads to its attempt and its tools, and to nothing else.

A model server has routes for everybody on its port, and so has a resources server. Here only paths that begin with the
attempt's own address, or with the rollout's own MCP address, are passed on; both hold a secret. Bodies are streamed.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from nemo_gym.config.keys import LOOPBACK
from nemo_gym.servers.http.connections import aiohttp, loop_client

_LARGEST_BODY: Final = 1 << 28
# They describe one connection, or are added again by whoever sends the message on.
_OF_ONE_CONNECTION: Final = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "content-length", "content-encoding", "host", "te", "upgrade"}
)


@dataclass(frozen=True, slots=True)
class AttemptOpening:
    """Where a program reaches what it may reach."""

    host: str
    port: int

    def address(self, url: str) -> str:
        """The same address as seen through the opening."""
        return urlsplit(url)._replace(scheme="http", netloc=f"{self.host}:{self.port}").geturl()


@asynccontextmanager
async def open_for(*addresses: str) -> AsyncIterator[AttemptOpening]:
    """An opening to these addresses and whatever is below them."""
    from aiohttp import web  # noqa: PLC0415 - only for programs in sandboxes

    allowed = {urlsplit(address).path: address for address in addresses}

    async def pass_on(request: web.Request) -> web.StreamResponse:
        target = _target(request.raw_path, allowed)
        if target is None:
            return web.json_response({"error": {"message": "this address is not open to the program"}}, status=403)
        headers = _passed_on(request.headers)
        body = await request.read()
        async with (
            loop_client()
            .open_session()
            .request(
                request.method,
                target,
                data=body,
                headers=headers,
                timeout=aiohttp.ClientTimeout(),
                allow_redirects=False,
            ) as reply
        ):
            response = web.StreamResponse(status=reply.status, headers=_passed_on(reply.headers))
            await response.prepare(request)
            async for piece in reply.content.iter_any():
                await response.write(piece)
            return response

    app = web.Application(client_max_size=_LARGEST_BODY)
    app.router.add_route("*", "/{path:.*}", pass_on)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, LOOPBACK, 0).start()
        yield AttemptOpening(LOOPBACK, int(runner.addresses[0][1]))
    finally:
        await runner.cleanup()


def _target(raw_path: str, allowed: Mapping[str, str]) -> str | None:
    """Where a request goes; None if it may not go there. A path with ``..`` could lead elsewhere, however written."""
    path = raw_path.partition("?")[0]
    if ".." in path.replace("%2e", ".").replace("%2E", "."):
        return None
    for beginning, address in allowed.items():
        rest = raw_path[len(beginning) :]
        if raw_path.startswith(beginning) and (not rest or rest[0] in "/?"):
            return address + rest
    return None


def _passed_on(headers: Mapping[str, Any]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _OF_ONE_CONNECTION}
