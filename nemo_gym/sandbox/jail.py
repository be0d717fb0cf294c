"""Boxes on this machine: the host's side of the fork server.

A ``Jail`` runs programs for any number of tasks and event loops at once, and never blocks an event loop. When a caller
is cancelled, its connection is closed, and the box ends with everything in it. If this process dies, the kernel closes
the connections, with the same effect.
"""

import asyncio
import contextlib
import os
import socket
import weakref
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nemo_gym.errors import ConfigError
from nemo_gym.sandbox.boxes import BoxCommand, BoxProgram, BoxSession, Runner
from nemo_gym.sandbox.fork_server import ForkServer
from nemo_gym.sandbox.inside.channel import BrokenMessageError, Decoder, Message
from nemo_gym.sandbox.inside.limits import KIB, ProgramEnding, Result, SandboxLimits
from nemo_gym.sandbox.interface import SandboxCreateError, SandboxError
from nemo_gym.sandbox.jail_worlds import JailWorld
from nemo_gym.sandbox.roots import PreparedRoot, default_roots_folder, prepare_root
from nemo_gym.sandbox.worlds import WorldSpec

_GRACE_S: Final = 30.0  # beyond the time limit, in case the machine is very busy
_HEAD_SIZE: Final = 64 * KIB
_MOST_USES: Final = 1000  # of one box; a new one now and then bounds what a supervisor can accumulate
_MOST_SERVERS: Final = 16  # for worlds that see different folders
_DOWNLOAD: Final = (
    "import shutil, sys\nwith open({path!r}, 'rb') as file: shutil.copyfileobj(file, sys.stdout.buffer)\n"
)


class BrokenBoxError(SandboxError):
    """A box ended or stopped replying while something was running in it."""


class Jail(Runner):
    """Runs programs at one level of isolation; the fork server starts on first use.

    Programs can read ``readable`` paths and import ``modules`` (source by name). At most ``parallel`` run at once.
    """

    def __init__(
        self,
        level: str,
        *,
        limits: SandboxLimits | None = None,
        readable: Sequence[str | Path] = (),
        modules: Mapping[str, str] | None = None,
        parallel: int | None = None,
    ) -> None:
        super().__init__(level, limits)
        self._server = ForkServer(level, readable=[str(path) for path in readable], modules=modules)
        self._worlds = _JailWorlds(level, readable=readable)
        self._parallel = parallel or max(8, 4 * (os.cpu_count() or 1))
        # A semaphore belongs to one event loop, and servers may run in several.
        self._gates: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
        self._gates = weakref.WeakKeyDictionary()
        self._idle: deque[_IdleBox] = deque()

    async def open_session(self, *, limits: SandboxLimits | None = None) -> "JailSession":
        """A box that the caller has to stop."""
        if not self._server.running:
            await asyncio.to_thread(self._server.start)
        return JailSession(self._server.connect(), limits or self.limits)

    async def open_world(self, spec: WorldSpec | None = None) -> JailWorld:
        """A world that the caller has to stop."""
        return await self._worlds.open(spec or WorldSpec())

    async def start(self) -> None:
        await asyncio.to_thread(self._server.start)

    async def aclose(self) -> None:
        """End all boxes, all worlds and the fork servers."""
        await self._worlds.aclose()
        while self._idle:
            await self._idle.pop().session.stop()
        await asyncio.to_thread(self._server.stop)

    async def _run(self, program: BoxProgram, limits: SandboxLimits) -> Result:
        async with self._gate():
            box = self._idle.pop() if self._idle else None
            if box is not None:
                with contextlib.suppress(BrokenBoxError):  # an idle box may have ended together with its fork server
                    return await self._run_in(box, program, limits)
            return await self._run_in(_IdleBox(await self.open_session(limits=limits)), program, limits)

    async def _run_in(self, box: "_IdleBox", program: BoxProgram, limits: SandboxLimits) -> Result:
        """Run a program and keep the box, which the supervisor empties, for the next one."""
        keep = False
        try:
            result = await box.session.python_alone(program, limits)
            keep = box.uses < _MOST_USES
            return result
        finally:
            if keep and self._server.running:
                self._idle.append(_IdleBox(box.session, box.uses + 1))
            else:
                await box.session.stop()

    def _gate(self) -> asyncio.Semaphore:
        return self._gates.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._parallel))


