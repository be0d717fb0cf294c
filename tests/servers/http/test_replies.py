"""Every kind of reply that a server may send, good and broken, and what callers see of it."""

import asyncio
import contextlib
import errno
import gzip
import zlib
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.servers.http.client import request
from nemo_gym.servers.http.connections import close_http_client
from nemo_gym.servers.http.request_errors import RedirectRefusedError, RequestFailedError
from nemo_gym.servers.http.retry import RetryPolicy
from tests.servers.http.raw_server import in_pieces, playing, replies, reply

ONCE = RetryPolicy(attempts=1)
# What older releases of aiohttp read in another way: nobody sends the name of an encoding in capitals to a client that
# asks for none, and they accept heads that later ones refuse.
VERSION = tuple(int(part) for part in aiohttp.__version__.split(".")[:3])
NEWER = {"gzip in capitals and chunks"} if VERSION < (3, 14, 4) else set()
if VERSION < (3, 14):
    NEWER |= {"a null byte", "too many headers", "a head without end"}


def chunked(*parts: bytes, trailer: bytes = b"", headers: bytes = b"") -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n" + headers + b"\r\n" + body + b"0\r\n" + trailer + b"\r\n"
    )


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


KEPT = {
    "a length": reply(b'{"a": 1}'),
    "no body": reply(b""),
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "no content with a length": b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n",
    "not modified with a length": b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n",
    "chunks": chunked(b"ab", b"c" * 5000),
    "no chunks": chunked(),
    "a trailer": chunked(b"ab", trailer=b"X-Sum: 1\r\n"),
    "a chunk extension": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nab\r\n0\r\n\r\n",
    "spaces after a chunk size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2  \r\nab\r\n0\r\n\r\n",
    "one interim reply": b"HTTP/1.1 100 Continue\r\n\r\n" + reply(b"x"),
    "interim replys with headers": b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 2 + reply(b"x"),
    "an error": reply(b'{"error": 1}', "500 Internal Server Error"),
    "an unknown status": reply(b"x", "599 Whatever It Is"),
    "no reason": reply(b"x", "200 "),
    "not even a space for a reason": reply(b"x", "200"),
    "bare line feeds": b"HTTP/1.1 200 OK\nContent-Length: 2\n\nab",
    "text of another encoding": reply(b"gr\xfc\xdf", headers="").replace(
        b"application/json", b"text/plain; charset=latin-1"
    ),
    "a type with a suffix": reply(b'{"a": 1}').replace(b"application/json", b"application/problem+json; charset=utf-8"),
    "not a number": reply(b'{"a": NaN}'),
    "not JSON": reply(b"<html>").replace(b"application/json", b"text/html"),
    "cookies": reply(b"", headers="Set-Cookie: a=1; Path=/; HttpOnly\r\nset-cookie: b=2; Max-Age=5\r\n"),
    "a cookie of JSON": reply(b"", headers='Set-Cookie: a={"b":1}; Path=/\r\n'),
    "a header twice": reply(b"", headers="X-A: 1\r\nx-a: 2\r\n"),
    "an empty header": reply(b"", headers="X-A:\r\nX-B:   padded \t \r\n"),
    "headers beyond ASCII": reply(b"", headers="X-A: grün\r\n"),
    "bytes beyond Unicode": reply(b"").replace(b"\r\n\r\n", b"\r\nX-A: gr\xfcn\r\n\r\n"),
    "gzip": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s"
    % (len(gzip.compress(b"abc" * 99)), gzip.compress(b"abc" * 99)),
    "gzip in capitals and chunks": chunked(gzip.compress(b"abc" * 99), headers=b"content-encoding: GZIP\r\n"),
    "deflate": chunked(zlib.compress(b"abc" * 99), headers=b"Content-Encoding: deflate\r\n"),
    "deflate without its header": chunked(raw_deflate(b"abc" * 99), headers=b"Content-Encoding: deflate\r\n"),
    "an encoding that is none": chunked(b"abc", headers=b"Content-Encoding: identity\r\n"),
    "packed nothing": reply(b"", headers="Content-Encoding: gzip\r\n"),
    "a large body": reply(b"x" * 700_000),
    "a redirect without a place": reply(b"x", "302 Found"),
    "a header of the largest size": reply(b"", headers=f"X-A: {'x' * 8000}\r\n"),
    "keep-alive of an old server": b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nab",
}
CLOSED = {
    "until the end": b"HTTP/1.1 200 OK\r\n\r\nall of it",
    "nothing until the end": b"HTTP/1.1 200 OK\r\n\r\n",
    "an old server": b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nall of it",
    "an old server with a length": b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nab",
    "close with a length": reply(b"x", headers="Connection: close\r\n"),
    "close with chunks": chunked(b"x", headers=b"Connection: close\r\n"),
    "close without a length": b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nall of it",
    "gzip until the end": b"HTTP/1.0 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(b"abc"),
    "coded in no chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\nall of it",
}
BROKEN = {
    "nothing": b"",
    "half a status line": b"HTTP/1.1 20",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "half a body": reply(b"x" * 99)[:-9],
    "half a chunk": chunked(b"x" * 99)[:-30],
    "no last chunk": chunked(b"x" * 99)[:-5],
    "only an interim reply": b"HTTP/1.1 100 Continue\r\n\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "not gzip": reply(b"no gzip at all", headers="Content-Encoding: gzip\r\n"),
    "another version": b"HTTP/3.7 200 OK\r\nContent-Length: 0\r\n\r\n",
    "a bad status": b"HTTP/1.1 2x0 OK\r\nContent-Length: 0\r\n\r\n",
    "a bad length": b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
    "a negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "a length and chunks": chunked(b"a", headers=b"Content-Length: 1\r\n"),
    "a bad chunk size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nab\r\n0\r\n\r\n",
    "a header without a name": reply(b"", headers=": x\r\n"),
    "a name with a space": reply(b"", headers="X A: x\r\n"),
    "a null byte": reply(b"", headers="X-A: a\0b\r\n"),
    "a header too large": reply(b"", headers=f"X-A: {'x' * 9000}\r\n"),
    "too many headers": reply(b"", headers="".join(f"X-{i}: 1\r\n" for i in range(200))),
    "a head without end": b"HTTP/1.1 200 OK\r\n" + b"X-A: 1\r\n" * 40_000,
}

