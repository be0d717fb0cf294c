"""The one address that a world may reach: connections to a socket inside are relayed to it, and to nothing else.

The socket was made in the network namespace of the world, and is listened to from outside. Nothing inside takes part,
so nothing inside can choose another address.
"""

import asyncio
import contextlib
import socket
import sys
from typing import Final

from nemo_gym.sandbox.interface import SandboxCreateError

# Enters the user namespace too if it is another one, because only there may an ordinary user enter the network's.
_LISTEN: Final = """
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
with socket.socket(fileno=int(sys.argv[1])) as channel:
    for kind in ("user", "net"):
        path = f"/proc/{sys.argv[2]}/ns/{kind}"
        if os.stat(path).st_ino != os.stat(f"/proc/self/ns/{kind}").st_ino:
            with open(path) as namespace:
                if libc.setns(namespace.fileno(), 0) != 0:
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    listener = socket.create_server(("127.0.0.1", int(sys.argv[3])))
    socket.send_fds(channel, [b"+"], [listener.fileno()])
"""
_PIECE: Final = 1 << 16
_MOST_CONNECTIONS: Final = 256


class Opening:
    """Relays connections from a listening socket to one address until it is closed."""

    def __init__(self, listener: socket.socket, address: tuple[str, int]) -> None:
        self._listener = listener
        self._address = address
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._listener.setblocking(False)
        self._server = await asyncio.start_server(self._accept, sock=self._listener)

    async def aclose(self) -> None:
        """Close the socket and all connections."""
        if self._server is not None:
            self._server.close()
        for task in tuple(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= _MOST_CONNECTIONS:
            writer.transport.abort()
            return
        self._connections.add(task)
        try:
            await self._relay(reader, writer)
        except (OSError, asyncio.CancelledError):
            return  # either side hung up, or the world ends
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._address)
        try:
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        finally:
            far_writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_PIECE):
        writer.write(data)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()


async def listen_in_network_of(pid: int, port: int) -> socket.socket:
    """A socket that listens in the network namespace of a process, made by a program that enters it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-c", _LISTEN, str(theirs.fileno()), str(pid), str(port),
            pass_fds=[theirs.fileno()], stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        theirs.close()
        _, errors = await process.communicate()
        if process.returncode != 0:
            reason = errors.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise SandboxCreateError(f"no way into the network of the container could be opened: {reason}")
        ours.setblocking(False)
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    return socket.socket(fileno=descriptors[0])
