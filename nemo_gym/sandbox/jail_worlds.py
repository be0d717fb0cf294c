"""Worlds on this machine: the host's side of the connection to the first process of a world."""

import asyncio
import contextlib
import os
import socket
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

from nemo_gym.sandbox.fork_server import ForkServer
from nemo_gym.sandbox.inside import system
from nemo_gym.sandbox.inside.channel import BrokenMessageError, Decoder, Message
from nemo_gym.sandbox.inside.limits import KIB, MIB, ProgramEnding, Result, SandboxLimits
from nemo_gym.sandbox.inside.world_start import PLAIN, WITH_NETWORK
from nemo_gym.sandbox.interface import SandboxCreateError, SandboxError
from nemo_gym.sandbox.openings import Opening
from nemo_gym.sandbox.roots import PreparedRoot
from nemo_gym.sandbox.worlds import CommandLine, OnOutput, World, WorldProcess, WorldSnapshot, WorldSpec

_GRACE_S: Final = 60.0  # beyond the time limit of a command, in case the machine is very busy
_STOP_S: Final = 30.0
_PIECE: Final = 1 << 18
_MOST_MESSAGE: Final = 1 << 20
_FILE_S: Final = 600.0  # time for a file or folder, which may be large
_ANY_ROOT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

OpenAnother = Callable[[WorldSpec], Any]


class JailSnapshot(WorldSnapshot):
    """An archive on this machine's disk."""

    def __init__(self) -> None:
        descriptor, name = tempfile.mkstemp(prefix="rollout-gym-snapshot-")
        os.close(descriptor)
        self.path = Path(name)

    async def remove(self) -> None:
        self.path.unlink(missing_ok=True)


