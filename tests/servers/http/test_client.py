"""The shared HTTP client, against real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import aiohttp
import pytest
from pydantic import BaseModel

from nemo_gym.servers.http.client import (
    RequestSettings,
    Retry,
    Timeout,
    get_response_json,
    raise_for_status,
    request,
    stream,
)
from nemo_gym.servers.http.connections import close_http_client
from nemo_gym.servers.http.request_errors import RequestFailedError, RequestTimeoutError, UpstreamResponseError
from nemo_gym.servers.http.retry import RetryPolicy
from tests.servers.http.raw_server import RawServer, playing

QUICK = RetryPolicy(attempts=3, base_s=0.001, statuses=frozenset({429, 500}))


def reply(status: int = 200, body: bytes = b"{}", headers: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status} Whatever\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    )
    return head.encode() + body


@dataclass
class Upstream:
    """A server that replies with scripted bytes, the last of them for ever. Empty bytes: hang up."""

    replies: list[bytes]
    delay_s: float = 0.0
    port: int = 0
    heads: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    connections: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/thing"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next(
                    (int(line[15:]) for line in head.lower().split("\r\n") if line[:15] == "content-length:"), 0
                )
                self.heads.append(head)
                self.bodies.append(await reader.readexactly(length))
                script = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
                await asyncio.sleep(self.delay_s)
                writer.write(script)
                await writer.drain()
                if not script or script.endswith(b"<cut>"):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(*replies: bytes, delay_s: float = 0.0) -> AsyncIterator[Upstream]:
    upstream = Upstream(list(replies), delay_s)
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    upstream.port = server.sockets[0].getsockname()[1]
    try:
        yield upstream
    finally:
        await close_http_client()
        server.close()
        await server.wait_closed()


async def free_port() -> int:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return port


async def test_a_json_body_is_sent_once_encoded_and_its_answer_is_read() -> None:
    async with serving(reply(body=b'{"a": 1}')) as upstream:
        response = await request("POST", upstream.url, json={"x": [1, 2]})

        assert (response.status, response.ok) == (200, True)
        assert await get_response_json(response) == {"a": 1}
        assert await response.json() == {"a": 1}
        assert json.loads(upstream.bodies[0]) == {"x": [1, 2]}
        assert "content-type: application/json" in upstream.heads[0].lower()


async def test_of_a_model_only_what_was_set_is_sent() -> None:
    class Thing(BaseModel):
        a: int
        b: int | None = None

    async with serving(reply()) as upstream:
        await request("POST", upstream.url, json=Thing(a=1))

        assert json.loads(upstream.bodies[0]) == {"a": 1}


async def test_cookies_are_sent_and_never_kept() -> None:
    async with serving(reply(headers="Set-Cookie: session=abc; Path=/\r\n")) as upstream:
        response = await request("POST", upstream.url, cookies={"one": "1", "two": "2"})
        await request("POST", upstream.url, cookies=response.cookies)
        await request("POST", upstream.url)

        assert "cookie: one=1; two=2" in upstream.heads[0].lower()
        assert "cookie: session=abc" in upstream.heads[1].lower()
        assert "cookie" not in upstream.heads[2].lower()


async def test_settings_serve_many_requests_which_may_have_further_headers() -> None:
    key = {"Content-Type": "application/json", "Authorization": "Bearer secret"}
    settings = RequestSettings(headers=key, same_origin=True)
    async with serving(reply()) as upstream:
        for further in ({}, {"traceparent": "1"}, {"content-type": "text/plain"}, {"Cookie": "a=b", "X-Name": "grün"}):
            await request("POST", upstream.url, data=b"{}", settings=settings, headers=further)
            await close_http_client()  # settings outlive a client
        heads = [head.lower() for head in upstream.heads]
        assert all("authorization: bearer secret" in head for head in heads)
        assert ["traceparent: 1" in head for head in heads] == [False, True, False, False]
        assert [head.count("content-type: application/json") for head in heads] == [1, 1, 0, 1]
        assert "cookie: a=b" in heads[3]
        with pytest.raises(ValueError, match="header"):
            await request("POST", upstream.url, data=b"{}", settings=settings, headers={"X": "a\r\nX-Evil: 1"})


async def test_connections_are_reused() -> None:
    async with serving(reply()) as upstream:
        for _ in range(5):
            await request("GET", upstream.url)

        assert upstream.connections == 1


async def test_a_large_body_is_sent_whole_without_a_warning_and_again() -> None:
    body = b"x" * (2**20 + 1)
    async with serving(reply(500), reply()) as upstream:
        response = await request("POST", upstream.url, data=body, retries=QUICK)

        assert response.status == 200
        assert upstream.bodies == [body, body]


async def test_a_status_is_returned_and_not_repeated_unless_asked_for() -> None:
    async with serving(reply(500)) as upstream:
        assert (await request("POST", upstream.url)).status == 500
        assert len(upstream.heads) == 1


async def test_statuses_of_the_policy_are_repeated_until_they_change() -> None:
    retries: list[Retry] = []
    async with serving(reply(429, headers="Retry-After: 0\r\n"), reply(500), reply(200)) as upstream:
        response = await request("POST", upstream.url, retries=QUICK, on_retry=retries.append)

        assert response.status == 200
        assert [(retry.attempt, retry.reason.split()[-1]) for retry in retries] == [(1, "429"), (2, "500")]


async def test_the_last_answer_is_returned_when_all_attempts_are_used() -> None:
    async with serving(reply(500)) as upstream:
        assert (await request("POST", upstream.url, retries=QUICK)).status == 500
        assert len(upstream.heads) == 3


async def test_a_refused_connection_names_method_address_and_attempts_and_no_secret() -> None:
    port = await free_port()
    url = f"http://user:secret1@127.0.0.1:{port}/path?key=secret2#secret3"

    with pytest.raises(RequestFailedError) as error:
        await request("POST", url, retries=QUICK, headers={"X": "secret4"})

    await close_http_client()
    assert str(error.value).startswith(f"POST http://127.0.0.1:{port}/path: cannot connect: Connection refused")
    assert "(3 attempts)" in str(error.value)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("internal", [True, False])
async def test_a_refused_connection_is_tried_again_on_every_kind_of_call(internal: bool) -> None:
    retries: list[Retry] = []
    port = await free_port()

    with pytest.raises(RequestFailedError, match="4 attempts"):
        await request(
            "POST",
            f"http://127.0.0.1:{port}",
            _internal=internal,
            retries=RetryPolicy(base_s=0.001, resend=not internal),
            on_retry=retries.append,
        )

    await close_http_client()
    assert len(retries) == 3


@pytest.mark.parametrize("broken", [b"", reply(body=b"{}<cut>")[:-7] + b"<cut>"], ids=["no reply", "half a reply"])
async def test_a_lost_answer_is_asked_for_again_only_where_that_is_harmless(broken: bytes) -> None:
    broken = broken.replace(b"Content-Length: 7", b"Content-Length: 99")
    async with serving(broken, reply()) as upstream:
        assert (await request("POST", upstream.url, retries=QUICK)).status == 200
        assert len(upstream.heads) == 2

    async with serving(broken) as upstream:
        with pytest.raises(RequestFailedError):
            await request("POST", upstream.url, _internal=True)
        assert len(upstream.heads) == 1


async def test_an_answer_that_never_comes_is_a_timeout_and_not_repeated() -> None:
    async with serving(reply(), delay_s=5) as upstream:
        with pytest.raises(RequestTimeoutError, match=r"no reply within 0\.05 s") as error:
            await request("POST", upstream.url, timeout=0.05, retries=QUICK)

        assert isinstance(error.value, TimeoutError)
        assert len(upstream.heads) == 1


async def test_what_is_not_http_is_an_error_that_says_so() -> None:
    async with serving(b"SSH-2.0-OpenSSH_9.6\r\n<cut>") as upstream:
        with pytest.raises(RequestFailedError, match="not a valid HTTP reply"):
            await request("POST", upstream.url)


@pytest.mark.parametrize("url", ["no address", "127.0.0.1:8000/v1", "ftp://127.0.0.1/x", "http://", "http://[::1/"])
@pytest.mark.parametrize("same_origin", [True, False])
async def test_a_bad_address_is_an_error_that_says_so_and_not_tried_again(url: str, same_origin: bool) -> None:
    retries: list[Retry] = []
    with pytest.raises(RequestFailedError, match="not a valid address"):
        await request("POST", url, on_retry=retries.append, same_origin=same_origin)
    assert retries == []
    await close_http_client()


async def test_env_proxies_are_not_used_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with serving(reply()) as upstream:
        assert (await request("GET", upstream.url)).status == 200


async def test_env_proxies_are_used_for_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(reply(body=b'"by proxy"')) as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        response = await request("GET", "http://elsewhere.invalid/x")

        assert await response.json() == "by proxy"
        assert proxy.heads[0].startswith("GET http://elsewhere.invalid/x ")


async def test_an_error_status_carries_its_body_and_hides_the_query() -> None:
    async with serving(reply(502, b'{"error": "x"}', "Retry-After: 3\r\n")) as upstream:
        response = await request("POST", upstream.url + "?key=secret")

        with pytest.raises(UpstreamResponseError) as error:
            await raise_for_status(response)

    assert isinstance(error.value, aiohttp.ClientResponseError)
    assert error.value.status == 502
    assert error.value.response_content == b'{"error": "x"}'
    assert error.value.headers is not None
    assert error.value.headers["Retry-After"] == "3"
    assert "secret" not in str(error.value)


async def test_a_good_status_raises_nothing() -> None:
    async with serving(reply()) as upstream:
        await raise_for_status(await request("POST", upstream.url))


async def lines(server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a line, and the next one whenever the client sent a byte more."""
    await server.read_request(reader)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    for number in range(3):
        writer.write(b"7\r\nline %d\n\r\n" % number)
        await writer.drain()
        await server.step.wait()
        server.step.clear()
    writer.write(b"0\r\n\r\n")
    await reader.readexactly(1)


