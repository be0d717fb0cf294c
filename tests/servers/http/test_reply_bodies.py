"""Replies that are too long: refused, freed at once, and never more in memory than the budget allows."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.servers.http.client import request, stream
from nemo_gym.servers.http.connections import HttpSettings, close_http_client, settings_of, use_http_settings
from nemo_gym.servers.http.reply_bodies import UNCOUNTED_BYTES, ReplyBudget
from nemo_gym.servers.http.request_errors import RequestFailedError
from tests.conftest import MockModel
from tests.servers.http.raw_server import RawServer, playing, replies, reply

ROOT = Path(__file__).parents[3]
OLDER = tuple(int(part) for part in aiohttp.__version__.split(".")[:2]) < (3, 14)
BOMBS = r"""
import asyncio, json, re, sys
from pathlib import Path
from nemo_gym.servers.models.endpoint import Endpoint, Upstream
from nemo_gym.servers.models.failures import ModelAddress, ModelCallError

async def main(base_url, at_once, each):
    endpoint, address = Endpoint(base_url=base_url, api_key=""), ModelAddress(base_url, "mock")
    upstream = Upstream(endpoint, address, max_concurrent_requests=None)
    kept = []
    async def one():
        for _ in range(each):
            try:
                await upstream.post("/responses", b"{}")
            except ModelCallError as error:
                kept.append(error)  # as whoever retries keeps it, with all that it refers to
    await asyncio.gather(*(one() for _ in range(at_once)))
    # Not ru_maxrss, which a process inherits from whoever started it.
    peak = int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) // 1024
    print(json.dumps({"peak_mb": peak, "kinds": [error.kind for error in kept]}))

asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
"""


@pytest.mark.skipif(OLDER, reason="older releases of aiohttp decompress all that has arrived at once")
@pytest.mark.parametrize("kind", ["gzip", "deflate", "endless"])
def test_eight_bombs_at_once_do_not_fill_the_memory(kind: str, mock_model: MockModel) -> None:
    mock_model.set(faults=f"{kind}:1")
    command = [sys.executable, "-c", BOMBS, mock_model.base_url, "8", "2"]
    found = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    assert found["kinds"] == ["invalid_response"] * 16
    assert found["peak_mb"] < 500


async def test_a_reply_that_declares_too_much_is_refused_unread() -> None:
    async def promise(server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5000000000\r\n\r\n{")
        assert await reader.read() == b""  # the client hangs up, although nothing more has come
        server.bodies.append(b"gone")

    async with playing(promise) as server:
        with pytest.raises(RequestFailedError, match="more than 67108864 bytes"):
            await request("POST", server.url)
        while not server.bodies:  # noqa: ASYNC110 - the test has a time limit
            await asyncio.sleep(0.01)
        await close_http_client()


async def test_an_error_of_a_stream_is_limited_too() -> None:
    head = b"HTTP/1.1 500 Oops\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with playing(replies(head + b"7d0\r\n" + b"x" * 2000 + b"\r\n")) as server:
        use_http_settings(HttpSettings(max_reply_bytes=1999))
        with pytest.raises(RequestFailedError, match="more than 1999 bytes"):
            async with stream("POST", server.url):
                pass


async def test_long_replies_share_a_budget_and_all_of_them_arrive() -> None:
    body = b"x" * (2 * UNCOUNTED_BYTES)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with playing(replies(head + b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n")) as server:
        use_http_settings(HttpSettings(max_reply_bytes=len(body)))
        found = await asyncio.gather(*(request("POST", server.url) for _ in range(20)))
        assert [len(await one.read()) for one in found] == [len(body)] * 20


async def test_a_server_of_the_gym_may_send_more() -> None:
    async with playing(replies(reply(b"x" * 3000))) as server:
        use_http_settings(HttpSettings(max_reply_bytes=1999))
        assert (await request("POST", server.url, _internal=True)).status == 200


async def test_a_budget_is_shared_in_the_order_of_asking() -> None:
    budget, order = ReplyBudget(10), list[str]()
    done = asyncio.Event()

    async def reader(name: str, size: int) -> None:
        async with budget.holding(size):
            order.append(name)
            await done.wait()

    first = asyncio.create_task(reader("half", 5))
    large = asyncio.create_task(reader("more than all", 99))
    small = asyncio.create_task(reader("small, but later", 1))
    await asyncio.sleep(0.01)
    assert order == ["half"]
    large.cancel()
    await asyncio.sleep(0.01)
    assert order == ["half", "small, but later"]
    done.set()
    await asyncio.gather(first, small, return_exceptions=True)
    async with asyncio.timeout(5), budget.holding(10):
        assert True


async def test_a_reader_that_leaves_in_the_moment_of_its_turn_gives_its_share_back() -> None:
    budget = ReplyBudget(10)
    holding = budget.holding(10)
    await holding.__aenter__()
    waiting = asyncio.create_task(budget.holding(10).__aenter__())
    await asyncio.sleep(0)
    await holding.__aexit__(None, None, None)  # this serves the waiting one
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(5), budget.holding(10):
        assert True


def test_the_limit_comes_from_the_configuration() -> None:
    assert settings_of({}).max_reply_bytes == 64 * 2**20
    assert settings_of({"max_answer_bytes": 5}).max_reply_bytes == 5
    assert settings_of({"max_answer_bytes": 0}).max_reply_bytes > 2**50
    with pytest.raises(ConfigError, match="max_answer_bytes is -1"):
        settings_of({"max_answer_bytes": -1})
