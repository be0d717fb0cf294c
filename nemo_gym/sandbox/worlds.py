"""A world: what an agent works in for a whole rollout, with files, processes and a shell that remembers.

Commands, also several at once, run in it until it is stopped. What a command leaves running goes on. ``freeze`` ends
all processes, after which the files can only be read: that is when an agent's work is judged. The public methods are
here; a level of isolation implements the abstract ones.
"""

import asyncio
import os
import shlex
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import IO, Final

from nemo_gym.errors import ConfigError
from nemo_gym.sandbox.inside.limits import MIB, ProgramEnding, Result, SandboxLimits
from nemo_gym.sandbox.inside.trees import FAILED, MISSING, TreeError, pack_tree, unpack_tree
from nemo_gym.sandbox.interface import SandboxError

OnOutput = Callable[[int, bytes], None]
WORLD_LIMITS: Final = SandboxLimits(
    cpu_s=600,
    wall_s=120,
    memory_mib=2048,
    processes=128,
    file_mib=512,
    disk_mib=512,
    disk_files=65536,
    open_files=1024,
)
# Runs a command with the folder and the exported variables that the last one left, and keeps them for the next. The
# state is a script, because a shell can write it and read it again; it is replaced as a whole, or not at all.
_REMEMBERING: Final = """
__state=$1 __folder=$2 __command=$3
[ -r "$__state" ] && . "$__state"
[ -z "$__folder" ] || cd -- "$__folder" || exit 1
trap 'export PWD
{ echo "unset %(names)s"; export -p; echo "cd -- \\"\\$PWD\\" 2>/dev/null"; } 2>/dev/null >"$__state.new" &&
mv "$__state.new" "$__state"' EXIT
set --
eval "$__command"
"""
_SHELL: Final = """if command -v bash >/dev/null 2>&1; then exec bash "$@"; fi; exec sh "$@" """


class WorldFileError(OSError):
    """A file or folder of a world can't be read or written as requested."""


@dataclass(frozen=True, slots=True)
class WorldFile:
    """A file that a world starts with."""

    content: bytes
    mode: int = 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSpec:
    """What a world starts from, and what it may use. The limits on memory, processes and disk are for all of it.

    ``root`` is a folder, a tarball or an archive of an image, or the name of an image that a container engine has.
    A relative ``workdir`` is below the world's own folder. ``opening`` is the one address that can be reached from
    inside, on the same port of the world's own loopback.
    """

    root: str | Path | None = None
    workdir: str = "workspace"
    environment: Mapping[str, str] = field(default_factory=dict)
    limits: SandboxLimits = WORLD_LIMITS
    readable: Sequence[str | Path] = ()
    files: Mapping[str, bytes | WorldFile] = field(default_factory=dict)
    user: int = 1000
    loopback: bool = False
    opening: tuple[str, int] | None = None
    snapshot: "WorldSnapshot | None" = None

    def __post_init__(self) -> None:
        if ".." in PurePosixPath(self.workdir).parts:
            raise ConfigError(f"the folder {self.workdir!r} of a world leads out of it")
        if self.user not in (0, 1000):
            raise ConfigError(f"the user of a world is 1000 or 0 (root, without its rights), not {self.user}")


class WorldSnapshot(ABC):
    """The files of a world at one time, from which others can start."""

    @abstractmethod
    async def remove(self) -> None:
        """Forget them; does nothing the second time."""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command as a level of isolation starts it."""

    arguments: list[str]
    folder: str
    environment: Mapping[str, str]
    limits: SandboxLimits


class WorldProcess(ABC):
    """A running command. Its output is kept, up to the limit, whether or not somebody reads it meanwhile."""

    def __init__(self, on_output: OnOutput | None = None) -> None:
        self._on_output = on_output
        self._pieces: list[tuple[int, bytes]] = []
        self._changed = asyncio.Event()
        self._done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

    async def output(self) -> AsyncIterator[tuple[int, bytes]]:
        """The pieces of its output as they arrive, with 1 for standard output and 2 for standard error."""
        place = 0
        while True:
            while place < len(self._pieces):
                yield self._pieces[place]
                place += 1
            if self._done.done():
                return
            self._changed.clear()
            await self._changed.wait()

    async def wait(self) -> Result:
        """How it ended; raises ``SandboxError`` if the world broke down."""
        return await asyncio.shield(self._done)

    @property
    def running(self) -> bool:
        return not self._done.done()

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Send it input."""

    @abstractmethod
    async def close_input(self) -> None:
        """Tell it that there is no more input."""

    @abstractmethod
    def end(self, ending: ProgramEnding = ProgramEnding.EXITED) -> None:
        """Begin to end it, with its descendants."""

    async def kill(self) -> Result:
        """End it, with its descendants, and wait until it has ended."""
        self.end()
        return await self.wait()

    def take_output(self, stream: int, data: bytes) -> None:
        """Keep a piece of output and pass it on."""
        self._pieces.append((stream, data))
        self._changed.set()
        if self._on_output is not None:
            self._on_output(stream, data)

    def finish(self, result: Result) -> None:
        """It has ended; the output is what was taken."""
        if not self._done.done():
            out, err = (b"".join(data for stream, data in self._pieces if stream == number) for number in (1, 2))
            self._done.set_result(replace(result, stdout=out, stderr=err))
            self._changed.set()

    def fail(self, reason: str) -> None:
        """Nothing is known about it."""
        if not self._done.done():
            self._done.set_exception(SandboxError(reason))
            self._done.exception()  # nobody may be waiting
            self._changed.set()


