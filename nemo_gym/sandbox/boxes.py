"""What every level of isolation offers: a runner for single programs, open boxes for several, and worlds.

The public methods are here; a level implements the abstract ones. It receives whole values (``BoxCommand``,
``BoxProgram``) and limits that have been decided, so that no level repeats the defaults.
"""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from nemo_gym.sandbox.inside.limits import ProgramEnding, Result, SandboxLimits
from nemo_gym.sandbox.interface import SandboxError
from nemo_gym.sandbox.worlds import World, WorldSpec


@dataclass(frozen=True, slots=True)
class BoxCommand:
    """A command with its input, its folder (a relative path is below the box's) and extra environment variables."""

    arguments: list[str]
    stdin: bytes
    folder: str
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BoxProgram:
    """The source of a Python program with its input and the files that are written beside it first."""

    source: str
    stdin: bytes
    files: Mapping[str, bytes]


class BoxSession(ABC):
    """An open box, in which commands and programs run and files are stored until it is stopped."""

    def __init__(self, limits: SandboxLimits) -> None:
        self.limits = limits

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        folder: str = "",
        environment: Mapping[str, str] | None = None,
        limits: SandboxLimits | None = None,
    ) -> Result:
        """Run a command, in the shell if it is a string. Limits apply to this command only."""
        arguments = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        return await self._exec(BoxCommand(arguments, stdin, folder, environment or {}), limits or self.limits)

    async def python(
        self,
        program: str,
        *,
        stdin: bytes = b"",
        files: Mapping[str, bytes] | None = None,
        limits: SandboxLimits | None = None,
    ) -> Result:
        """Run a Python program. ``files`` are written beside it first."""
        return await self._python(BoxProgram(program, stdin, files or {}), limits or self.limits)

    async def download(self, path: str) -> bytes:
        """Read a file with the rights of a program in the box."""
        result = await self._read_file(path)
        if result.ending is ProgramEnding.OUTPUT:
            raise SandboxError(f"{path} is larger than the limit on output of {self.limits.output_kib} KiB")
        if not result.ok:
            raise FileNotFoundError(last_line(result.stderr))
        return result.stdout

    @abstractmethod
    async def upload(self, path: str, content: bytes) -> None:
        """Write a file; a relative path is below the box's folder."""

    @abstractmethod
    async def stop(self) -> None:
        """End the box and everything in it."""

    @abstractmethod
    async def _exec(self, command: BoxCommand, limits: SandboxLimits) -> Result: ...

    @abstractmethod
    async def _python(self, program: BoxProgram, limits: SandboxLimits) -> Result: ...

    @abstractmethod
    async def _read_file(self, path: str) -> Result:
        """Run something in the box that writes the file to its standard output."""


class Runner(ABC):
    """Runs untrusted programs at one level of isolation, many at once."""

    def __init__(self, level: str, limits: SandboxLimits | None) -> None:
        self.level = level
        self.limits = limits or SandboxLimits()

    async def run(
        self,
        program: str,
        *,
        stdin: bytes = b"",
        files: Mapping[str, bytes] | None = None,
        limits: SandboxLimits | None = None,
    ) -> Result:
        """Run a Python program in an empty box. ``files`` are written beside it first."""
        return await self._run(BoxProgram(program, stdin, files or {}), limits or self.limits)

    @asynccontextmanager
    async def session(self, *, limits: SandboxLimits | None = None) -> AsyncIterator[BoxSession]:
        """A box for several programs, which share its folder."""
        session = await self.open_session(limits=limits)
        try:
            yield session
        finally:
            await session.stop()

    @asynccontextmanager
    async def world(self, spec: WorldSpec | None = None) -> AsyncIterator[World]:
        """An open world, stopped at the end."""
        world = await self.open_world(spec)
        try:
            yield world
        finally:
            await world.stop()

    @abstractmethod
    async def open_world(self, spec: WorldSpec | None = None) -> World:
        """A world that the caller has to stop."""

    @abstractmethod
    async def start(self) -> None:
        """Get ready now instead of on first use; raises ``SandboxCreateError`` if this level does not work here."""

    @abstractmethod
    async def open_session(self, *, limits: SandboxLimits | None = None) -> BoxSession:
        """A box that the caller has to stop."""

    @abstractmethod
    async def aclose(self) -> None:
        """End all boxes and whatever made them."""

    @abstractmethod
    async def _run(self, program: BoxProgram, limits: SandboxLimits) -> Result: ...


class WorldPool:
    """Keeps up to ``size`` unused worlds of one kind; belongs to one event loop.

    A world that fails to start is an error of the one who asked for it, never of the pool.
    """

    def __init__(self, runner: Runner, spec: WorldSpec, *, size: int = 2) -> None:
        self._runner = runner
        self._spec = spec
        self._size = size
        self._ready: deque[asyncio.Task[World]] = deque()
        self._closed = False

    async def take(self) -> World:
        """A world that nobody has used, which the caller has to stop."""
        if self._closed:
            raise SandboxError("the pool of worlds is closed")
        world = None
        while world is None and self._ready:
            prepared = self._ready.popleft()
            with contextlib.suppress(SandboxError):  # the one that is opened now tells whether that is still so
                world = await self._wait_for(prepared)
        if world is None:
            world = await self._runner.open_world(self._spec)
        self._fill()
        return world

    async def aclose(self) -> None:
        """Stop all worlds that nobody took."""
        self._closed = True
        for prepared in self._ready:
            with contextlib.suppress(SandboxError, asyncio.CancelledError):
                await (await prepared).stop()
        self._ready.clear()

    async def _wait_for(self, prepared: asyncio.Task[World]) -> World:
        try:
            return await asyncio.shield(prepared)
        except asyncio.CancelledError:
            self._ready.append(prepared)  # for the next one who asks
            raise

    def _fill(self) -> None:
        while len(self._ready) < self._size and not self._closed:
            self._ready.append(asyncio.ensure_future(self._runner.open_world(self._spec)))


def last_line(data: bytes) -> str:
    """The last line of an error output, which usually states the reason."""
    return data.decode("utf-8", "replace").strip().rpartition("\n")[2] or "no reason given"
