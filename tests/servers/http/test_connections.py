"""Connections of the client: reuse, limits, deadlines, cancellation, on both kinds of event loop."""

import asyncio
import contextlib
import gc
import gzip
import inspect
import socket
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp
import pytest
import uvloop

from nemo_gym.errors import ConfigError
from nemo_gym.servers.http.client import Retry, request
from nemo_gym.servers.http.connections import (
    HttpSettings,
    close_http_client,
    get_global_aiohttp_client,
    settings_of,
    use_http_settings,
)
from nemo_gym.servers.http.request_errors import RequestFailedError, RequestTimeoutError
from nemo_gym.servers.http.retry import RetryPolicy
from tests.conftest import MockModel
from tests.servers.http.raw_server import RawServer, playing, replies, reply

# Older releases of aiohttp may open a connection too many, and let a null byte into a header.
OLDER = tuple(int(part) for part in aiohttp.__version__.split(".")[:2]) < (3, 14)
ONCE = RetryPolicy(attempts=1)
ONCE_EACH = RetryPolicy(attempts=1, resend=False)
QUICK = RetryPolicy(attempts=2, base_s=0.001)


LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test, once on each kind of event loop."""

    def run(new_loop: Callable[[], asyncio.AbstractEventLoop], **given: Any) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(test(**given))

    asked_for = inspect.signature(test)
    first = inspect.Parameter("new_loop", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    run.__signature__ = asked_for.replace(parameters=[first, *asked_for.parameters.values()])  # type: ignore[attr-defined]
    marked: Callable[..., None] = LOOPS(run)
    return marked


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(2000):
        if holds():
            return
        await asyncio.sleep(0.002)
    raise TimeoutError


async def silence(server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read a request and never reply."""
    await server.read_request(reader)
    await reader.readexactly(1)


@on_both_loops
async def test_one_connection_serves_one_request_after_the_other() -> None:
    async with playing(replies(reply())) as server:
        for _ in range(20):
            assert (await request("POST", server.url, json={})).status == 200
        assert (server.connections, len(server.heads)) == (1, 20)


@on_both_loops
async def test_an_idle_connection_is_closed_in_time() -> None:
    async with playing(replies(reply())) as server:
        get_global_aiohttp_client(HttpSettings(keepalive_s=0.02))
        await asyncio.gather(*(request("GET", server.url) for _ in range(3)))
        await until(lambda: server.lost == 3)
        await request("GET", server.url)
        assert server.connections == 4


@on_both_loops
async def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    async with playing(replies(reply(), hang_up=True)) as server:
        for _ in range(3):
            await request("POST", server.url, _internal=True)
            await asyncio.sleep(0.02)
        assert (server.connections, len(server.heads)) == (3, 3)


