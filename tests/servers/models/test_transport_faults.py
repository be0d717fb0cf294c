"""Endpoints whose transport is broken: TLS that fails, connections that are closed by half, machines that vanish."""

import asyncio
import contextlib
import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from nemo_gym.servers.http.connections import close_http_client
from nemo_gym.servers.models.endpoint import Endpoint, Upstream
from nemo_gym.servers.models.failures import ModelAddress, ModelCallError

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


async def error_of(url: str, **options: float) -> ModelCallError:
    endpoint = Endpoint(base_url=url, api_key="sk-secret", **{"max_retries": 1, **options})  # type: ignore[arg-type]
    upstream = Upstream(endpoint, ModelAddress(url, "m", secrets=["sk-secret"]), max_concurrent_requests=None)
    try:
        with pytest.raises(ModelCallError) as caught:
            await upstream.post("/responses", b"{}")
    finally:
        await close_http_client()
    assert "sk-secret" not in str(caught.value)
    return caught.value


@contextlib.asynccontextmanager
async def serving(serve: Serve, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(guarded, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run([*made, "-keyout", f"{path}.key", "-out", f"{path}.crt"], check=True, capture_output=True)
    path.write_bytes(Path(f"{path}.key").read_bytes() + Path(f"{path}.crt").read_bytes())
    return path


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(OK)
    await writer.drain()


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)


async def test_a_certificate_that_nobody_trusts_is_refused_at_once(certificate: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    async with serving(answer, context) as port:
        error = await error_of(f"https://127.0.0.1:{port}/v1", max_retries=8)
    assert error.kind == "unreachable"
    assert "the certificate of the server is not trusted: self-signed certificate" in str(error)
    assert "attempts" not in str(error)


@pytest.mark.parametrize("serve", [answer, hang_up])
async def test_a_server_that_does_not_speak_tls_is_said_not_to(serve: Serve) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        if serve is answer:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await writer.drain()

    async with serving(plain) as port:
        error = await error_of(f"https://127.0.0.1:{port}/v1")
    assert error.kind == "unreachable"
    assert ("does not speak TLS" in str(error)) == (serve is answer)


async def test_plain_http_to_a_port_with_tls_is_an_error(certificate: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # the handshake that fails at the server
    async with serving(answer, context) as port:
        error = await error_of(f"http://127.0.0.1:{port}/v1")
    assert error.kind == "unreachable"


@pytest.mark.parametrize("sent", [b"", OK[:20], OK[:-1]], ids=["nothing", "half a head", "half a body"])
async def test_a_connection_that_the_endpoint_closes_by_half_is_a_lost_reply(sent: bytes) -> None:
    done = asyncio.Event()

    async def close_half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(sent)
        writer.write_eof()  # and goes on listening
        await done.wait()

    async with serving(close_half) as port:
        error = await error_of(f"http://127.0.0.1:{port}/v1")
        done.set()
    assert error.kind == ("connection" if sent == OK[:-1] else "unreachable")


# Addresses of this process alone: a test that was killed leaves its network behind.
NEAR, FAR = (f"198.19.{os.getpid() % 16384 // 64}.{os.getpid() % 64 * 4 + end}" for end in (1, 2))


@pytest.fixture
def far_machine() -> Iterator[Callable[[], None]]:
    """A machine at ``FAR`` with a server on port 8000; calling this cuts its cable, without a word on the line."""
    ip, name = shutil.which("ip"), f"far{os.getpid() % 10000}"
    if ip is None:
        pytest.skip("there is no ip command")

    def run(*command: str) -> None:
        subprocess.run([str(ip), *command], check=True, capture_output=True)

    with contextlib.ExitStack() as stack:
        try:
            run("netns", "add", name)
            stack.callback(run, "netns", "delete", name)
            run("link", "add", f"{name}a", "type", "veth", "peer", "name", f"{name}b", "netns", name)
            stack.callback(run, "link", "delete", f"{name}a")  # at once, while a namespace is deleted later
            run("addr", "add", f"{NEAR}/30", "dev", f"{name}a")
            run("link", "set", f"{name}a", "up")
            run("-n", name, "addr", "add", f"{FAR}/30", "dev", f"{name}b")
            run("-n", name, "link", "set", f"{name}b", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"networks can't be made here: {error.stderr.decode().strip()}")
        script = (
            "import asyncio\n"
            f"OK = {OK!r}\n"
            "async def serve(reader, writer):\n"
            "    while await reader.readuntil(b'{}'):\n"
            "        writer.write(OK)\n"
            "async def main():\n"
            f"    server = await asyncio.start_server(serve, '{FAR}', 8000)\n"
            "    print('ready', flush=True)\n"
            "    await server.serve_forever()\n"
            "asyncio.run(main())\n"
        )
        command = [ip, "netns", "exec", name, sys.executable, "-c", script]
        process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
        stack.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield lambda: run("-n", name, "link", "set", f"{name}b", "down")


async def test_a_machine_that_vanishes_leaves_a_half_open_connection_and_a_timeout(
    far_machine: Callable[[], None],
) -> None:
    url = f"http://{FAR}:8000/v1"
    patient, hasty = (
        Upstream(
            Endpoint(base_url=url, api_key="", request_timeout_s=seconds, connect_timeout_s=seconds, max_retries=8),
            ModelAddress(url, "m"),
            max_concurrent_requests=None,
        )
        for seconds in (30.0, 1.0)
    )
    try:
        assert await patient.post("/responses", b"{}") == b"{}"
        await asyncio.to_thread(far_machine)
        with pytest.raises(ModelCallError) as caught:
            await hasty.post("/responses", b"{}")  # on the connection that seems to be open
        assert caught.value.kind == "timeout"
    finally:
        await close_http_client()
