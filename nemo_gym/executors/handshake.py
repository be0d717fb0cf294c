"""Mutual authentication of collector and workers: both sides prove that they know the secret of the run.

    collector                                        worker
        │  challenge: a random number                  │
        │ ────────────────────────────────────────────►│
        │  challenge, proof, who it is                 │
        │ ◄────────────────────────────────────────────│
        │  proof                                       │
        │ ────────────────────────────────────────────►│

A proof is an HMAC over the role, both random numbers and the accompanying data, so it can't be replayed later, on
another connection or in the other direction. Nothing else is sent before the handshake is complete, because the
configuration contains keys. Later traffic is encrypted only if the collector has a certificate; workers trust that
certificate and no other. ``Listener`` accepts the connections of workers, and admits only those that pass.
"""

import asyncio
import contextlib
import hmac
import logging
import secrets
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from nemo_gym.errors import ConfigError
from nemo_gym.executors.frames import MOST_BYTES, Connection, Frame, next_frame
from nemo_gym.io.json import decode, encode

logger = logging.getLogger(__name__)

Frames: TypeAlias = "asyncio.Queue[Frame]"
# The last argument is the worker's description of itself.
Welcome: TypeAlias = Callable[[Connection, Frames, dict[str, Any]], Awaitable[None]]

UNAUTHENTICATED_LIMIT: Final = 16 << 10  # bytes in a frame from a peer that has not authenticated
HANDSHAKE_S: Final = 10.0
CLOSE_S: Final = 1.0
# TCP keep-alive, because the kernel notices a dead peer even while an environment's code blocks the event loop.
_IDLE_S, _INTERVAL_S, _PROBES = 3, 2, 3
_NONCE_BYTES: Final = 16


class RefusedError(Exception):
    """The peer failed to authenticate, or closed the connection."""


@dataclass(frozen=True, slots=True)
class Invitation:
    """What a worker needs in order to connect."""

    host: str
    port: int
    secret: bytes
    number: int  # of the worker
    certificate: str | None = None  # the collector's, if the connection is encrypted


def new_secret() -> bytes:
    """Generate the secret of a run."""
    return secrets.token_bytes(32)


def _proof(secret: bytes, role: str, ours: str, theirs: str, content: bytes = b"") -> str:
    # The separators keep two different sets of parts from giving the same message.
    message = b"\0".join((role.encode(), ours.encode(), theirs.encode(), content))
    return hmac.new(secret, message, "sha256").hexdigest()


async def admit(connection: Connection, frames: Frames, secret: bytes) -> dict[str, Any]:
    """The collector's side of the handshake; returns the worker's description of itself."""
    ours = secrets.token_hex(_NONCE_BYTES)
    connection.send(Frame({"challenge": ours}).encode())
    reply = await _next(frames, connection)
    theirs, given = str(reply.head.get("challenge")), str(reply.head.get("proof"))
    if not hmac.compare_digest(given.encode(), _proof(secret, "worker", theirs, ours, reply.body).encode()):
        raise RefusedError("it does not know the secret of this run")
    connection.send(Frame({"proof": _proof(secret, "collector", ours, theirs)}).encode())
    connection.limit = MOST_BYTES  # only now: a stranger could fill our memory
    about: dict[str, Any] = decode(reply.body)
    return about


async def introduce(connection: Connection, frames: Frames, secret: bytes, about: dict[str, Any]) -> None:
    """The worker's side of the handshake.

    The collector must prove its identity too, because the configuration it sends decides which code the worker runs.
    """
    greeting = await _next(frames, connection)
    ours, theirs, content = secrets.token_hex(_NONCE_BYTES), str(greeting.head.get("challenge")), encode(about)
    connection.send(
        Frame({"challenge": ours, "proof": _proof(secret, "worker", ours, theirs, content)}, content).encode()
    )
    reply = await _next(frames, connection)
    expected = _proof(secret, "collector", theirs, ours)
    if not hmac.compare_digest(str(reply.head.get("proof")).encode(), expected.encode()):
        raise RefusedError("the collector does not know the secret of this run")
    connection.limit = MOST_BYTES


