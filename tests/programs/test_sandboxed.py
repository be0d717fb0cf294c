"""What a program reaches from its sandbox: its model and its tools, and nothing of the machine or its neighbours."""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from nemo_gym.servers.http.connections import close_http_client
from nemo_gym.servers.opening import open_for
from tests.programs.scripted_endpoint import ScriptedEndpoint, scripted_endpoint
from tests.programs.test_program_agent import ASK, collect

__all__ = ["collect"]  # the fixture

PROBE = """
import socket, pathlib
ask()
open("hello.txt", "w").write("hello")
gateway = os.environ["OPENAI_BASE_URL"].split("/")[2]
def reached(host, port):
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True
def status(path):
    try:
        return urllib.request.urlopen(f"http://{gateway}{path}", timeout=5).status
    except urllib.error.HTTPError as error:
        return error.code
def seen(path):
    try:
        return os.listdir(path)
    except OSError:
        return []
own = "/" + os.environ["OPENAI_BASE_URL"].split("/", 3)[3]
print(json.dumps({
    "addresses": [a for a in json.loads(sys.argv[1])["addresses"] if reached(*a)],
    "routes": {path: status(path) for path in (
        "/v1/models", "/", "/ng-attempts", own + "/../../v1/models", "/ng-rollout/0-0.g0/v1/models")},
    "folders": {path: seen(path) for path in json.loads(sys.argv[1])["folders"]},
}))
"""


@pytest.fixture
def endpoint() -> Iterator[ScriptedEndpoint]:
    with scripted_endpoint() as served:
        yield served


@pytest.mark.usefixtures("namespaces")
def test_only_its_own_model_is_reached_from_the_sandbox(
    collect: Callable[..., dict[str, Any]], endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden/test_hidden.py").write_text("assert True\n")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = ["127.0.0.1", listening.getsockname()[1]], ["127.0.0.1", endpoint.url.split(":")[2].split("/")[0]]
        others = [[f"10.0.0.{number}", 80] for number in range(1, 7)] + [["169.254.169.254", 80], ["8.8.8.8", 53]]
        ports = [["127.0.0.1", port] for port in range(11000, 11010)]
        asked = {
            "addresses": [*ours, *others, *ports],
            "folders": [str(Path.home()), str(tmp_path), str(tmp_path / "hidden"), str(Path(__file__).parent)],
        }
        row = collect(
            ASK + "import urllib.error\n" + PROBE,
            where="sandbox",
            final_answer="json:",
            tasks=[{"prompt": json.dumps(asked)}],
        )
    found = json.loads(row["said"])
    assert row["reward"] == 1.0
    assert found["addresses"] == []
    interpreter = Path(sys.executable).resolve().parts  # may lie in a home, whose other content stays hidden
    assert {name for names in found["folders"].values() for name in names} <= {*interpreter}
    assert set(found["routes"].values()) == {403}


# ---- the opening -----------------------------------------------------------------------------------------------------
@asynccontextmanager
async def server() -> AsyncIterator[str]:
    async def reply(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Path": request.path_qs})
        await response.prepare(request)
        for part in (b"one", b"two", await request.read()):
            await response.write(part)
            await asyncio.sleep(0)
        return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", reply)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_the_opening_passes_on_what_is_below_its_addresses() -> None:
    async with (
        server() as url,
        open_for(f"{url}/ng-rollout/1-0.gabc", f"{url}/mcp/token") as opening,
        ClientSession() as http,
    ):
        inside = opening.address(f"{url}/ng-rollout/1-0.gabc")
        async with http.post(f"{inside}/v1/chat?x=1", data=b"three") as reply:
            assert (reply.status, await reply.read()) == (200, b"onetwothree")
            assert reply.headers["X-Path"] == "/ng-rollout/1-0.gabc/v1/chat?x=1"
        async with http.post(opening.address(f"{url}/mcp/token"), data=b"") as reply:
            assert reply.status == 200
    await close_http_client()


@pytest.mark.parametrize(
    "path",
    ["/", "/v1/models", "/ng-rollout/1-0.gabcd/v1", "/ng-rollout/1-0.gabc/../../verify", "/mcp", "/mcp/token2",
     "/ng-rollout/1-0.gabc/%2e%2e/%2e%2e/verify", "//ng-rollout/1-0.gabc/v1"],
)  # fmt: skip
async def test_the_opening_leads_nowhere_else(path: str) -> None:
    async with server() as url, open_for(f"{url}/ng-rollout/1-0.gabc", f"{url}/mcp/token") as opening:
        reader, writer = await asyncio.open_connection(opening.host, opening.port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        assert (await reader.readline()).split()[1] == b"403"
        writer.close()