class JailWorld(World):
    """A world whose first process is a supervisor of ours."""

    def __init__(
        self, server: ForkServer, spec: WorldSpec, *, level: str, root: PreparedRoot | None, open_another: OpenAnother
    ) -> None:
        super().__init__(spec)
        self.level = level
        self._server = server
        self._root = root
        self._another = open_another
        self._processes: dict[int, _JailProcess] = {}
        self._freezing: dict[int, asyncio.Future[None]] = {}
        self._number = 0
        self._sending = asyncio.Lock()
        self._broken: str | None = None
        self._way_in: Opening | None = None
        self._folder = ""

    async def open(self) -> None:
        """Make the world; raises ``SandboxCreateError``."""
        snapshot = self.spec.snapshot
        if snapshot is not None and not isinstance(snapshot, JailSnapshot):
            raise SandboxCreateError(f"a snapshot of another level can't be used at the level {self.level}")
        own_network = self.spec.loopback or self.spec.opening is not None
        with contextlib.ExitStack() as stack:
            file = None if snapshot is None else stack.enter_context(snapshot.path.open("rb"))
            kind = WITH_NETWORK if own_network else PLAIN
            self._connection = self._server.connect(kind, archive=None if file is None else file.fileno())
        try:
            listener = await self._introduce(own_network=own_network)
        except BaseException:
            self._connection.close()
            raise
        self._reading = asyncio.ensure_future(self._read_messages())
        if listener is not None and self.spec.opening is not None:
            self._way_in = Opening(listener, self.spec.opening)
            await self._way_in.start()
            self.opening = f"127.0.0.1:{self.spec.opening[1]}"

    async def _introduce(self, *, own_network: bool) -> socket.socket | None:
        start = {
            "workdir": self.spec.workdir,
            "root": None if self._root is None else self._root.key,
            "user": self.spec.user,
            "loopback": own_network,
            "port": None if self.spec.opening is None else self.spec.opening[1],
        }
        opening = Message({"limits": self.spec.limits.to_json(), "world": start}).encode()
        try:
            async with asyncio.timeout(_GRACE_S):
                await asyncio.get_running_loop().sock_sendall(self._connection, opening)
                data, descriptors = await _receive_with_descriptors(self._connection)
        except (OSError, TimeoutError) as error:
            raise SandboxCreateError(f"the world did not start: {str(error) or type(error).__name__}") from error
        listeners = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        head = _whole_message(data).head
        if "failure" in head:
            raise SandboxCreateError(f"the world did not start: {head['failure']}")
        self._folder, self.workdir = str(head["folder"]), str(head["workdir"])
        return listeners[0] if listeners else None

    @property
    def environment(self) -> Mapping[str, str]:
        """What programs expect, what the root sets, what the world sets."""
        usual = system.environment(self._folder)
        if self.level == "namespaces":
            home = "/root" if self.spec.user == 0 else "/home/sandbox"
            usual |= {"HOME": home, "TMPDIR": self.scratch, "USER": "root" if self.spec.user == 0 else "sandbox"}
        if self._root is not None:
            usual |= {"PATH": _ANY_ROOT_PATH, **self._root.environment}
        return {**usual, **self.spec.environment}

    @property
    def scratch(self) -> str:
        return str(PurePosixPath(self._folder, "tmp"))

    async def snapshot(self) -> JailSnapshot:
        """An archive of everything that the world has changed."""
        snapshot = JailSnapshot()
        is_complete = False
        try:
            with snapshot.path.open("wb") as archive:
                result = await self._pack(None, archive, self.spec.limits.disk_mib * MIB * 2)
            is_complete = result.ok
        finally:
            if not is_complete:
                await snapshot.remove()
        if not is_complete:
            raise SandboxError(f"no snapshot could be made: {result.stderr.decode('utf-8', 'replace')}")
        return snapshot

    @property
    def is_open(self) -> bool:
        """Whether commands can still run or files be read."""
        return self._broken is None

    async def stop(self) -> None:
        if self._connection.fileno() < 0:
            return
        if self._reading.get_loop() is not asyncio.get_running_loop():
            self._connection.close()  # the loop of its tasks has ended without stopping it
            return
        if self._way_in is not None:
            await self._way_in.aclose()
        self._break("the world was stopped")
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
        # The supervisor closes its end when nothing is left of the world.
        await asyncio.wait([self._reading], timeout=_STOP_S)
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._connection.close()

    async def _start(
        self, line: CommandLine, stdin: bytes, *, last: bool, on_output: OnOutput | None
    ) -> "_JailProcess":
        call = {
            "call": "command",
            "arguments": line.arguments,
            "folder": line.folder,
            "environment": dict(line.environment),
            "path": "",
        }
        return await self._request(call, line.limits, on_output, stdin, last=last)

    async def _read(self, path: str, most: int) -> Result:
        return await self._call({"call": "read", "path": path, "most": most}, output=most)

    async def _write(self, path: str, content: bytes, mode: int) -> Result:
        process = await self._begin({"call": "write", "path": path, "mode": mode})
        for start in range(0, len(content), _PIECE):
            await process.write(content[start : start + _PIECE])
        await process.close_input()
        return await process.wait()

    async def _pack(self, path: str | None, archive: IO[bytes], most: int) -> Result:
        def keep(stream: int, data: bytes) -> None:
            if stream == 1:
                archive.write(data)

        call = {"call": "pack", "path": path, "most": most}
        result = await self._call(call, output=4 * most + MIB, on_output=keep)
        archive.flush()
        return result

    async def _unpack(self, path: str, archive: IO[bytes], most: int, *, replaces: bool) -> Result:
        process = await self._begin({"call": "unpack", "path": path, "most": most, "replace": replaces})
        while process.running and (data := await asyncio.to_thread(archive.read, _PIECE)):
            await process.write(data)
        await process.close_input()
        return await process.wait()

    async def _freeze(self) -> None:
        self._number += 1
        done = self._freezing[self._number] = asyncio.get_running_loop().create_future()
        await self.send({"do": "freeze", "id": self._number})
        async with asyncio.timeout(_GRACE_S):
            await done

    async def _open_another(self, spec: WorldSpec) -> World:
        world: World = await self._another(spec)
        return world

    async def _begin(
        self, call: dict[str, Any], *, output: int = MIB, on_output: OnOutput | None = None, last: bool = False
    ) -> "_JailProcess":
        limits = SandboxLimits(wall_s=_FILE_S, cpu_s=_FILE_S, output_kib=max(64, output // KIB + 1))
        process = await self._request(call, limits, on_output, b"", last=last)
        process.keeps_output = on_output is None
        return process

    async def _call(self, call: dict[str, Any], *, output: int, on_output: OnOutput | None = None) -> Result:
        return await (await self._begin(call, output=output, on_output=on_output, last=True)).wait()

    async def _request(
        self, call: dict[str, Any], limits: SandboxLimits, on_output: OnOutput | None, stdin: bytes, *, last: bool
    ) -> "_JailProcess":
        self._number += 1
        process = self._processes[self._number] = _JailProcess(self, self._number, on_output)
        head = {
            **call,
            "do": "start",
            "id": self._number,
            "last": last and len(stdin) <= _PIECE,
            "wall_s": limits.wall_s,
            "cpu_s": limits.cpu_s,
            "output": limits.output_kib * KIB,
        }
        await self.send(head, stdin[:_PIECE])
        for start in range(_PIECE, len(stdin), _PIECE):
            await process.write(stdin[start : start + _PIECE])
        if last and not head["last"]:
            await process.close_input()
        return process

    async def send(self, head: dict[str, Any], data: bytes = b"") -> None:
        """Send the supervisor a message."""
        if self._broken is not None:
            raise SandboxError(self._broken)
        try:
            # A message that is cut off in the middle would make the connection useless, so it is sent to its end.
            await asyncio.shield(self._send_whole(Message(head, [data]).encode()))
        except OSError as error:
            self._break(f"the world broke down: {error}")
            raise SandboxError(f"the world broke down: {error}") from error

    async def _send_whole(self, message: bytes) -> None:
        async with self._sending:
            await asyncio.get_running_loop().sock_sendall(self._connection, message)

    async def _read_messages(self) -> None:
        loop = asyncio.get_running_loop()
        decoder = Decoder(limit=_MOST_MESSAGE)
        try:
            while True:
                data = await loop.sock_recv(self._connection, min(decoder.wanted, _MOST_MESSAGE))
                message = decoder.feed(data)
                if message is not None:
                    self._dispatch(message)
                    decoder = Decoder(limit=_MOST_MESSAGE)
        except (BrokenMessageError, OSError, KeyError, TypeError, ValueError) as error:
            self._break(f"the world broke down: {error}")

    def _dispatch(self, message: Message) -> None:
        head = message.head
        number = head["id"]
        if head.get("frozen"):
            if (frozen := self._freezing.pop(number, None)) is not None:
                frozen.set_result(None)
            return
        process = self._processes.get(number)
        if process is None:  # the world is being stopped
            return
        if "stream" in head:
            process.take_output(int(head["stream"]), message.blobs[0])
            return
        del self._processes[number]
        if "failure" in head:
            process.fail(f"the world could not run the command: {head['failure']}")
        else:
            process.finish(_result(head))

    def _break(self, reason: str) -> None:
        self._broken = self._broken or reason
        for process in self._processes.values():
            process.fail(self._broken)
        for waiting in self._freezing.values():
            if not waiting.done():
                waiting.set_exception(SandboxError(self._broken))
        self._processes.clear()
        self._freezing.clear()


class _JailProcess(WorldProcess):
    """A command of a ``JailWorld``."""

    keeps_output = True

    def __init__(self, world: JailWorld, number: int, on_output: OnOutput | None) -> None:
        super().__init__(on_output)
        self._world = world
        self._number = number
        self._endings: set[asyncio.Task[None]] = set()

    async def write(self, data: bytes) -> None:
        if self.running:
            await self._world.send({"do": "input", "id": self._number, "last": False}, data)

    async def close_input(self) -> None:
        if self.running:
            await self._world.send({"do": "input", "id": self._number, "last": True})

    def end(self, ending: ProgramEnding = ProgramEnding.EXITED) -> None:
        if self.running:
            task = asyncio.ensure_future(self._end(ending))
            self._endings.add(task)
            task.add_done_callback(self._endings.discard)

    def take_output(self, stream: int, data: bytes) -> None:
        """Keep it, unless it goes into a file anyway."""
        if self.keeps_output or stream == 2:
            super().take_output(stream, data)
        elif self._on_output is not None:
            self._on_output(stream, data)

    async def _end(self, ending: ProgramEnding) -> None:
        with contextlib.suppress(SandboxError):
            await self._world.send({"do": "end", "id": self._number, "ending": ending})


async def _receive_with_descriptors(connection: socket.socket) -> tuple[bytes, list[int]]:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection)
    data, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 1)
    return data, descriptors


def _whole_message(data: bytes) -> Message:
    decoder, place = Decoder(), 0
    try:
        while True:
            wanted = decoder.wanted
            message = decoder.feed(data[place : place + wanted])
            place += wanted
            if message is not None:
                return message
    except BrokenMessageError as error:
        raise SandboxCreateError(f"the world did not start: {error}") from None


def _result(head: Mapping[str, Any]) -> Result:
    return Result(
        ending=ProgramEnding(head["ending"]),
        exit_code=int(head["exit_code"]),
        stdout=b"",
        stderr=b"",
        cpu_s=float(head["cpu_s"]),
        wall_s=float(head["wall_s"]),
        peak_memory_mib=float(head["peak_memory_mib"]),
        cut=bool(head["cut"]),
    )
