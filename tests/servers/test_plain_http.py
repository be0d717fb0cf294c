"""The plain client against aiohttp: the same bytes from the server give the same answer or the same error."""

import errno
import gzip
import zlib
from typing import Any

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.servers.http import close_http_client, request
from nemo_gym.servers.http_answer import AnswerReader, RawAnswer
from nemo_gym.servers.http_errors import BadAnswerError, RequestFailedError
from nemo_gym.servers.plain_http import PlainReply
from nemo_gym.servers.retry import RetryPolicy
from tests.servers.raw_server import answers, playing, reply

ONCE = RetryPolicy(attempts=1)
# An option that the plain client leaves to aiohttp, and that changes nothing.
BY_AIOHTTP: dict[str, Any] = {"allow_redirects": True}

VERSION = tuple(int(part) for part in aiohttp.__version__.split(".")[:2])
like_aiohttp = pytest.mark.skipif(VERSION < (3, 14), reason="aiohttp was laxer before")


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
    "one interim answer": b"HTTP/1.1 100 Continue\r\n\r\n" + reply(b"x"),
    "interim answers with headers": b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 2 + reply(b"x"),
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
    "only an interim answer": b"HTTP/1.1 100 Continue\r\n\r\n",
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


async def outcome(url: str, **options: Any) -> Any:
    """All that a caller can see."""
    try:
        answer = await request("POST", url, data=b"{}", retries=ONCE, **options)
    except RequestFailedError as error:
        return type(error), str(error).split(": ")[1]
    try:
        content = await answer.json()
    except (ValueError, aiohttp.ContentTypeError) as error:
        content = type(error).__mro__[-5:]
    cookies = answer.cookies
    return (
        [answer.status, answer.reason, answer.ok, await answer.read(), content, await answer.text(errors="replace")],
        [answer.content_type, answer.charset, answer.method, answer.url, answer.real_url, answer.host],
        [(name.lower(), value) for name, value in answer.headers.items()],
        {name: (morsel.value, {key: said for key, said in morsel.items() if said}) for name, morsel in cookies.items()},
    )


@like_aiohttp
@pytest.mark.parametrize("script", KEPT.values(), ids=KEPT)
async def test_answers_are_those_of_aiohttp_and_keep_the_connection(script: bytes) -> None:
    async with playing(answers(script)) as server:
        plain = [await outcome(server.url), await outcome(server.url)]
        assert server.connections == 1
        assert plain == [await outcome(server.url, **BY_AIOHTTP)] * 2
        assert server.connections == 2


@pytest.mark.parametrize("script", CLOSED.values(), ids=CLOSED)
async def test_answers_that_end_the_connection_are_those_of_aiohttp(script: bytes) -> None:
    async with playing(answers(script, hang_up=True)) as server:
        plain = [await outcome(server.url), await outcome(server.url)]
        assert plain == [await outcome(server.url, **BY_AIOHTTP)] * 2
        assert server.connections == 3


@like_aiohttp
@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN)
async def test_broken_answers_are_the_errors_of_aiohttp(script: bytes) -> None:
    async with playing(answers(script, hang_up=True)) as server:
        plain = await outcome(server.url)
        assert issubclass(plain[0], RequestFailedError)
        assert plain == await outcome(server.url, **BY_AIOHTTP)


@pytest.mark.parametrize("options", [{}, BY_AIOHTTP], ids=["plain", "by aiohttp"])
@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("nothing", aiohttp.ServerDisconnectedError),
        ("half a body", aiohttp.ClientPayloadError),
        ("not gzip", aiohttp.ClientPayloadError),
        ("another protocol", aiohttp.ClientError),
    ],
)
async def test_the_cause_of_a_failure_is_an_error_of_aiohttp(
    name: str, cause: type[Exception], options: dict[str, Any]
) -> None:
    async with playing(answers(BROKEN[name], hang_up=True)) as server:
        with pytest.raises(aiohttp.ClientConnectionError) as error:
            await request("POST", server.url, data=b"{}", retries=ONCE, **options)
        assert isinstance(error.value, RequestFailedError)
        assert isinstance(error.value.__cause__, cause)


@pytest.mark.parametrize("options", [{}, BY_AIOHTTP], ids=["plain", "by aiohttp"])
async def test_the_cause_of_a_refused_connection_is_that_of_the_system(options: dict[str, Any]) -> None:
    async with playing(answers(reply())) as server:
        url = server.url
    with pytest.raises(RequestFailedError, match="cannot connect: Connection refused") as error:
        await request("POST", url, retries=ONCE, **options)
    await close_http_client()
    assert isinstance(error.value.__cause__, aiohttp.ClientOSError)
    assert error.value.__cause__.errno == errno.ECONNREFUSED


