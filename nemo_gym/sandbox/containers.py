"""Boxes in Docker or Podman containers, driven through their command lines; in gVisor where its runtime is installed.

They start more slowly than boxes of the other levels, but bring their own system: the image. Only the working
folder, which is in memory, can be written. There is no network, and programs have no capabilities.
"""

import asyncio
import base64
import json
import os
import resource
import shutil
import signal
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final

from nemo_gym.sandbox.boxes import BoxCommand, BoxProgram, BoxSession, Runner, last_line
from nemo_gym.sandbox.container_worlds import ContainerSnapshot, ContainerWorld
from nemo_gym.sandbox.engines import CLIENT_LIMITS, ENGINES, HeldContainer, run_engine
from nemo_gym.sandbox.inside.limits import ProgramEnding, Result, SandboxLimits
from nemo_gym.sandbox.interface import SandboxCreateError, SandboxError
from nemo_gym.sandbox.worlds import WorldFile, WorldSpec

FOLDER: Final = "/box"
_GVISOR: Final = "runsc"
_MANY: Final = 1 << 14
_USER: Final = "1000:1000"
_OUT_OF_TIME: Final = 128 + signal.SIGXCPU


class ContainerRunner(Runner):
    """Runs each program in a new container, made from ``image`` by ``engine`` (by default, one that is installed).

    Programs can import ``modules`` (source by name). At most ``parallel`` run at once.
    """

    def __init__(
        self,
        *,
        image: str,
        limits: SandboxLimits | None = None,
        modules: Mapping[str, str] | None = None,
        parallel: int | None = None,
        engine: str | None = None,
    ) -> None:
        super().__init__("container", limits)
        self._image = image
        self._engine = engine
        self._modules = {f"{name.replace('.', '/')}.py": source.encode() for name, source in (modules or {}).items()}
        self._runtime: list[str] = []
        self._sessions: set[ContainerSession] = set()
        self._worlds: set[ContainerWorld] = set()
        self._gate = asyncio.Semaphore(parallel or os.cpu_count() or 1)

    async def start(self) -> None:
        """Find an engine that replies and has the image."""
        problems = []
        for engine in [self._engine] if self._engine else ENGINES:
            problem = await self._problem_with(engine)
            if problem is None:
                self._engine = engine
                return
            problems.append(f"{engine}: {problem}")
        raise SandboxCreateError(f"isolation by containers does not work here: {'; '.join(problems)}")

    async def open_session(
        self, *, limits: SandboxLimits | None = None, image: str | None = None
    ) -> "ContainerSession":
        """A container that the caller has to stop."""
        if self._engine is None:
            await self.start()
        assert self._engine is not None, "start finds one or raises"
        limits = limits or self.limits
        name = f"rollout-gym-{uuid.uuid4().hex}"
        container = HeldContainer(self._engine, name)
        await container.start(self._create(limits), image or self._image)
        session = ContainerSession(container, limits, on_stop=self._sessions.discard)
        self._sessions.add(session)
        for path, content in self._modules.items():
            await session.upload(path, content)
        return session

    async def open_world(self, spec: WorldSpec | None = None) -> ContainerWorld:
        """A container with a layer that can be written, which the caller has to stop."""
        if self._engine is None:
            await self.start()
        assert self._engine is not None, "start finds one or raises"
        spec = spec or WorldSpec()
        if spec.readable:
            raise SandboxCreateError("a container sees only its image; put the folders into it")
        image = str(spec.root or self._image)
        if isinstance(spec.snapshot, ContainerSnapshot):
            image = spec.snapshot.image
            spec.snapshot.lend()
        elif spec.snapshot is not None:
            raise SandboxCreateError("a snapshot of another level can't be used in a container")
        world = ContainerWorld(self._engine, spec, on_stop=self._worlds.discard, open_another=self.open_world)
        self._worlds.add(world)
        try:
            await world.open(image, self._world_options(spec))
            for path, file in spec.files.items():
                given = file if isinstance(file, WorldFile) else WorldFile(file)
                await world.write(path, given.content, mode=given.mode)
        except BaseException:
            await world.stop()
            raise
        return world

    async def aclose(self) -> None:
        for world in tuple(self._worlds):
            await world.stop()
        for session in tuple(self._sessions):
            await session.stop()

    async def _run(self, program: BoxProgram, limits: SandboxLimits) -> Result:
        async with self._gate, self.session(limits=limits) as session:
            return await session.python(program.source, stdin=program.stdin, files=program.files)

    def _create(self, limits: SandboxLimits) -> list[str]:
        disk = f"{FOLDER}:rw,exec,nosuid,nodev,mode=1777,size={limits.disk_mib}m"
        if self._engine == "docker":  # Podman does not know the option
            disk += f",nr_inodes={limits.disk_files}"
        return [
            "--read-only", f"--user={_USER}", f"--workdir={FOLDER}",
            f"--tmpfs={disk}", f"--env=HOME={FOLDER}", f"--env=TMPDIR={FOLDER}", *self._confining(limits),
        ]  # fmt: skip

    def _world_options(self, spec: WorldSpec) -> list[str]:
        return [f"--user={spec.user}:{spec.user}", *self._confining(spec.limits)]

    def _confining(self, limits: SandboxLimits) -> list[str]:
        """What every container has to do without."""
        return [
            "--network=none", "--cap-drop=ALL", "--security-opt=no-new-privileges",
            # --memory-swap limits memory and swap together, so equal limits mean no swap.
            f"--memory={limits.memory_mib}m", f"--memory-swap={limits.memory_mib}m",
            # Two more than the program may have: the first process of the container and its ``sleep``.
            f"--pids-limit={limits.processes + 2}", f"--ulimit=nofile={limits.open_files}",
            f"--ulimit=fsize={limits.file_mib << 20}", "--ulimit=core=0", *_limit_of_users(),
            # An image is never pulled here: that takes minutes, and would count as the program's time.
            "--pull=never", "--stop-timeout=0", *self._runtime,
        ]  # fmt: skip

    async def _problem_with(self, engine: str) -> str | None:
        if shutil.which(engine) is None:
            return "not installed"
        info = await run_engine([engine, "info", "--format", "{{json .}}"])
        if info.exit_code != 0:
            return last_line(info.stderr)
        if (await run_engine([engine, "image", "inspect", self._image])).exit_code != 0:
            return f"the image is not here ({engine} pull {self._image})"
        # Docker lists its runtimes; Podman finds them by name.
        runtimes = json.loads(info.stdout).get("Runtimes") or {}
        if _GVISOR in runtimes or (engine == "podman" and shutil.which(_GVISOR)):
            self._runtime = [f"--runtime={_GVISOR}"]
        return None