async def _next(frames: Frames, connection: Connection) -> Frame:
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            frame = await next_frame(frames, connection)
    except TimeoutError:
        raise RefusedError(f"it sent nothing for {HANDSHAKE_S:g} s") from None
    if frame is None:
        raise RefusedError("the connection was closed")
    return frame


def keep_alive(connection: Connection) -> None:
    """Have the kernel check every few seconds that the peer is reachable."""
    end = connection.end
    if end is None or end.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"TCP_KEEPIDLE": _IDLE_S, "TCP_KEEPINTVL": _INTERVAL_S, "TCP_KEEPCNT": _PROBES}
    options["TCP_USER_TIMEOUT"] = 1000 * (_IDLE_S + _INTERVAL_S * _PROBES)
    options["TCP_NODELAY"] = 1
    for name, value in options.items():
        if hasattr(socket, name):  # not every system has all of them
            end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class CollectorTls(NamedTuple):
    """The collector's TLS settings, and the certificate by which workers recognise it."""

    context: ssl.SSLContext
    certificate: str


def collector_tls(certificate: str, key: str) -> CollectorTls:
    """Read the collector's certificate and private key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
        text = Path(certificate).read_text("ascii")
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"can't use the certificate {certificate} with the key {key}: {error}",
            hint="openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=gym -keyout key.pem -out cert.pem",
        ) from None
    return CollectorTls(context, text)


def worker_tls(certificate: str) -> ssl.SSLContext:
    """A worker's TLS settings: it trusts only this certificate, regardless of the host name in it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=certificate)
    return context


class Listener:
    """Listens for workers at one address."""

    def __init__(self, secret: bytes, welcome: Welcome) -> None:
        self._secret = secret
        self._welcome = welcome
        self._server: asyncio.Server | None = None
        self._visits: dict[asyncio.Task[None], Connection] = {}

    async def open(self, host: str, port: int = 0, tls: ssl.SSLContext | None = None) -> int:
        """Start listening; returns the port."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._receive, host, port, ssl=tls, backlog=1024)
        except OSError as error:
            raise ConfigError(
                f"the collector can't listen at {host}:{port}: {error.strerror or error}",
                hint="give another +executor_port=…, or start Ray with --node-ip-address=<an address of this machine>",
            ) from None
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Stop listening and close all connections."""
        if self._server is not None:
            # What the event loop has accepted becomes a visit in its next turn, but not if its server is closed by
            # then: asyncio would drop the open socket. So first let nothing more be accepted.
            with contextlib.suppress(NotImplementedError):
                for listening in self._server.sockets:
                    asyncio.get_running_loop().remove_reader(listening.fileno())
            await asyncio.sleep(0)
            self._server.close()
        visits = dict(self._visits)
        for visit in visits:
            visit.cancel()
        await asyncio.gather(*visits, return_exceptions=True)
        for connection in visits.values():
            connection.close()  # a task that was cancelled before it began has not done so
        # Sockets are closed by the event loop, once what was still to be sent is gone; it may be about to end.
        closing = [connection.closed for connection in visits.values()]
        if closing:
            await asyncio.wait(closing, timeout=CLOSE_S)

    def _receive(self) -> Connection:
        frames: Frames = asyncio.Queue()
        connection = Connection(frames.put_nowait, limit=UNAUTHENTICATED_LIMIT)
        visit = asyncio.get_running_loop().create_task(self._attend(connection, frames))
        self._visits[visit] = connection
        visit.add_done_callback(self._visits.pop)
        return connection

    async def _attend(self, connection: Connection, frames: Frames) -> None:
        try:
            about = await self._admit(connection, frames)
            if about is not None:
                await self._welcome(connection, frames, about)
        finally:
            connection.close()

    async def _admit(self, connection: Connection, frames: Frames) -> dict[str, Any] | None:
        """What the worker says about itself; None if it was refused."""
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await connection.opened
            keep_alive(connection)
            return await admit(connection, frames, self._secret)
        except (RefusedError, TimeoutError) as refusal:
            logger.warning("A connection to the collector was refused: %s", str(refusal) or "it was never opened")
            connection.abort()
            return None
