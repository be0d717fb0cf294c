"""Boxes on this machine: the host's side of the fork server.

A ``Jail`` runs programs for any number of tasks and event loops at once, and never blocks an event loop. When a caller
is cancelled, its connection is closed, and the box ends with everything in it. If this process dies, the kernel closes
the connections, with the same effect.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from nemo_gym import INSTALL_DIR
from nemo_gym.sandbox.boxes import BoxCommand, BoxProgram, BoxSession, Runner
from nemo_gym.sandbox.inside import system
from nemo_gym.sandbox.inside.channel import BrokenMessageError, Decoder, Message, receive
from nemo_gym.sandbox.inside.guarded import remove_folder
from nemo_gym.sandbox.inside.limits import KIB, ProgramEnding, Result, SandboxLimits
from nemo_gym.sandbox.interface import SandboxCreateError, SandboxError

_START: Final = (
    "import sys; sys.path.append(sys.argv[2]); "
    "from nemo_gym.sandbox.inside.server import run_fork_server; run_fork_server()"
)
_START_TIMEOUT_S: Final = 60.0
_GRACE_S: Final = 30.0  # beyond the time limit, in case the machine is very busy
_HEAD_SIZE: Final = 64 * KIB
_MOST_USES: Final = 1000  # of one box; a new one now and then bounds what a supervisor can accumulate
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
        self._server = _ForkServer(level, [str(path) for path in readable], dict(modules or {}))
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

    async def start(self) -> None:
        await asyncio.to_thread(self._server.start)

    async def aclose(self) -> None:
        """End all boxes and the fork server."""
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


class _ForkServer:
    """The process that forks boxes, and the connection to it."""

    def __init__(self, level: str, readable: list[str], modules: dict[str, str]) -> None:
        self._settings = {"level": level, "modules": modules}
        self._extra = readable
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._folder: str | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        with self._lock:
            if not self.running:
                self._stop()
                self._start()

    def stop(self) -> None:
        with self._lock:
            self._stop()

    def connect(self) -> socket.socket:
        """A connection to a new box."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs, self._lock:
                if self._control is None:
                    raise SandboxError("the sandbox is closed")
                socket.send_fds(self._control, [b"+"], [theirs.fileno()])
        except OSError as error:
            ours.close()
            raise SandboxError(f"the fork server of the sandbox is gone: {error}") from error
        return ours

    def _start(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="rollout-gym-sandbox-")
        ours, theirs = socket.socketpair()
        with tempfile.TemporaryFile() as log, theirs:
            self._process = subprocess.Popen(
                # -I and -S keep the user's settings and installed packages out; the virtual environment's link is
                # resolved, because a box sees only the interpreter that it points to.
                [os.path.realpath(sys.executable), "-I", "-S", "-c", _START, str(theirs.fileno()), str(INSTALL_DIR)],
                pass_fds=[theirs.fileno()],
                env=system.environment("/"),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
            self._control = ours
            problem = self._introduce(ours, log)
        if problem is not None:
            self._stop()
            raise SandboxCreateError(f"isolation by {self._settings['level']} does not work here: {problem}")

    def _introduce(self, control: socket.socket, log: IO[bytes]) -> str | None:
        """Send the server its settings; returns what went wrong, if anything did."""
        paths = {"readable": system.readable(self._extra), "hidden": system.hidden(self._extra)}
        control.settimeout(_START_TIMEOUT_S)
        try:
            control.sendall(Message({**self._settings, **paths, "folder": self._folder}).encode())
            reply = receive(control)
        except (BrokenMessageError, OSError) as error:
            log.seek(0)
            lines = log.read().decode("utf-8", "replace").splitlines()
            return lines[-1] if lines else str(error)
        control.settimeout(None)
        failure = reply.head.get("failure")
        return None if failure is None else str(failure)

    def _stop(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.wait()
            self._process = None
        if self._folder is not None:
            with contextlib.suppress(FileNotFoundError):  # normally the caretaker has removed it already
                remove_folder(self._folder)
            self._folder = None


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