def _limit_of_users() -> list[str]:
    """A limit on the processes of a user that engines may set; by default, some ask for more than they may have.

    It only has to be high: what a container may start is limited by its control group.
    """
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    return [f"--ulimit=nproc={_MANY if hard == resource.RLIM_INFINITY else min(_MANY, hard)}"]


class ContainerSession(BoxSession):
    """A running container."""

    def __init__(
        self, container: HeldContainer, limits: SandboxLimits, *, on_stop: Callable[["ContainerSession"], None]
    ) -> None:
        super().__init__(limits)
        self._container = container
        self._engine, self._name = container.engine, container.name
        self._on_stop = on_stop

    async def upload(self, path: str, content: bytes) -> None:
        """Write a file; a relative path is below the box's folder."""
        # Through a program in the box: the engines' own ``cp`` can't write to a tmpfs.
        script = 'mkdir -p "$(dirname "$1")" && base64 -d > "$1"'
        result = await self.exec(
            ["/bin/sh", "-c", script, "sh", path], stdin=base64.b64encode(content), limits=CLIENT_LIMITS
        )
        if not result.ok:
            raise SandboxError(f"can't write {path}: {last_line(result.stderr)}")

    async def stop(self) -> None:
        """Remove the container with everything in it."""
        self._on_stop(self)
        await self._container.remove()

    async def _exec(self, command: BoxCommand, limits: SandboxLimits) -> Result:
        """Run a command. If it takes too long, the whole container is killed."""
        seconds = int(limits.cpu_s) + 1
        # The soft limit's signal, SIGXCPU, shows in the exit code; the hard limit ends programs that ignore it.
        limit = f'ulimit -S -t {seconds}; ulimit -H -t {seconds + 1}; exec "$@"'
        bounded = ["/bin/sh", "-c", limit, "sh", *command.arguments]
        settings = [f"--env={name}={value}" for name, value in command.environment.items()]
        place = [f"--workdir={PurePosixPath(FOLDER, command.folder)}"]
        line = [self._engine, "exec", "--interactive", *settings, *place, self._name, *bounded]
        result = await run_engine(line, stdin=command.stdin, limits=limits)
        if result.ending in {ProgramEnding.WALL_TIME, ProgramEnding.OUTPUT}:
            # Killing the engine's client does not end the program in the container.
            await run_engine([self._engine, "kill", self._name])
        elif result.exit_code in {125, 126} and b"container" in result.stderr:
            # A program can end with these codes too; only the engine's message speaks of a container.
            raise SandboxError(f"{self._engine} could not run the program: {last_line(result.stderr)}")
        elif result.exit_code == _OUT_OF_TIME:
            return replace(result, ending=ProgramEnding.CPU_TIME)
        return result

    async def _python(self, program: BoxProgram, limits: SandboxLimits) -> Result:
        for path, content in {**program.files, "program.py": program.source.encode()}.items():
            await self.upload(path, content)
        return await self.exec(["python3", "program.py"], stdin=program.stdin, limits=limits)

    async def _read_file(self, path: str) -> Result:
        return await self.exec(["cat", "--", path])
