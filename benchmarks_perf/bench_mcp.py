"""What a tool call over MCP costs beside a direct one: in memory, and with the official client over HTTP.

Process time of everything involved, the best of several rounds.

    python benchmarks_perf/bench_mcp.py
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI
from mcp import ClientSession
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client
from pydantic import BaseModel

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.direct.handlers import LocalServer
from nemo_gym.servers.listen import bind, listening
from nemo_gym.servers.loader import build_app

ROUNDS = 5


class Pair(BaseModel):
    a: int
    b: int


class Adder(SimpleResourcesServer):
    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/add")(self.add)
        return app

    async def add(self, body: Pair) -> dict[str, int]:
        return {"sum": body.a + body.b}

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        return BaseVerifyResponse(**body.model_dump(), reward=1.0)


def adder(port: int) -> LocalServer:
    client = ServerClient.detached()
    config = BaseResourcesServerConfig(
        host="127.0.0.1", port=port, entrypoint="", name="adder", expose_tools_over_mcp=True
    )
    server = Adder(config=config, server_client=client)
    return LocalServer(build_app(server), label="adder", base_url=f"http://127.0.0.1:{port}")


async def report(what: str, call: Callable[[], Awaitable[Any]], *, calls: int) -> None:
    best = float("inf")
    for _ in range(ROUNDS):
        before = time.process_time()
        for _ in range(calls):
            await call()
        best = min(best, (time.process_time() - before) / calls)
    print(f"{what:<40} {best * 1000:8.3f} ms")


async def main() -> None:
    arguments = {"a": 1, "b": 2}
    with bind("127.0.0.1", 0, owner="bench") as listener:
        server = adder(listener.getsockname()[1])
        seeded = await server.call("POST", "/seed_session", json={})
        token = (await seeded.json())["mcp"]["headers"]
        headers = {"accept": "application/json, text/event-stream", **token}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add", "arguments": arguments}}
        await report(
            "direct call", lambda: server.call("POST", "/add", json=arguments, cookies=seeded.cookies), calls=5000
        )
        await report("MCP in memory", lambda: server.call("POST", "/mcp", json=message, headers=headers), calls=300)
        async with (
            listening({listener.getsockname()[1]: server}, [listener]),
            create_mcp_http_client(headers=token) as http,
            streamable_http_client(f"{server.base_url}/mcp", http_client=http) as streams,
            ClientSession(streams[0], streams[1]) as session,
        ):
            await session.initialize()
            await report("MCP over HTTP, both ends", lambda: session.call_tool("add", arguments), calls=100)


if __name__ == "__main__":
    asyncio.run(main())
