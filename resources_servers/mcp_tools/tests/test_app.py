import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.direct.handlers import LocalServer
from nemo_gym.servers.listen import bind
from nemo_gym.servers.loader import build_app
from resources_servers.mcp_tools.app import MCPToolsConfig, MCPToolsServer, concludes
from resources_servers.mcp_tools.connection import MCPServerAddress, read_result

pytest.importorskip("mcp", reason="needs the extra mcp")

DATA = Path(__file__).parents[1] / "data"
EXAMPLE = ["python", "-m", "resources_servers.mcp_tools.example_server"]
CLIENT = ServerClient.detached()


@asynccontextmanager
async def environment(**settings: Any) -> AsyncIterator[LocalServer]:
    """The environment, with the lifespan that a Gym gives it."""
    config = MCPToolsConfig(host="127.0.0.1", port=1, entrypoint="", name="mcp_tools", **settings)
    server = MCPToolsServer(config=config, server_client=CLIENT)
    app = build_app(server)
    async with app.router.lifespan_context(app):
        yield LocalServer(app, label="mcp_tools", base_url="http://127.0.0.1:1")


async def call(server: LocalServer, name: str, cookies: Any, **arguments: Any) -> tuple[int, str]:
    reply = await server.call("POST", f"/{name}", json=arguments, cookies=cookies)
    return reply.status, (await reply.read()).decode()


async def verify(server: LocalServer, cookies: Any, text: str, expected: str) -> Any:
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }
    response = {
        "id": "resp_1",
        "created_at": 0.0,
        "model": "scripted",
        "object": "response",
        "output": [message],
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
    }
    row = {"responses_create_params": {"input": "hi"}, "expected_answer": expected, "response": response}
    return await server.call("POST", "/verify", json=row, cookies=cookies)


async def test_a_program_is_asked_and_its_errors_are_passed_on() -> None:
    async with environment(mcp_server={"command": EXAMPLE}) as server:
        seeded = await server.call("POST", "/seed_session", json={})
        cookies = seeded.cookies
        assert await call(server, "take", cookies, item="apples", number=5) == (200, "took 5 apples")
        assert await call(server, "count", cookies, item="apples") == (200, "37")
        status, text = await call(server, "take", cookies, item="candles", number=8)
        assert status == 400
        assert "there are not 8 candles" in json.loads(text)["error"]
        status, text = await call(server, "take", cookies, item="candles", number="many")
        assert status == 400
        assert "number" in json.loads(text)["error"]
        status, text = await call(server, "no_such_tool", cookies)
        assert status == 400
        assert "no_such_tool" in json.loads(text)["error"]
        verified = await verify(server, cookies, "The answer is 37.", "37")
        scored = await verified.json()
        assert (verified.status, scored["reward"], scored["tool_errors"]) == (200, 1.0, 3)


async def test_rows_have_the_schemas_of_the_server() -> None:
    async with environment(mcp_server={"command": EXAMPLE}) as server:
        listed = await (await server.call("GET", "/tools")).json()
    rows = [json.loads(line) for line in (DATA / "example.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) == 5
    names = [(tool["name"], sorted(tool["parameters"]["properties"])) for tool in listed]
    assert names == [("count", ["item"]), ("take", ["item", "number"])]
    for row in rows:
        tools = row["responses_create_params"]["tools"]
        assert [(tool["name"], sorted(tool["parameters"]["properties"])) for tool in tools] == names


@pytest.fixture(scope="module")
def warehouse_url() -> Iterator[str]:
    """The example server over HTTP, in a process of its own."""
    with bind("127.0.0.1", 0, owner="test") as listener:
        port = listener.getsockname()[1]
    words = [sys.executable, *EXAMPLE[1:], "--port", str(port)]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            asyncio.run(listens(port, process))
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.kill()


async def listens(port: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            await writer.wait_closed()
            return
    pytest.fail("the example server ended")


async def test_rollouts_at_once_have_a_warehouse_each(warehouse_url: str) -> None:
    async with environment(mcp_server={"url": warehouse_url}, max_open_sessions=64) as server:

        async def rollout(number: int) -> str:
            cookies = (await server.call("POST", "/seed_session", json={})).cookies
            await call(server, "take", cookies, item="bolts", number=number)
            left = (await call(server, "count", cookies, item="bolts"))[1]
            assert (await verify(server, cookies, left, left)).status == 200
            return left

        assert await asyncio.gather(*map(rollout, range(64))) == [str(1200 - number) for number in range(64)]


async def test_a_program_that_cannot_start_fails_the_rollout_and_says_why() -> None:
    broken = [sys.executable, "-c", "import sys; sys.exit('no database')"]
    async with environment(mcp_server={"command": broken}) as server:
        cookies = (await server.call("POST", "/seed_session", json={})).cookies
        status, text = await call(server, "count", cookies, item="apples")
        assert status == 500
        assert "it wrote: no database" in text
        verified = await verify(server, cookies, "42", "42")
        assert verified.status == 500
        assert "no database" in (await verified.read()).decode()


async def test_a_rollout_without_tool_calls_opens_no_session() -> None:
    async with environment(mcp_server={"command": ["no_such_program"]}) as server:
        cookies = (await server.call("POST", "/seed_session", json={})).cookies
        scored = await (await verify(server, cookies, "I do not know.", "42")).json()
        assert (scored["reward"], scored["tool_calls"], scored["tool_errors"]) == (0.0, 0, 0)


async def test_a_session_that_nobody_uses_ends_and_says_so(warehouse_url: str) -> None:
    async with environment(mcp_server={"url": warehouse_url}, session_idle_s=0.5) as server:
        cookies = (await server.call("POST", "/seed_session", json={})).cookies
        assert (await call(server, "count", cookies, item="apples"))[0] == 200
        await asyncio.gather(*(task for task in asyncio.all_tasks() if "_live" in repr(task)))
        status, text = await call(server, "count", cookies, item="apples")
        assert status == 500
        assert "idle" in text


@pytest.mark.parametrize("address", [{}, {"command": ["x"], "url": "http://h/mcp"}, {"url": "http://h", "port": 1}])
def test_an_address_is_a_command_or_a_url(address: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        MCPServerAddress.model_validate(address)


@pytest.mark.parametrize(
    ("text", "expected", "is_right"),
    [
        ("The answer is 37.", "37", True),
        ("37", "37", True),
        ("it is Oslo!", "oslo", True),
        ("Yes, it is Oslo, of course.", "Oslo", True),
        ("It is in Portland, OR.", "Portland, OR", True),
        ("Oslo or Bergen", "Oslo", False),
        ("Paris, Rome, Oslo, Bergen", "Oslo", False),
        ("Oslo/Bergen", "Oslo", False),
        ("The answer is 137.", "37", False),
        ("The answer is 37.5", "37", False),
        ("0.37", "37", False),
        ("", "37", False),
        ("30 + 7 = 37", "37", True),
        ("The answer is 30 + 37", "37", False),
        (r"30 \times 37", "37", False),
        ("30 37", "37", False),
        ("37 million", "37", False),
    ],
)
def test_the_expected_answer_has_to_stand_alone(text: str, expected: str, is_right: bool) -> None:
    assert concludes(text, expected) is is_right


def test_parts_that_are_not_text_become_json() -> None:
    image = {"type": "image", "data": "AA==", "mimeType": "image/png"}
    assert read_result({"content": [{"type": "text", "text": "a"}, image]}).text == f"a\n{json.dumps(image)}"
    assert read_result({"content": [], "structuredContent": {"n": 1}}).text == '{"n": 1}'