async def test_a_body_can_be_read_while_it_comes() -> None:
    async with playing(lines) as server:
        seen = []
        async with stream("POST", server.url, json={}) as got:
            assert got.status == 200
            async for part in got.content.iter_any():
                seen.append(part)
                server.step.set()
        assert seen == [b"line 0\n", b"line 1\n", b"line 2\n"]


async def test_leaving_a_body_before_its_end_closes_the_connection() -> None:
    async with playing(lines) as server:
        async with stream("POST", server.url, json={}) as got:
            assert await got.content.readline() == b"line 0\n"
        server.step.set()
        for _ in range(1000):
            if server.lost:
                break
            server.step.set()
            await asyncio.sleep(0.002)
        assert server.lost == 1


async def test_a_body_that_breaks_off_while_it_is_read_is_a_failed_request() -> None:
    async with serving(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nab<cut>") as upstream:

        async def read_all() -> None:
            async with stream("POST", upstream.url) as got:
                await got.content.read()

        with pytest.raises(RequestFailedError, match="the reply broke off"):
            await read_all()
        assert len(upstream.heads) == 1


async def test_what_fails_before_the_body_is_tried_again_when_streaming() -> None:
    async with serving(b"", reply(500), reply(body=b"good")) as upstream:
        async with stream("POST", upstream.url, retries=QUICK) as got:
            assert await got.content.read() == b"good"
        assert len(upstream.heads) == 3


@pytest.mark.parametrize("limits", [0.05, Timeout(total=0.05), aiohttp.ClientTimeout(total=0.05)])
async def test_a_timeout_can_be_given_in_every_form(limits: Any) -> None:
    async with serving(reply(), delay_s=5) as upstream:
        with pytest.raises(TimeoutError, match=r"no reply within 0\.05 s"):
            await request("POST", upstream.url, timeout=limits)


def mock(**methods: Callable[[], Awaitable[Any]]) -> MagicMock:
    return MagicMock(**methods)


@pytest.mark.parametrize(
    "response",
    [
        mock(read=AsyncMock(return_value='{"a": 1}')),
        mock(read=AsyncMock(return_value=b'{"a": 1}')),
        mock(json=AsyncMock(return_value={"a": 1})),
        mock(read=AsyncMock(), json=AsyncMock(return_value={"a": 1})),
        AsyncMock(json=AsyncMock(return_value={"a": 1})),
    ],
    ids=["read gives text", "read gives bytes", "only json", "read gives a mock", "async mock"],
)
async def test_mocked_answers_in_tests_of_environment_authors_are_read(response: Any) -> None:
    """Mocks here on purpose: existing tests of servers and agents use such doubles, and must keep passing."""
    await raise_for_status(response)

    assert await get_response_json(response) == {"a": 1}
