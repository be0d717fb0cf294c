"""Requests to an address that is used over and over behave like any other."""

import asyncio
from typing import Any

import aiohttp
import pytest

from nemo_gym.servers.http import connections
from nemo_gym.servers.http.client import RequestSettings, Timeout, request
from nemo_gym.servers.http.connections import HttpSettings, close_http_client, get_global_aiohttp_client
from nemo_gym.servers.http.posting import LONGEST_BODY, PostReply
from nemo_gym.servers.http.request_errors import RequestFailedError, RequestTimeoutError
from nemo_gym.servers.http.retry import RetryPolicy
from tests.servers.http.raw_server import RawServer, answers, playing, reply

ONCE = RetryPolicy(attempts=1)
KEY = {"Content-Type": "application/json", "Authorization": "Bearer secret"}


def settings(**options: Any) -> RequestSettings:
    return RequestSettings(**{"headers": KEY, "same_origin": True, "retries": ONCE, **options})


async def test_what_is_sent_is_what_aiohttp_sends() -> None:
    async with playing(answers(reply())) as server:
        posted = settings()
        for body in (b"{}", b"longer" * 20_000, b""):
            await request("POST", server.url + "/v1/chat?x=%20y", data=body, settings=posted)
            await request("POST", server.url + "/v1/chat?x=%20y", data=body, headers=KEY)
        assert server.connections == 1
        assert server.bodies[::2] == server.bodies[1::2]
        for one, other in zip(server.heads[::2], server.heads[1::2], strict=True):
            assert one.splitlines()[0] == other.splitlines()[0]
            assert sorted(one.splitlines()) == sorted(other.splitlines())


async def test_one_way_is_taken_or_the_other() -> None:
    async with playing(answers(reply())) as server:
        login = server.url.replace("://", "://me:word@")
        for url, body, options, is_posted in (
            (server.url, b"{}", {}, True),
            (server.url, b"x" * LONGEST_BODY, {}, True),
            (server.url, b"x" * (LONGEST_BODY + 1), {}, False),
            (login, b"{}", {"headers": {}}, False),
            (server.url, b"{}", {"same_origin": False}, False),
            (server.url, b"{}", {"same_origin": False, "reused": True}, True),
            (server.url, b"{}", {"chunked": True}, False),
            (server.url, b"{}", {"headers": {"Connection": "close"}}, False),
        ):
            answer = await request("POST", url, data=body, settings=settings(**options))
            assert isinstance(answer, PostReply) == is_posted
        assert sum("Authorization: Basic" in head for head in server.heads) == 1


@pytest.mark.parametrize(
    ("further", "is_posted"),
    [
        ({"traceparent": "1"}, True),
        ({"Cookie": "a=b; c=d", "X-Name": "grün"}, True),
        ({"content-type": "text/plain"}, False),  # the settings have another one
        ({"Connection": "close"}, False),
    ],
)
async def test_a_request_may_have_further_headers(further: dict[str, str], is_posted: bool) -> None:
    async with playing(answers(reply(b"x"))) as server:
        answer = await request("POST", server.url, data=b"{}", settings=settings(), headers=further)
        assert isinstance(answer, PostReply) == is_posted
        await request("POST", server.url, data=b"{}", headers={**KEY, **further})
        assert sorted(server.heads[0].lower().splitlines()) == sorted(server.heads[1].lower().splitlines())
        assert (await answer.read(), server.bodies[0]) == (b"x", server.bodies[1])


async def test_a_client_that_was_closed_and_opened_again_is_used() -> None:
    async with playing(answers(reply())) as server:
        posted = settings()
        for _ in range(2):
            assert (await request("POST", server.url, data=b"{}", settings=posted)).status == 200
            await close_http_client()
        assert server.connections == 2


async def test_an_answer_can_be_limited_in_size() -> None:
    async with playing(answers(reply(b"x" * 2000))) as server:
        get_global_aiohttp_client(HttpSettings(max_answer_bytes=1999))
        with pytest.raises(RequestFailedError, match="more than 1999 bytes"):
            await request("POST", server.url, data=b"{}", settings=settings())


async def test_a_cancelled_request_closes_its_connection_and_frees_its_place() -> None:
    arrived = asyncio.Event()

    async def hang(server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read_request(reader)
        if server.connections == 1:
            arrived.set()
            await reader.read()  # until the client hangs up
            return
        writer.write(reply())
        await writer.drain()

    async with playing(hang) as server:
        get_global_aiohttp_client(HttpSettings(connections_per_host=1))
        posted = settings()
        waiting = asyncio.create_task(request("POST", server.url, data=b"{}", settings=posted))
        await asyncio.wait_for(arrived.wait(), 10)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await request("POST", server.url, data=b"{}", settings=posted)).status == 200
        assert server.connections == 2


async def test_time_limits_hold() -> None:
    async with playing(answers(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")) as server:
        with pytest.raises(RequestTimeoutError, match=r"no answer within 0\.2 s"):
            await request("POST", server.url, data=b"{}", settings=settings(timeout=Timeout(total=0.2)))


async def test_a_request_is_repeated_as_its_policy_says() -> None:
    async with playing(answers(reply(b"", "503 Busy"), reply(b"", "503 Busy"), reply(b"there"))) as server:
        patient = settings(retries=RetryPolicy(attempts=3, base_s=0.001, statuses=frozenset({503})))
        answer = await request("POST", server.url, data=b"{}", settings=patient)
        assert (await answer.read(), len(server.heads)) == (b"there", 3)
    with pytest.raises(RequestFailedError, match="cannot connect: Connection refused"):
        await request("POST", server.url, data=b"{}", settings=settings())
    await close_http_client()


@pytest.mark.parametrize("bad", ["a\r\nX-Evil: 1", "a\nb", "a\rb", "a\0b"])
async def test_nothing_can_end_a_line(bad: str) -> None:
    async with playing(answers(reply())) as server:
        with pytest.raises(ValueError, match="detected in headers"):
            await request("POST", server.url, data=b"{}", settings=settings(headers={"X": bad}))
        with pytest.raises(ValueError, match="detected in headers"):
            await request("POST", server.url, data=b"{}", settings=settings(), headers={"X": bad})
        assert server.heads == []


async def test_keys_do_not_follow_a_redirect_to_another_origin() -> None:
    """Inside a Gym such redirects are followed; what only the first server may know stays behind, as with aiohttp."""
    async with playing(answers(reply(b"there"))) as other:
        moved = reply(b"", "307 Temporary Redirect", headers=f"Location: {other.url}/next\r\n")
        async with playing(answers(moved)) as server:
            inside = settings(same_origin=False, reused=True, _internal=True)
            answer = await request("POST", server.url, data=b"body", settings=inside, headers={"Cookie": "a=b"})
            assert (await answer.read(), other.bodies) == (b"there", [b"body"])
            assert "Authorization: Bearer secret" in server.heads[0]
            assert not {"authorization:", "cookie:"} & set(other.heads[0].lower().split())


async def test_an_aiohttp_that_is_not_known_is_used_the_documented_way(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections.aiohttp, "__version__", "3.99.0")
    connections.knows_aiohttp.cache_clear()
    try:
        async with playing(answers(reply(b"x"))) as server:
            for _ in range(2):
                answer = await request("POST", server.url, data=b"{}", settings=settings())
                assert (await answer.read(), type(answer)) == (b"x", aiohttp.ClientResponse)
            assert type(get_global_aiohttp_client().connector) is aiohttp.TCPConnector
        [warning] = caplog.messages
        assert warning.startswith("aiohttp 3.99.0 is installed")
    finally:
        connections.knows_aiohttp.cache_clear()