async def closes_on_the_second(server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request and close when the next one comes."""
    await server.read_request(reader)
    writer.write(reply())
    await server.read_request(reader)


@pytest.mark.parametrize(("method", "policy"), [("POST", QUICK), ("GET", ONCE_EACH), ("GET", ONCE), ("PUT", ONCE_EACH)])
@on_both_loops
async def test_a_request_on_a_connection_just_closed_is_sent_again(method: str, policy: RetryPolicy) -> None:
    retries: list[Retry] = []
    async with playing(closes_on_the_second) as server:
        for _ in range(2):
            got = await request(method, server.url, data=b"x", retries=policy, on_retry=retries.append)
            assert got.status == 200
        # What does the same however often it arrives is sent again at once.
        assert (server.connections, len(server.heads), len(retries)) == (2, 3, method == "POST")


@on_both_loops
async def test_what_must_not_be_sent_twice_is_not() -> None:
    async with playing(closes_on_the_second) as server:
        await request("POST", server.url, retries=ONCE_EACH)
        with pytest.raises(RequestFailedError, match="closed the connection without a reply"):
            await request("POST", server.url, retries=ONCE_EACH)
        assert (server.connections, len(server.heads)) == (1, 2)


@on_both_loops
async def test_a_new_connection_that_is_closed_is_an_attempt_that_failed() -> None:
    async with playing(replies(b"", hang_up=True)) as server:
        with pytest.raises(RequestFailedError, match="without a reply"):
            await request("POST", server.url, retries=ONCE)
        assert server.connections == 1


@pytest.mark.parametrize("extra", [b"x", b"HTTP/1.1 200 OK\r\n", reply(b"not yours")], ids=["a byte", "half", "whole"])
@pytest.mark.parametrize("later", [True, False])
@on_both_loops
async def test_what_a_server_sends_unasked_is_never_an_answer(extra: bytes, later: bool) -> None:
    async def play(server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read_request(reader)
        writer.write(reply(b"1") if later else reply(b"1") + extra)
        if later:
            await asyncio.sleep(0.005)
            writer.write(extra)
        server.step.set()
        await reader.readexactly(1)

    async with playing(play) as server:
        seen = set()
        for _ in range(3):
            with contextlib.suppress(RequestFailedError):
                seen.add(await (await request("POST", server.url, retries=ONCE_EACH)).read())
                await until(server.step.is_set)
                server.step.clear()
                await asyncio.sleep(0.005)
        assert seen <= {b"1"}
        assert seen or extra == b"x"


@on_both_loops
async def test_a_cancelled_request_closes_its_connection_and_frees_its_place() -> None:
    async def first_silent(server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await (silence if server.connections == 1 else replies(reply()))(server, reader, writer)

    async with playing(first_silent) as server:
        get_global_aiohttp_client(HttpSettings(connections_per_host=1))
        hanging = asyncio.create_task(request("POST", server.url))
        waiting = [asyncio.create_task(request("POST", server.url)) for _ in range(3)]
        await until(lambda: len(server.heads) == 1)
        waiting[0].cancel()
        hanging.cancel()
        assert [got.status for got in await asyncio.gather(*waiting[1:])] == [200, 200]
        assert hanging.cancelled()
        assert waiting[0].cancelled()
        await until(lambda: server.lost == 1)


@on_both_loops
async def test_places_are_given_in_the_order_of_arrival() -> None:
    async with playing(replies(reply())) as server:
        get_global_aiohttp_client(HttpSettings(connections_per_host=1))
        await asyncio.gather(*(request("GET", f"{server.url}/{number}") for number in range(30)))
        assert [head.split()[1] for head in server.heads] == [f"/v1/thing/{number}" for number in range(30)]
        assert server.connections == 1


@on_both_loops
async def test_the_limit_for_all_hosts_holds() -> None:
    open_now, most = 0, 0

    async def count(server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_now, most
        while True:
            await server.read_request(reader)
            open_now += 1
            most = max(most, open_now)
            await asyncio.sleep(0.002)
            open_now -= 1
            writer.write(reply())

    async with playing(count) as one, playing(count) as other:
        get_global_aiohttp_client(HttpSettings(connections=3, connections_per_host=2))
        await asyncio.gather(*(request("GET", server.url) for server in (one, other) * 20))
        assert most <= 3
        assert OLDER or max(one.connections, other.connections) <= 2


@on_both_loops
async def test_waiting_for_a_place_counts_as_waiting_for_the_answer() -> None:
    async with playing(silence) as server:
        get_global_aiohttp_client(HttpSettings(connections_per_host=1))
        calls = (request("POST", server.url, timeout=0.05, retries=ONCE) for _ in range(3))
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(error) for error in found] == [RequestTimeoutError] * 3
        assert all("no reply within 0.05 s" in str(error) for error in found)
        await until(lambda: server.lost == server.connections)


@on_both_loops
async def test_an_answer_that_drips_in_has_a_deadline_all_the_same() -> None:
    async def drip(server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.005)

    async with playing(drip) as server:
        with pytest.raises(RequestTimeoutError, match=r"no reply within 0\.05 s"):
            await request("POST", server.url, timeout=0.05)


@on_both_loops
async def test_every_request_of_a_connection_has_its_own_deadline() -> None:
    async def three_times(server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(3):
            await server.read_request(reader)
            writer.write(reply())
        await silence(server, reader, writer)

    async with playing(three_times) as server:
        assert (await request("POST", server.url, timeout=30)).status == 200
        assert (await request("POST", server.url, timeout=0.05)).status == 200
        await asyncio.sleep(0.06)  # the deadline of a request that is over harms nobody
        assert (await request("POST", server.url, timeout=30)).status == 200
        with pytest.raises(RequestTimeoutError):  # and the long one before does not hold up the short one
            await request("POST", server.url, timeout=0.05)
        assert server.connections == 1


@on_both_loops
async def test_a_connection_that_does_not_come_about_is_named_as_that() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        timeout = aiohttp.ClientTimeout(total=30, sock_connect=0.05)
        with pytest.raises(RequestTimeoutError, match=r"no connection within 0\.05 s") as error:
            await request("POST", f"http://127.0.0.1:{address[1]}/", timeout=timeout, retries=ONCE)
        assert isinstance(error.value.__cause__, aiohttp.ConnectionTimeoutError)
        await close_http_client()
        for filler in fillers:
            filler.close()


@on_both_loops
async def test_a_name_that_nobody_knows_cannot_be_connected_to() -> None:
    calls = (request("POST", "http://nowhere.invalid/", retries=ONCE) for _ in range(3))
    found = await asyncio.gather(*calls, return_exceptions=True)
    await close_http_client()
    assert all(str(error).startswith("POST http://nowhere.invalid/: cannot connect: ") for error in found)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
@on_both_loops
async def test_names_and_addresses_of_both_kinds_are_reached(host: str) -> None:
    try:
        async with playing(replies(reply()), host="127.0.0.1" if host == "localhost" else host) as server:
            url = server.url.replace("127.0.0.1", "localhost") if host == "localhost" else server.url
            assert (await request("GET", url)).status == 200
            shown = f"[{host}]" if ":" in host else host
            assert f"Host: {shown}:{server.port}\r\n" in server.heads[0]
    except OSError:
        pytest.skip("no IPv6 here")


@on_both_loops
async def test_a_large_body_arrives_whole_and_keeps_its_connection() -> None:
    body = b"0123456789" * 500_000
    async with playing(replies(reply())) as server:
        for _ in range(2):
            await request("POST", server.url, data=body)
        assert server.bodies == [body, body]
        assert OLDER or server.connections == 1


@on_both_loops
async def test_an_answer_that_does_not_wait_for_the_body_is_an_answer() -> None:
    async def refuse(server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply(b"too large", "413 Content Too Large"))
        await writer.drain()
        with pytest.raises(asyncio.IncompleteReadError):
            await reader.readexactly(2**40)

    async with playing(refuse) as server:
        for number in (1, 2):
            got = await request("POST", server.url, data=b"x" * 30_000_000, retries=ONCE)
            assert (got.status, await got.read()) == (413, b"too large")
            assert server.connections == number


@pytest.mark.parametrize(
    "script",
    [
        reply(b"x" * 2000),
        reply(b"x" * 2_000_000),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 2000 + b"0\r\n\r\n",
        reply(gzip.compress(b"x" * 2000), headers="Content-Encoding: gzip\r\n"),
    ],
    ids=["long", "very long", "in chunks", "packed"],  # not the bytes: those of gzip have the time in them
)
@on_both_loops
async def test_an_answer_can_be_limited_in_size(script: bytes) -> None:
    async with playing(replies(script)) as server:
        get_global_aiohttp_client(HttpSettings(max_reply_bytes=1999))
        with pytest.raises(RequestFailedError, match="more than 1999 bytes"):
            await request("POST", server.url)
        assert len(server.heads) == 1
        await close_http_client()
        get_global_aiohttp_client(HttpSettings(max_reply_bytes=2_000_000))
        assert (await request("POST", server.url)).status == 200


@on_both_loops
async def test_an_answer_without_a_length_can_be_limited_too() -> None:
    async with playing(replies(b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 2000, hang_up=True)) as server:
        get_global_aiohttp_client(HttpSettings(max_reply_bytes=1999))
        with pytest.raises(RequestFailedError, match="more than 1999 bytes"):
            await request("POST", server.url)


@pytest.mark.parametrize("bad", ["a\r\nX-Evil: 1", "a\nb", "a\rb", *([] if OLDER else ["a\0b"])])
@on_both_loops
async def test_nothing_can_end_a_line(bad: str) -> None:
    async with playing(replies(reply())) as server:
        for headers in ({"X-A": bad}, {bad: "x"}):
            with pytest.raises(ValueError, match="header"):
                await request("POST", server.url, headers=headers)
        with pytest.raises(ValueError, match="header"):
            await request("POST", server.url, cookies={"a": bad})
        for same_origin in (True, False):
            with pytest.raises(RequestFailedError, match="not a valid address") as error:
                await request("POST", server.url + bad, same_origin=same_origin)
            assert isinstance(error.value.__cause__, aiohttp.InvalidURL)
        assert server.heads == []


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("HEAD", {}),
        ("get", {}),
        ("POST", {"data": "text"}),
        ("POST", {"data": {"form": "1"}}),
        ("GET", {"params": {"a": "1"}}),
        ("GET", {"allow_redirects": False}),
        ("GET", {"timeout": aiohttp.ClientTimeout(sock_read=5)}),
        ("GET", {"timeout": aiohttp.ClientTimeout(connect=5)}),
        ("GET", {"headers": {"Accept-Encoding": "gzip"}}),
        ("GET", {"headers": {"Connection": "close"}}),
    ],
)
@on_both_loops
async def test_the_options_of_aiohttp_are_taken(method: str, options: dict[str, Any]) -> None:
    async with playing(replies(reply(b"{}" if method != "HEAD" else b""))) as server:
        assert (await request(method, server.url, **options)).status == 200
        assert server.heads[0].startswith(method.upper())


@on_both_loops
async def test_closing_the_client_ends_what_is_under_way() -> None:
    async with playing(silence) as server:
        calls = [asyncio.create_task(request("POST", server.url, retries=ONCE)) for _ in range(3)]
        await until(lambda: len(server.heads) == 3)
        await close_http_client()
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(error) for error in found] == [RequestFailedError] * 3
        assert all("the client was closed" in str(error) for error in found)
        assert all(isinstance(error.__cause__, aiohttp.ClientConnectionError) for error in found)
        await until(lambda: server.lost == 3)
    gc.collect()


@on_both_loops
async def test_two_thousand_requests_at_once_are_all_answered(mock_model: MockModel) -> None:
    mock_model.set(latency="0.2")

    async def ask(number: int) -> int:
        content = {"input": str(number), "model": "m"}
        return (await request("POST", f"{mock_model.base_url}/responses", json=content)).status

    assert set(await asyncio.gather(*(ask(number) for number in range(2000)))) == {200}
    await close_http_client()


@LOOPS
def test_nothing_is_left_open_when_the_loop_ends(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def use() -> None:
        async with playing(replies(reply())) as server:
            await asyncio.gather(*(request("GET", server.url) for _ in range(5)))
            cancelled = asyncio.create_task(request("GET", server.url.replace("127.0.0.1", "localhost")))
            await asyncio.sleep(0)
            cancelled.cancel()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            with asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(use())
            gc.collect()


async def test_the_limits_of_a_configuration_are_those_of_the_client() -> None:
    async with playing(replies(reply())) as server:
        use_http_settings(settings_of({"global_aiohttp_connector_limit_per_host": 2}))
        await asyncio.gather(*(request("GET", server.url) for _ in range(8)))

        assert server.connections == 2
        assert len(server.heads) == 8


def test_limits_are_shared_by_the_workers_of_a_server_and_0_means_none() -> None:
    config = {"global_aiohttp_connector_limit": 10, "global_aiohttp_connector_limit_per_host": 0}
    assert settings_of(config, workers=4) == HttpSettings(connections=3, connections_per_host=0)
    assert settings_of({}) == HttpSettings()


@pytest.mark.parametrize("limit", [-1, "many", 1.5, True])
def test_a_limit_that_is_not_a_number_of_connections_is_refused(limit: Any) -> None:
    with pytest.raises(ConfigError, match="global_aiohttp_connector_limit is"):
        settings_of({"global_aiohttp_connector_limit": limit})


async def test_a_loop_has_one_session_and_gets_a_new_one_after_closing() -> None:
    first = get_global_aiohttp_client()

    assert get_global_aiohttp_client() is first
    await close_http_client()
    assert first.closed
    assert get_global_aiohttp_client() is not first
    await close_http_client()
    await close_http_client()


def test_every_loop_has_its_own_session_and_leaves_nothing_open() -> None:
    async def use() -> int:
        async with playing(replies(reply())) as server:
            await request("GET", server.url)
            return id(get_global_aiohttp_client())

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            asyncio.run(use())
        gc.collect()