# What is not named here is 200, and empty.
STATUSES = {
    "no content": 204,
    "no content with a length": 204,
    "not modified with a length": 304,
    "an error": 500,
    "an unknown status": 599,
    "a redirect without a place": 302,
}
BODIES = {
    "a length": b'{"a": 1}',
    "chunks": b"ab" + b"c" * 5000,
    "a trailer": b"ab",
    "a chunk extension": b"ab",
    "spaces after a chunk size": b"ab",
    "one interim reply": b"x",
    "interim replys with headers": b"x",
    "an error": b'{"error": 1}',
    "an unknown status": b"x",
    "no reason": b"x",
    "not even a space for a reason": b"x",
    "bare line feeds": b"ab",
    "text of another encoding": b"gr\xfc\xdf",
    "a type with a suffix": b'{"a": 1}',
    "not a number": b'{"a": NaN}',
    "not JSON": b"<html>",
    "gzip": b"abc" * 99,
    "gzip in capitals and chunks": b"abc" * 99,
    "deflate": b"abc" * 99,
    "deflate without its header": b"abc" * 99,
    "an encoding that is none": b"abc",
    "a large body": b"x" * 700_000,
    "a redirect without a place": b"x",
    "keep-alive of an old server": b"ab",
    "until the end": b"all of it",
    "an old server": b"all of it",
    "an old server with a length": b"ab",
    "close with a length": b"x",
    "close with chunks": b"x",
    "close without a length": b"all of it",
    "gzip until the end": b"abc",
    "coded in no chunks": b"all of it",
}
NO_REPLY = ("nothing", "half a status line", "half a head", "only an interim reply")
BROKEN_OFF = ("half a body", "half a chunk", "no last chunk", "not gzip")


LONG = {name for name, script in (KEPT | BROKEN).items() if len(script) > 2000}


def words_for(broken: str) -> str:
    if broken in NO_REPLY:
        return "the server closed the connection without a reply"
    return "the reply broke off" if broken in BROKEN_OFF else "not a valid HTTP reply: "