class World(ABC):
    """An open world, at one level of isolation."""

    level: str
    workdir: str
    opening: str | None = None

    def __init__(self, spec: WorldSpec) -> None:
        self.spec = spec
        self.frozen = False

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        folder: str = "",
        environment: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        output_kib: int | None = None,
        on_output: OnOutput | None = None,
    ) -> Result:
        """Run a command and wait for it to end.

        A string runs in the shell, in the folder and with the variables that the last string left. Output beyond the
        limit is dropped. The time limit ends the command with its descendants, but nothing that ran before.
        """
        arguments = self._remembering(command, folder) if isinstance(command, str) else list(command)
        place = self.workdir if isinstance(command, str) else self._path(folder)
        line = self._line(arguments, place, environment, timeout_s, output_kib)
        process = await self._start(line, stdin, last=True, on_output=on_output)
        try:
            return await process.wait()
        except asyncio.CancelledError:
            process.end()
            raise

    async def start(
        self,
        command: str | Sequence[str],
        *,
        folder: str = "",
        environment: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        output_kib: int | None = None,
        on_output: OnOutput | None = None,
    ) -> WorldProcess:
        """Start a command in the world's own folder, to talk to it or to do something else meanwhile."""
        arguments = self._shell("-c", command) if isinstance(command, str) else list(command)
        line = self._line(arguments, self._path(folder), environment, timeout_s, output_kib)
        return await self._start(line, b"", last=False, on_output=on_output)

    async def read(self, path: str, *, most: int = MIB) -> bytes:
        """The content of a regular file of at most ``most`` bytes; a relative path is below ``workdir``."""
        return _checked(await self._read(self._path(path), most)).stdout

    async def write(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        """Write a file in the place of whatever has that name, links included; its folders are made."""
        self._must_not_be_frozen()
        _checked(await self._write(self._path(path), content, mode))

    async def get_folder(self, path: str, local: str | Path, *, most_mib: int | None = None) -> None:
        """Copy a folder to this machine: files, folders and links that stay inside. ``local`` is made if needed."""
        most = (most_mib or self.spec.limits.disk_mib) * MIB
        with tempfile.TemporaryFile() as archive:
            _checked(await self._pack(self._path(path), archive, most))
            await asyncio.to_thread(_unpack_here, archive, Path(local), most)

    async def put_folder(
        self, local: str | Path, path: str, *, most_mib: int | None = None, replaces: bool = False
    ) -> None:
        """Copy a folder of this machine into the world, over or in the place of what is there."""
        self._must_not_be_frozen()
        most = (most_mib or self.spec.limits.disk_mib) * MIB
        with tempfile.TemporaryFile() as archive:
            await asyncio.to_thread(_pack_here, Path(local), archive, most)
            _checked(await self._unpack(self._path(path), archive, most, replaces=replaces))

    async def pack_folder(self, path: str, archive: IO[bytes], *, most_mib: int | None = None) -> None:
        """Write a folder into a file of this machine, as an archive for ``unpack_folder``."""
        _checked(await self._pack(self._path(path), archive, (most_mib or self.spec.limits.disk_mib) * MIB))

    async def unpack_folder(self, path: str, archive: IO[bytes], *, replaces: bool = False) -> None:
        """Unpack an archive of ``pack_folder`` into a folder."""
        self._must_not_be_frozen()
        archive.seek(0)
        _checked(await self._unpack(self._path(path), archive, self.spec.limits.disk_mib * MIB, replaces=replaces))

    async def freeze(self) -> None:
        """End all processes and refuse new ones; files can still be read, but not written."""
        await self._freeze()
        self.frozen = True

    async def fork(self, spec: WorldSpec | None = None) -> "World":
        """Another world with the files of this one."""
        snapshot = await self.snapshot()
        try:
            return await self._open_another(replace(spec or self.spec, snapshot=snapshot, files={}))
        finally:
            await snapshot.remove()

    @abstractmethod
    async def snapshot(self) -> WorldSnapshot:
        """All files that the world has changed. Those that change meanwhile may be torn, unless it is frozen."""

    @abstractmethod
    async def stop(self) -> None:
        """End the world and everything in it; does nothing the second time."""

    @abstractmethod
    async def _start(
        self, line: CommandLine, stdin: bytes, *, last: bool, on_output: OnOutput | None
    ) -> WorldProcess: ...

    @abstractmethod
    async def _read(self, path: str, most: int) -> Result: ...

    @abstractmethod
    async def _write(self, path: str, content: bytes, mode: int) -> Result: ...

    @abstractmethod
    async def _pack(self, path: str, archive: IO[bytes], most: int) -> Result: ...

    @abstractmethod
    async def _unpack(self, path: str, archive: IO[bytes], most: int, *, replaces: bool) -> Result: ...

    @abstractmethod
    async def _freeze(self) -> None: ...

    @abstractmethod
    async def _open_another(self, spec: WorldSpec) -> "World": ...

    @property
    @abstractmethod
    def environment(self) -> Mapping[str, str]:
        """The variables that every command starts with."""

    @property
    @abstractmethod
    def scratch(self) -> str:
        """A folder for temporary files inside."""

    def _line(
        self,
        arguments: list[str],
        folder: str,
        environment: Mapping[str, str] | None,
        timeout_s: float | None,
        output_kib: int | None,
    ) -> CommandLine:
        self._must_not_be_frozen()
        limits = replace(self.spec.limits, wall_s=timeout_s or self.spec.limits.wall_s)
        limits = replace(limits, output_kib=output_kib or limits.output_kib)
        return CommandLine(arguments, folder, {**self.environment, **(environment or {})}, limits)

    def _remembering(self, command: str, folder: str) -> list[str]:
        script = _REMEMBERING % {"names": " ".join(map(shlex.quote, sorted(self.environment)))}
        # The name holds the place of the world: a shell's variables mean nothing in a copy that has another place.
        state = f"{self.scratch}/.shell{self.workdir.replace('/', '-')}"
        return self._shell("-c", script, "sh", state, self._path(folder) if folder else "", command)

    def _shell(self, *arguments: str) -> list[str]:
        return ["/bin/sh", "-c", _SHELL, "sh", *arguments]

    def _path(self, path: str) -> str:
        return str(PurePosixPath(self.workdir, path))

    def _must_not_be_frozen(self) -> None:
        if self.frozen:
            raise SandboxError("the world is frozen, so that its files stay as they are")


def _checked(result: Result) -> Result:
    if result.ending is ProgramEnding.EXITED and result.exit_code == 0:
        return result
    reason = result.stderr.decode("utf-8", "replace").strip() or f"ended by {result.ending}, code {result.exit_code}"
    raise FileNotFoundError(reason) if result.exit_code == MISSING else WorldFileError(reason)


def tree_failure(reason: str) -> Result:
    """What a level reports of a file that it could not read or write itself."""
    return Result(ProgramEnding.EXITED, FAILED, b"", reason.encode(), 0.0, 0.0, 0.0)


def _unpack_here(archive: IO[bytes], folder: Path, most: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    archive.seek(0)
    try:
        unpack_tree(archive, str(folder), most=most, contained=True)
    except TreeError as error:
        raise WorldFileError(str(error)) from None


def _pack_here(folder: Path, archive: IO[bytes], most: int) -> None:
    try:
        top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}") from None
    try:
        pack_tree(top, archive, most=most)
    except TreeError as error:
        raise ConfigError(f"{folder}: {error}", hint="raise the limit disk_mib of the world") from None
    finally:
        os.close(top)
    archive.seek(0)
