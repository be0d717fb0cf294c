"""Worlds in containers of Docker or Podman: files are on the container's own layer, and a snapshot is an image.

Commands are started by the engine's client. Time limits end a command's session inside; the engine limits memory and
processes; the size of the layer is looked at every few seconds while commands run, because engines do not limit it.
"""

import asyncio
import contextlib
import os
import signal
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import IO, Any, Final

from nemo_gym.sandbox.boxes import last_line
from nemo_gym.sandbox.engines import HeldContainer, run_engine
from nemo_gym.sandbox.inside.limits import KIB, MIB, ProgramEnding, Result, SandboxLimits
from nemo_gym.sandbox.interface import SandboxCreateError, SandboxError
from nemo_gym.sandbox.openings import Opening, listen_in_network_of
from nemo_gym.sandbox.worlds import CommandLine, OnOutput, World, WorldProcess, WorldSnapshot, WorldSpec, tree_failure

_LOOK_EVERY_S: Final = 3.0
_FLOOD: Final = 64 * MIB
_PIECE: Final = 1 << 16
_OUT_OF_TIME: Final = 128 + signal.SIGXCPU
_FILES: Final = SandboxLimits(wall_s=600, cpu_s=600, output_kib=KIB)
_OF_THE_CLIENT: Final = ("HOME", "PATH", "TMPDIR", "XDG_", "DOCKER_", "CONTAINER", "PODMAN", "LD_", "SSL_", "DBUS_")
_SCRATCH: Final = "/tmp"  # noqa: S108 - of the container
# Tells the host, on the first line of standard error, which session it has to end when the time is over.
_BEGIN: Final = 'echo "$$" >&2; ulimit -S -t {cpu}; ulimit -H -t {more}; exec "$@"'
_END: Final = """
kill -9 -- "-$1" 2>/dev/null
for status in /proc/[0-9]*/stat; do
  read -r line 2>/dev/null <"$status" || continue
  pid=${line%% *}; set -- "$1" ${line##*) }
  [ "$5" != "$1" ] || kill -9 "$pid" 2>/dev/null
done
"""
_READ: Final = '[ -e "$1" ] || { echo "No such file: $1" >&2; exit 2; }; [ -f "$1" ] || exit 1; exec head -c "$2" "$1"'
_WRITE: Final = """
[ ! -d "$1" ] || [ -L "$1" ] || { echo "$1 is a folder" >&2; exit 1; }
mkdir -p "$(dirname "$1")" && cat >"$1.$$" && chmod "$2" "$1.$$" && mv -f "$1.$$" "$1"
"""
_PACK: Final = '[ -d "$1" ] || { echo "No such folder: $1" >&2; exit 2; }; exec tar -C "$1" -cf - .'
_UNPACK: Final = '[ "$2" = 0 ] || rm -rf "$1"; mkdir -p "$1" && exec tar -C "$1" -o -xf -'


class ContainerSnapshot(WorldSnapshot):
    """An image that was made from a container. It stays as long as a container needs it."""

    def __init__(self, engine: str, image: str) -> None:
        self.image = image
        self._engine = engine
        self._users = 0
        self._is_unwanted = False

    def lend(self) -> None:
        """A world starts from it."""
        self._users += 1

    async def give_back(self) -> None:
        """A world that started from it is gone."""
        self._users -= 1
        await self._remove_if_unused()

    async def remove(self) -> None:
        self._is_unwanted = True
        await self._remove_if_unused()

    async def _remove_if_unused(self) -> None:
        if self._is_unwanted and self._users == 0:
            await run_engine([self._engine, "rmi", "--force", self.image])