async def seen(url: str, **options: Any) -> tuple[int, bytes]:
    got = await request("POST", url, data=b"{}", retries=ONCE, **options)
    return got.status, await got.read()


@pytest.mark.parametrize("same_origin", [True, False])
@pytest.mark.parametrize("name", [name for name in KEPT if name not in NEWER])
async def test_good_answers_are_read_whole_and_keep_the_connection(name: str, same_origin: bool) -> None:
    async with playing(replies(KEPT[name])) as server:
        expected = STATUSES.get(name, 200), BODIES.get(name, b"")
        assert [await seen(server.url, same_origin=same_origin), await seen(server.url, same_origin=same_origin)] == [
            expected,
            expected,
        ]
        assert server.connections == 1


@pytest.mark.parametrize("same_origin", [True, False])
@pytest.mark.parametrize("name", CLOSED)
async def test_answers_that_end_with_the_connection_are_read_whole(name: str, same_origin: bool) -> None:
    async with playing(replies(CLOSED[name], hang_up=True)) as server:
        expected = STATUSES.get(name, 200), BODIES.get(name, b"")
        assert [await seen(server.url, same_origin=same_origin), await seen(server.url, same_origin=same_origin)] == [
            expected,
            expected,
        ]
        assert server.connections == 2


@pytest.mark.parametrize("same_origin", [True, False])
@pytest.mark.parametrize("name", [name for name in BROKEN if name not in NEWER])
async def test_broken_answers_are_errors_that_say_how(name: str, same_origin: bool) -> None:
    async with playing(replies(BROKEN[name], hang_up=True)) as server:
        with pytest.raises(RequestFailedError, match=words_for(name)) as error:
            await seen(server.url, same_origin=same_origin)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name", [name for name, script in (KEPT | BROKEN).items() if len(script) < 2000 and name not in NEWER]
)
async def test_an_answer_does_not_depend_on_how_it_is_cut(name: str) -> None:
    script = (KEPT | BROKEN)[name]
    async with playing(in_pieces(script, 7)) as server:
        if name in KEPT:
            assert await seen(server.url) == (STATUSES.get(name, 200), BODIES.get(name, b""))
        else:
            with pytest.raises(RequestFailedError, match=words_for(name)):
                await seen(server.url)


@pytest.mark.parametrize("same_origin", [True, False])
async def test_an_answer_has_what_callers_expect_of_aiohttp(same_origin: bool) -> None:
    headers = "Set-Cookie: a=1; Path=/; HttpOnly\r\nset-cookie: b=2\r\nX-A: 1\r\nx-a: 2\r\nX-B:  padded\r\n"
    async with playing(replies(reply(b'{"a": 1}', "201 Made", headers))) as server:
        got = await request("POST", server.url + "?q=1#part", data=b"{}", same_origin=same_origin)

        assert (got.status, got.reason, got.ok, got.method) == (201, "Made", True, "POST")
        assert (str(got.url), got.host) == (server.url + "?q=1", "127.0.0.1")
        assert got.headers.getall("X-A") == ["1", "2"]
        assert got.headers["x-b"] == "padded"
        assert {name: morsel.value for name, morsel in got.cookies.items()} == {"a": "1", "b": "2"}
        assert got.cookies == {"a": "1", "b": "2"}
        assert (got.cookies["a"]["path"], got.cookies["b"]["Path"], got.cookies["a"][0]) == ("/", "", "1")
        assert (got.content_type, got.get_encoding()) == ("application/json", "utf-8")
        assert await got.read() == b'{"a": 1}'
        assert await got.text() == '{"a": 1}'
        assert await got.json() == {"a": 1}
        got.raise_for_status()
        async with got:
            pass


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("nothing", aiohttp.ServerDisconnectedError),
        ("half a body", aiohttp.ClientPayloadError),
        ("not gzip", aiohttp.ClientPayloadError),
        ("another protocol", aiohttp.ClientError),
    ],
)
async def test_the_cause_of_a_failure_is_an_error_of_aiohttp(name: str, cause: type[Exception]) -> None:
    async with playing(replies(BROKEN[name], hang_up=True)) as server:
        with pytest.raises(aiohttp.ClientConnectionError) as error:
            await request("POST", server.url, data=b"{}", retries=ONCE)
        assert isinstance(error.value, RequestFailedError)
        assert isinstance(error.value.__cause__, cause)


