"""What every level of isolation offers: a runner for single programs, and open boxes for several.

The public methods are here; a level implements the abstract ones. It receives whole values (``BoxCommand``,
``BoxProgram``) and limits that have been decided, so that no level repeats the defaults.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from nemo_gym.sandbox.inside.limits import ProgramEnding, Result, SandboxLimits
from nemo_gym.sandbox.interface import SandboxError


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


def last_line(data: bytes) -> str:
    """The last line of an error output, which usually states the reason."""
    return data.decode("utf-8", "replace").strip().rpartition("\n")[2] or "no reason given"