class ContainerWorld(World):
    """A running container with a layer of its own."""

    level = "container"

    def __init__(
        self,
        engine: str,
        spec: WorldSpec,
        *,
        on_stop: Callable[["ContainerWorld"], None],
        open_another: Callable[..., Any],
    ) -> None:
        super().__init__(spec)
        self.workdir = str(PurePosixPath("/", spec.workdir))
        self._engine = engine
        self._name = f"rollout-gym-{uuid.uuid4().hex}"
        self._container = HeldContainer(engine, self._name)
        self._on_stop = on_stop
        self._another = open_another
        self._running: set[_ContainerProcess] = set()
        self._watching: asyncio.Task[None] | None = None
        self._way_in: Opening | None = None
        self._stopped = False

    async def open(self, image: str, options: Sequence[str]) -> None:
        """Start the container; raises ``SandboxCreateError``."""
        await self._container.start(options, image)
        folders = [self.workdir, _SCRATCH]
        # Some engines make the root folder read-only, which binds a root without rights too.
        script = 'chmod u+w / && mkdir -p "$@" && chmod 1777 "$@"'
        made = await run_engine([self._engine, "exec", "--user=0", self._name, "/bin/sh", "-c", script, "sh", *folders])
        if made.exit_code != 0:
            raise SandboxCreateError(f"the image {image} has no shell that works: {last_line(made.stderr)}")
        if self.spec.opening is not None:
            await self._open_port(self.spec.opening)

    async def _open_port(self, address: tuple[str, int]) -> None:
        found = await run_engine([self._engine, "inspect", "--format", "{{.State.Pid}}", self._name])
        listener = await listen_in_network_of(int(found.stdout), address[1])
        self._way_in = Opening(listener, address)
        await self._way_in.start()
        self.opening = f"127.0.0.1:{address[1]}"

    @property
    def environment(self) -> Mapping[str, str]:
        """What the world sets; the image's own variables come from the engine."""
        return {"HOME": "/root" if self.spec.user == 0 else _SCRATCH, **self.spec.environment}

    @property
    def scratch(self) -> str:
        return _SCRATCH

    async def snapshot(self) -> ContainerSnapshot:
        """An image of everything in the container."""
        made = await run_engine([self._engine, "commit", self._name], limits=_FILES)
        if made.exit_code != 0:
            raise SandboxError(f"no snapshot could be made: {last_line(made.stderr)}")
        return ContainerSnapshot(self._engine, made.text.strip().splitlines()[-1])

    async def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        self._on_stop(self)
        if self._way_in is not None:
            await self._way_in.aclose()
        await self._container.remove()
        if isinstance(self.spec.snapshot, ContainerSnapshot):
            await self.spec.snapshot.give_back()
        if self._watching is not None:
            self._watching.cancel()
        for process in tuple(self._running):
            process.fail("the world was stopped")

    async def end_session(self, leader: str) -> None:
        """End a command inside, with everything in its session."""
        await self._inside(_END, leader)

    def forget(self, process: "_ContainerProcess") -> None:
        """A command has ended."""
        self._running.discard(process)

    async def _start(
        self, line: CommandLine, stdin: bytes, *, last: bool, on_output: OnOutput | None
    ) -> "_ContainerProcess":
        cpu = int(line.limits.cpu_s) + 1
        begin = ["/bin/sh", "-c", _BEGIN.format(cpu=cpu, more=cpu + 1), "sh", *line.arguments]
        # By name only: values, which may be secret, can be seen in the list of processes. What the client itself reads
        # is given by value.
        ours = {name: value for name, value in line.environment.items() if not name.startswith(_OF_THE_CLIENT)}
        settings = [
            f"--env={name}" if name in ours else f"--env={name}={value}" for name, value in line.environment.items()
        ]
        client = [self._engine, "exec", "--interactive", *settings, f"--workdir={line.folder}", self._name, *begin]
        process = _ContainerProcess(self, line.limits, on_output)
        await process.launch(client, {**os.environ, **ours})
        self._running.add(process)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.ensure_future(self._watch())
        if stdin:
            await process.write(stdin)
        if last:
            await process.close_input()
        return process

    async def _read(self, path: str, most: int) -> Result:
        result = await self._inside(_READ, path, str(most + 1), most=most + 1)
        if len(result.stdout) > most:
            return tree_failure(f"{path} has more than the {most:,} bytes allowed")
        return result if result.exit_code or result.ok else tree_failure(f"{path} can't be read: {result.ending}")

    async def _write(self, path: str, content: bytes, mode: int) -> Result:
        return await self._inside(_WRITE, path, f"{mode:o}", stdin=content)

    async def _pack(self, path: str, archive: IO[bytes], most: int) -> Result:
        client = [self._engine, "exec", self._name, "/bin/sh", "-c", _PACK, "sh", path]
        process = await asyncio.create_subprocess_exec(*client, stdout=archive, stderr=asyncio.subprocess.PIPE)
        waiting = asyncio.ensure_future(process.communicate())
        while not waiting.done():
            await asyncio.wait([waiting], timeout=0.1)
            if os.fstat(archive.fileno()).st_size > most and process.returncode is None:
                process.kill()
                await waiting
                return tree_failure(f"{path} takes more than the {most // MIB} MiB allowed")
        code = await process.wait()
        return Result(ProgramEnding.EXITED, code, b"", waiting.result()[1], 0.0, 0.0, 0.0)

    async def _unpack(self, path: str, archive: IO[bytes], most: int, *, replaces: bool) -> Result:
        if os.fstat(archive.fileno()).st_size > most:
            return tree_failure(f"the archive takes more than the {most // MIB} MiB allowed")
        script = ["/bin/sh", "-c", _UNPACK, "sh", path, str(int(replaces))]
        client = [self._engine, "exec", "--interactive", self._name, *script]
        process = await asyncio.create_subprocess_exec(
            *client, stdin=archive, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        _, errors = await process.communicate()
        return Result(ProgramEnding.EXITED, await process.wait(), b"", errors, 0.0, 0.0, 0.0)

    async def _freeze(self) -> None:
        for process in tuple(self._running):
            process.end()
        # The first process of a container can't be killed from inside, and ``kill`` spares itself.
        result = await self._inside("kill -9 -1; true")
        if result.ending is not ProgramEnding.EXITED:
            raise SandboxError("the world could not be frozen")
        for process in tuple(self._running):
            await process.wait()

    async def _open_another(self, spec: WorldSpec) -> World:
        world: World = await self._another(spec)
        return world

    async def _inside(self, script: str, *arguments: str, stdin: bytes = b"", most: int = MIB) -> Result:
        limits = SandboxLimits(wall_s=_FILES.wall_s, output_kib=most // KIB + 1)
        client = [self._engine, "exec", "--interactive", self._name, "/bin/sh", "-c", script, "sh", *arguments]
        return await run_engine(client, stdin=stdin, limits=limits)

    async def _watch(self) -> None:
        """While commands run, see that their files do not exceed the limit."""
        while self._running and not self._stopped:
            await asyncio.sleep(_LOOK_EVERY_S)
            client = [self._engine, "inspect", "--size", "--format", "{{.SizeRw}}", self._name]
            found = await run_engine(client)
            if found.ok and found.stdout.strip().isdigit() and int(found.stdout) > self.spec.limits.disk_mib * MIB:
                for process in tuple(self._running):
                    process.end(ProgramEnding.DISK)


class _ContainerProcess(WorldProcess):
    """A command in a container, and the engine's client that started it."""

    def __init__(self, world: ContainerWorld, limits: SandboxLimits, on_output: OnOutput | None) -> None:
        super().__init__(on_output)
        self._world = world
        self._limits = limits
        self._room = {1: limits.output_kib * KIB, 2: limits.output_kib * KIB}
        self._flood = limits.output_kib * KIB + _FLOOD
        self._cut = False
        self._leader: str | None = None
        self._begun = b""
        self._ending = ProgramEnding.EXITED
        self._tasks: set[asyncio.Task[None]] = set()

    async def launch(self, client: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the engine's client."""
        self._started = asyncio.get_running_loop().time()
        pipe = asyncio.subprocess.PIPE
        self._client = await asyncio.create_subprocess_exec(
            *client, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, start_new_session=True
        )
        self._do(self._attend())

    async def write(self, data: bytes) -> None:
        assert self._client.stdin is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._client.stdin.write(data)
            await self._client.stdin.drain()

    async def close_input(self) -> None:
        assert self._client.stdin is not None
        self._client.stdin.close()

    def end(self, ending: ProgramEnding = ProgramEnding.EXITED) -> None:
        if self.running:
            self._ending = ending
            self._do(self._end())

    def _do(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attend(self) -> None:
        assert self._client.stdout is not None
        assert self._client.stderr is not None
        readers = asyncio.gather(self._copy(1, self._client.stdout), self._copy(2, self._client.stderr))
        try:
            async with asyncio.timeout(self._limits.wall_s):
                await self._client.wait()
        except TimeoutError:
            self._ending = ProgramEnding.WALL_TIME
            await self._end()
        # What it left running may hold its output open for as long as the world lives.
        await asyncio.wait([readers], timeout=0.2)
        readers.cancel()
        await asyncio.gather(readers, return_exceptions=True)
        self._conclude(await self._client.wait())

    async def _copy(self, stream: int, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(_PIECE):
            if stream == 2 and self._leader is None:
                data = self._read_leader(data)
            taken = data[: self._room[stream]]
            self._room[stream] -= len(taken)
            self._flood -= len(data)
            self._cut = self._cut or len(taken) < len(data)
            if taken:
                self.take_output(stream, taken)
            if self._flood < 0 and self._ending is ProgramEnding.EXITED:
                self.end(ProgramEnding.OUTPUT)

    def _read_leader(self, data: bytes) -> bytes:
        """Take the first line, which is not the command's, off its errors."""
        self._begun += data
        line, newline, rest = self._begun.partition(b"\n")
        if newline and line.isdigit():
            self._leader = line.decode()
            return rest
        if newline or len(self._begun) > KIB:  # an error of the engine
            self._leader = ""
            return self._begun
        return b""

    async def _end(self) -> None:
        for _ in range(50):  # it may only just be starting
            if self._leader is not None or self._client.returncode is not None:
                break
            await asyncio.sleep(0.1)
        if self._leader:
            await self._world.end_session(self._leader)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await self._client.wait()
        if self._client.returncode is None:
            os.killpg(self._client.pid, signal.SIGKILL)

    def _conclude(self, code: int) -> None:
        self._world.forget(self)
        if not self._leader and code != 0:
            self.fail(f"the engine could not run the command: {last_line(self._begun)}")
            return
        if self._ending is not ProgramEnding.EXITED:
            code = -signal.SIGKILL
        ending = ProgramEnding.CPU_TIME if code == _OUT_OF_TIME else self._ending
        spent = asyncio.get_running_loop().time() - self._started
        self.finish(Result(ending, code, b"", b"", 0.0, spent, 0.0, self._cut))