async def test_the_cause_of_a_refused_connection_is_that_of_the_system() -> None:
    async with playing(replies(reply())) as server:
        url = server.url
    with pytest.raises(RequestFailedError, match="cannot connect: Connection refused") as error:
        await request("POST", url, retries=ONCE)
    await close_http_client()
    assert isinstance(error.value.__cause__, aiohttp.ClientOSError)
    assert error.value.__cause__.errno == errno.ECONNREFUSED


def moves(*statuses: int, to: str) -> Iterator[bytes]:
    for status in statuses:
        yield reply(b"moved", f"{status} Moved", f"Location: {to}\r\n")
    yield reply(b"arrived")


SECRETS = {"Authorization": "Bearer x", "Cookie": "a=1", "X-Other": "2"}


@pytest.mark.parametrize("same_origin", [True, False])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
async def test_redirects_within_an_origin_are_followed(method: str, status: int, same_origin: bool) -> None:
    async with playing(replies(*moves(status, to="/there?x=1"))) as server:
        got = await request(method, server.url, data=b"body", headers=SECRETS, same_origin=same_origin)
        assert (await got.read(), got.url.path) == (b"arrived", "/there")
        keeps = status in (307, 308) or (status in (301, 302) and method != "POST")
        assert server.heads[1].split()[0] == (method if keeps else "GET")
        assert server.bodies[1] == (b"body" if keeps else b"")
        assert "Bearer x" in server.heads[1]


async def test_a_redirect_to_another_origin_leaves_the_login_behind() -> None:
    async with playing(replies(reply(b"arrived"))) as other, playing(replies(*moves(307, to=other.url))) as server:
        got = await request("POST", server.url, data=b"body", headers=SECRETS)
        assert await got.read() == b"arrived"
        assert "Bearer x" not in other.heads[0]
        assert "a=1" not in other.heads[0]
        assert "X-Other: 2" in other.heads[0]
        assert "Bearer x" in server.heads[0]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_request_with_keys_is_not_redirected_to_another_origin(status: int) -> None:
    async with playing(replies(reply(b"arrived"))) as other:
        async with playing(replies(*moves(status, to=other.url + "?key=secret"))) as server:
            with pytest.raises(RequestFailedError, match="redirects to another origin") as error:
                await request("POST", server.url, data=b"body", headers={"x-api-key": "k"}, same_origin=True)
            assert isinstance(error.value.__cause__, RedirectRefusedError)
            assert other.url in str(error.value)
            assert "secret" not in str(error.value)
            assert len(server.heads) == 1
        assert other.heads == []


async def test_redirects_without_end_end() -> None:
    async with playing(replies(reply(b"", "307 Moved", "Location: /again\r\n"))) as server:
        for same_origin in (True, False):
            with pytest.raises(RequestFailedError, match="too many redirects"):
                await request("GET", server.url, same_origin=same_origin)
        assert len(server.heads) == 2 * (1 + 10)


@pytest.mark.parametrize("target", ["http://[/", "http://a:b:c/"])
async def test_a_redirect_to_nowhere_is_an_error(target: str) -> None:
    async with playing(replies(next(moves(307, to=target)))) as server:
        for same_origin in (True, False):
            with pytest.raises(RequestFailedError, match="not a valid address"):
                await request("GET", server.url, same_origin=same_origin, retries=ONCE)


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_whatever_comes_is_an_answer_or_an_error_of_ours(data: st.DataObject) -> None:
    script = bytearray(data.draw(st.sampled_from([*KEPT.values(), *CLOSED.values(), *BROKEN.values()]))[:3000])
    for _ in range(data.draw(st.integers(0, 5))):
        if script:
            script[data.draw(st.integers(0, len(script) - 1))] = data.draw(st.integers(0, 255))

    async def ask() -> None:
        async with playing(replies(bytes(script), hang_up=True)) as server:
            with contextlib.suppress(RequestFailedError):
                await seen(server.url, timeout=20)

    asyncio.run(ask())