async def test_a_packed_answer_that_is_cut_is_an_error() -> None:
    half = reply(gzip.compress(b"abc" * 999)[:-12], headers="Content-Encoding: gzip\r\n")
    async with playing(answers(half)) as server:
        with pytest.raises(RequestFailedError, match="the answer broke off"):
            await request("POST", server.url, retries=ONCE)


@like_aiohttp
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
@pytest.mark.parametrize("elsewhere", [True, False])
async def test_redirects_are_followed_as_aiohttp_does(status: int, method: str, elsewhere: bool) -> None:
    async with playing(answers(reply(b"arrived"))) as other:
        target = other.url if elsewhere else "/there?x=1"
        moved = reply(b"moved", f"{status} Moved", f"Location: {target}\r\n")
        here = answers(moved) if elsewhere else answers(moved, reply(b"arrived"), moved, reply(b"arrived"))
        async with playing(here) as server:
            for options in ({}, BY_AIOHTTP):
                secrets = {"Authorization": "Bearer x", "Cookie": "a=1", "X-Other": "2"}
                answer = await request(method, server.url, data=b"body", headers=secrets, **options)
                assert (await answer.read(), answer.url.path) == (b"arrived", "/v1/thing" if elsewhere else "/there")
            arrived = other if elsewhere else server
            plain, by_aiohttp = arrived.heads[-2 if elsewhere else 1], arrived.heads[-1]
            assert plain == by_aiohttp
            assert arrived.bodies[-1] == arrived.bodies[-2 if elsewhere else 1]


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("GET", {}),
        ("OPTIONS", {}),
        ("POST", {}),
        ("DELETE", {}),
        ("POST", {"data": b""}),
        ("POST", {"data": b"{}", "headers": {"content-type": "application/json", "ACCEPT": "text/plain"}}),
        ("POST", {"data": b"{}", "headers": {"User-Agent": "me", "X-Umlaut": "grün", "X-Empty": ""}}),
        ("PUT", {"json": {"a": [1, None]}, "cookies": {"a": "1", "b": "2"}}),
        ("PATCH", {"json": {}, "headers": {"Authorization": "Bearer x"}}),
    ],
)
@pytest.mark.parametrize("path", ["", "?a=b c&d=%2F#fragment", "/grün/../x y"])
async def test_what_is_sent_is_what_aiohttp_sends(method: str, options: dict[str, Any], path: str) -> None:
    async with playing(answers(reply())) as server:
        await request(method, server.url + path, **options)
        await request(method, server.url + path, **options, **BY_AIOHTTP)

        plain, by_aiohttp = (sorted(head.split("\r\n")) for head in server.heads)
        assert plain == by_aiohttp
        assert server.bodies[0] == server.bodies[1]


def test_an_answer_looks_like_that_of_aiohttp() -> None:
    used = {"status", "ok", "reason", "headers", "cookies", "url", "real_url", "method", "request_info", "content_type"}
    used |= {"charset", "host", "history", "closed", "raw_headers", "get_encoding", "read", "text", "json"}
    used |= {"raise_for_status", "release", "close", "__aenter__", "__aexit__"}
    assert all(hasattr(PlainReply, name) for name in used)


@given(st.data())
@settings(deadline=None, max_examples=300)
def test_an_answer_does_not_depend_on_how_it_is_cut(data: st.DataObject) -> None:
    script = data.draw(st.sampled_from([script for script in KEPT.values() if len(script) < 10_000]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(script)), max_size=30)))
    reader, whole = AnswerReader(), AnswerReader().feed(script)
    assert whole is not None
    for _ in range(2):  # a reader serves one answer after the other
        read = [reader.feed(script[start:end]) for start, end in zip([0, *cuts], [*cuts, len(script)], strict=True)]
        found = [answer for answer in read if answer is not None]
        assert [fields(answer) for answer in found] == [fields(whole)]
        assert reader.keep_alive


@given(st.data())
@settings(deadline=None, max_examples=300)
def test_whatever_comes_is_an_answer_or_an_error_of_ours(data: st.DataObject) -> None:
    script = bytearray(data.draw(st.sampled_from([*KEPT.values(), *CLOSED.values(), *BROKEN.values()]))[:3000])
    for _ in range(data.draw(st.integers(0, 5))):
        if script:
            script[data.draw(st.integers(0, len(script) - 1))] = data.draw(st.integers(0, 255))
    reader = AnswerReader(limit=1000)
    try:
        for start in range(0, len(script), 97):
            reader.feed(bytes(script[start : start + 97]))
        reader.end()
    except BadAnswerError:
        assert not reader.keep_alive or len(script) > 1000


def fields(answer: RawAnswer) -> tuple[Any, ...]:
    return answer.status, answer.reason, answer.headers, answer.body