class JailSession(BoxSession):
    """A box of the fork server, which runs one command or program after the other."""

    def __init__(self, connection: socket.socket, limits: SandboxLimits) -> None:
        super().__init__(limits)
        self._connection = connection
        self._turn = asyncio.Lock()
        # The fork server forks at once, but its child waits for the limits before it makes the box. They travel with
        # the first request, which saves a round trip.
        self._opening: bytes = Message({"limits": limits.to_json()}).encode()

    async def python_alone(self, program: BoxProgram, limits: SandboxLimits) -> Result:
        """Run a program that finds an empty folder and leaves one behind."""
        return await self._python(program, limits, fresh=True)

    async def upload(self, path: str, content: bytes) -> None:
        """Write a file; a relative path is below the box's folder."""
        await self.python("", files={path: content})

    async def stop(self) -> None:
        """End the box and everything in it. A command that is still running raises ``SandboxError``."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # wakes a waiting caller, who then closes it
        if not self._turn.locked():
            self._connection.close()

    async def _exec(self, command: BoxCommand, limits: SandboxLimits) -> Result:
        head = {
            "arguments": command.arguments,
            "source": "",
            "folder": command.folder,
            "environment": dict(command.environment),
            "fresh": False,
        }
        return await self._execute(head, command.stdin, {}, limits)

    async def _python(self, program: BoxProgram, limits: SandboxLimits, *, fresh: bool = False) -> Result:
        head: dict[str, Any] = {
            "arguments": None,
            "source": program.source,
            "folder": "",
            "environment": {},
            "fresh": fresh,
        }
        return await self._execute(head, program.stdin, program.files, limits)

    async def _read_file(self, path: str) -> Result:
        return await self.python(_DOWNLOAD.format(path=path))

    async def _execute(
        self, head: Mapping[str, Any], stdin: bytes, files: Mapping[str, bytes], limits: SandboxLimits
    ) -> Result:
        message = Message({**head, "files": list(files), "limits": limits.to_json()}, [stdin, *files.values()])
        try:
            async with self._turn, asyncio.timeout(limits.wall_s + _GRACE_S):
                reply = await self._exchange(message, limits)
        # Whatever interrupts an exchange leaves the connection in the middle of a message, so it can't be used again.
        # Closing it also ends the program.
        except (BrokenMessageError, OSError, TimeoutError) as error:
            self._connection.close()
            raise BrokenBoxError(f"the sandbox broke down: {str(error) or type(error).__name__}") from error
        except asyncio.CancelledError:
            self._connection.close()
            raise
        if "failure" in reply.head:
            raise SandboxError(f"the sandbox could not run the program: {reply.head['failure']}")
        return _result(reply)

    async def _exchange(self, message: Message, limits: SandboxLimits) -> Message:
        loop = asyncio.get_running_loop()
        decoder = Decoder(limit=2 * limits.output_kib * KIB + _HEAD_SIZE)
        await loop.sock_sendall(self._connection, self._opening + message.encode())
        self._opening = b""
        while True:
            reply = decoder.feed(await loop.sock_recv(self._connection, min(decoder.wanted, 1 << 20)))
            if reply is not None:
                return reply


@dataclass(frozen=True, slots=True)
class _IdleBox:
    """An empty box, and how often it has been used."""

    session: JailSession
    uses: int = 1


def _result(reply: Message) -> Result:
    """Read the supervisor's reply, trusting nothing in it, because it runs beside untrusted code."""
    head = reply.head
    try:
        stdout, stderr = reply.blobs
        return Result(
            ending=ProgramEnding(head["ending"]),
            exit_code=int(head["exit_code"]),
            stdout=stdout,
            stderr=stderr,
            cpu_s=float(head["cpu_s"]),
            wall_s=float(head["wall_s"]),
            peak_memory_mib=float(head["peak_memory_mib"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise SandboxError(f"the sandbox sent a reply that makes no sense: {error}") from error


class _JailWorlds:
    """Opens worlds at one level of isolation, with a fork server for each choice of readable folders."""

    def __init__(self, level: str, *, readable: Sequence[str | Path] = (), roots: Path | None = None) -> None:
        self._level = level
        self._readable = tuple(map(str, readable))
        self._roots = roots
        self._prepared: dict[str, PreparedRoot] = {}
        self._servers: OrderedDict[tuple[str, ...], ForkServer] = OrderedDict()
        self._open: weakref.WeakKeyDictionary[JailWorld, ForkServer] = weakref.WeakKeyDictionary()

    async def open(self, spec: WorldSpec) -> JailWorld:
        """A world that the caller has to stop; raises ``SandboxCreateError``."""
        root = None if spec.root is None else await self._prepare(spec.root)
        server = await self._server((*self._readable, *map(str, spec.readable)))
        world = JailWorld(server, spec, level=self._level, root=root, open_another=self.open)
        await world.open()
        self._open[world] = server
        try:
            for path, file in spec.files.items():
                content, mode = (file, 0o644) if isinstance(file, bytes) else (file.content, file.mode)
                await world.write(path, content, mode=mode)
        except BaseException:
            await world.stop()
            raise
        return world

    async def aclose(self) -> None:
        """End all worlds and the fork servers."""
        for world in list(self._open):
            await world.stop()
        for server in self._servers.values():
            await asyncio.to_thread(server.stop)
        self._servers.clear()

    async def _prepare(self, source: str | Path) -> PreparedRoot:
        if self._level != "namespaces":
            raise SandboxCreateError(f"the level {self._level} has no roots of their own; use namespaces or container")
        found = self._prepared.get(str(source))
        if found is None:
            cache = self._cache()
            if cache is None:
                raise ConfigError(
                    "there is no place to unpack roots in", hint="set XDG_CACHE_HOME to a writable folder"
                )
            found = self._prepared[str(source)] = await asyncio.to_thread(prepare_root, source, cache)
        return found

    def _cache(self) -> Path | None:
        if self._roots is None and self._level == "namespaces":
            self._roots = default_roots_folder()
        return self._roots

    async def _server(self, readable: tuple[str, ...]) -> ForkServer:
        server = self._servers.get(readable)
        if server is None:
            if len(self._servers) >= _MOST_SERVERS:
                await self._stop_unused()
            roots = self._cache()
            server = ForkServer(self._level, readable=readable, roots=None if roots is None else str(roots))
            server = self._servers.setdefault(readable, server)
        self._servers.move_to_end(readable)
        if not server.running:
            await asyncio.to_thread(server.start)
        return server

    async def _stop_unused(self) -> None:
        """Stop the fork server that was used least recently, unless all have open worlds."""
        used = {id(server) for world, server in self._open.items() if world.is_open}
        for readable, server in self._servers.items():
            if id(server) not in used:
                del self._servers[readable]
                await asyncio.to_thread(server.stop)
                return
