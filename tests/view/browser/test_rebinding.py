"""A page of a foreign site whose name points to this machine by now (DNS rebinding), against the servers of a Gym."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any

import pytest

from nemo_gym.config.parse import parse_config
from nemo_gym.servers.gym import host_gym
from tests.conftest import MockModel
from tests.ports import free_port

ENVIRONMENT = "resources_servers/example_single_tool_call"
CONFIGS = (
    f"{ENVIRONMENT}/configs/example_single_tool_call.yaml,responses_api_models/openai_model/configs/openai_model.yaml"
)
PAGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 12\r\nConnection: close\r\n\r\n<p>hello</p>"
# What such a page would try: its own origin by now, other ports by loopback's names, with and without a preflight.
ATTACK = """(async () => {
    const found = [];
    const ways = ["application/json", "text/plain"].flatMap((type) => [[type, "cors"], [type, "no-cors"]]);
    for (const url of URLS) for (const [type, mode] of ways) {
        try {
            const headers = {"Content-Type": type};
            const reply = await fetch(url, {method: "POST", mode, headers, body: '{"input": "hi"}'});
            found.push(reply.status);
        } catch (error) { found.push(0); }
    }
    return found;
})()"""


@asynccontextmanager
async def foreign_site(port: int) -> AsyncIterator[None]:
    connections: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
        writer.write(PAGE)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        yield
    finally:
        server.close()
        for connection in connections:  # a browser opens some ahead of its requests, which would still be answered here
            connection.close()
        await server.wait_closed()


async def test_a_page_that_rebinds_its_name_makes_no_model_call(
    mock_model: MockModel, load_beside: Callable[[str], ModuleType]
) -> None:
    chromium = load_beside("chromium")
    executable = chromium.find_chromium()
    if executable is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    port, head = free_port(), free_port()
    policy = [f"+policy_base_url={mock_model.base_url}", "+policy_api_key=none", "+policy_model_name=mock"]
    places = [
        f"++policy_model.responses_api_models.openai_model.port={port}",
        f"+head_server={{host: 127.0.0.1, port: {head}}}",
    ]
    config = parse_config([f"+config_paths=[{CONFIGS}]", *policy, *places]).config
    with chromium.running(executable, "--host-resolver-rules=MAP evil.example 127.0.0.1") as browser:
        page: Any = browser.open()
        async with foreign_site(port):
            await asyncio.to_thread(page.go, f"http://evil.example:{port}/")
        async with host_gym(config, head=True):
            paths = [f"{host}:{port}/v1/responses" for host in ("evil.example", "127.0.0.1", "localhost")]
            urls = [f"http://{path}" for path in [*paths, f"evil.example:{head}/global_config_dict_yaml"]]
            found = await asyncio.to_thread(page.evaluate, ATTACK.replace("URLS", json.dumps(urls)))
    # Its own origin says that it does not answer; what goes to others fails, or can't be read and was refused.
    assert found[:4] == [421] * 4
    assert set(found[4:]) <= {0, 421}
    assert mock_model.stats()["model_calls"] == 0
