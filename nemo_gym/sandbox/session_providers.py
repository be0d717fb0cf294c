"""Providers whose sandboxes are sessions of our own runners: on this machine (``jail``) and in containers."""

import asyncio
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from nemo_gym.errors import ConfigError
from nemo_gym.sandbox.boxes import BoxSession, Runner
from nemo_gym.sandbox.containers import ContainerRunner, ContainerSession
from nemo_gym.sandbox.engines import ENGINES
from nemo_gym.sandbox.inside.limits import ProgramEnding, Result, SandboxLimits
from nemo_gym.sandbox.interface import (
    SandboxCreateError,
    SandboxError,
    SandboxExecResult,
    SandboxHandle,
    SandboxSpec,
    SandboxStatus,
)
from nemo_gym.sandbox.runners import Isolation, SandboxSettings, open_runner

_GRACE_S: Final = 1.0  # between the end of a sandbox's time to live and its removal
_TIMED_OUT: Final = 124  # the exit code of the command ``timeout``
_ERROR_TYPES: Final = {ProgramEnding.WALL_TIME: "timeout", ProgramEnding.CPU_TIME: "timeout"}
_SESSION_LIMITS: Final = SandboxLimits(
    cpu_s=600, wall_s=600, memory_mib=2048, processes=128, file_mib=512, disk_mib=1024
)


class _SessionProvider:
    """The common part of providers whose sandboxes are sessions of a runner."""

    name = ""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Open a session, upload the files, run the entry point."""
        limits = _limits_of(spec)
        async with asyncio.timeout(spec.ready_timeout_s):
            session = await self._session(spec, limits)
        sandbox = _Open(session, spec, limits)
        handle = SandboxHandle(f"{self.name}-{uuid.uuid4().hex}", self.name, session)
        self._open[handle.sandbox_id] = sandbox
        try:
            for path, content in spec.files.items():
                await session.upload(path, content.encode() if isinstance(content, str) else content)
            if spec.workdir:
                await session.exec(["mkdir", "-p", spec.workdir])
            if spec.entrypoint:
                await session.exec(spec.entrypoint, environment=spec.env, limits=limits)
        except (SandboxError, OSError) as error:
            await self.close(handle)
            raise SandboxCreateError(f"the sandbox could not be set up: {error}") from error
        return handle

    async def exec(
        self,
        handle: SandboxHandle,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        user: str | int | None = None,
    ) -> SandboxExecResult:
        if user is not None:
            raise ConfigError(f"the sandbox provider {self.name!r} has one user, so user={user!r} can't be chosen")
        sandbox = self._get(handle)
        if sandbox.seconds_left() <= 0:
            raise SandboxError(f"the time to live of the sandbox {handle.sandbox_id} is over")
        seconds = min(timeout_s or sandbox.limits.wall_s, sandbox.seconds_left())
        limits = replace(sandbox.limits, wall_s=seconds, cpu_s=min(sandbox.limits.cpu_s, seconds + 1))
        environment = {**sandbox.spec.env, **(env or {})}
        folder = cwd or sandbox.spec.workdir or ""
        result = await sandbox.session.exec(command, folder=folder, environment=environment, limits=limits)
        return _exec_result(result)

    async def upload_file(self, handle: SandboxHandle, local: Path, remote: str) -> None:
        content = await asyncio.to_thread(Path(local).read_bytes)
        await self._get(handle).session.upload(remote, content)

    async def download_file(self, handle: SandboxHandle, remote: str, local: Path) -> None:
        content = await self._get(handle).session.download(remote)
        await asyncio.to_thread(Path(local).write_bytes, content)

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        """The state: running until it is closed or its time to live is over."""
        sandbox = self._open.get(handle.sandbox_id)
        return SandboxStatus.RUNNING if sandbox and sandbox.seconds_left() > 0 else SandboxStatus.STOPPED

    async def close(self, handle: SandboxHandle) -> None:
        """End a sandbox; does nothing if it has ended already."""
        sandbox = self._open.pop(handle.sandbox_id, None)
        if sandbox is not None:
            await sandbox.stop()

    async def aclose(self) -> None:
        for sandbox in tuple(self._open.values()):
            await sandbox.stop()
        self._open.clear()

    async def _session(self, spec: SandboxSpec, limits: SandboxLimits) -> BoxSession:
        raise NotImplementedError

    def _get(self, handle: SandboxHandle) -> "_Open":
        if handle.sandbox_id not in self._open:
            raise SandboxError(f"the sandbox {handle.sandbox_id} is not running")
        return self._open[handle.sandbox_id]


class JailProvider(_SessionProvider):
    """Sandboxes that use this machine's own system: quick to start, without images."""

    name = "jail"

    def __init__(self, isolation: Isolation = "auto", readable: list[str] | None = None) -> None:
        super().__init__()
        self._settings = SandboxSettings(isolation=isolation, readable=readable or [])
        self._runner: Runner | None = None

    async def aclose(self) -> None:
        """End all sandboxes and the runner that made them."""
        await super().aclose()
        if self._runner is not None:
            await self._runner.aclose()
            self._runner = None

    async def _session(self, spec: SandboxSpec, limits: SandboxLimits) -> BoxSession:
        unable = {"image": spec.image, "ports": spec.ports, "resources.gpu": spec.needs.gpu}
        for name, value in unable.items():
            if value:
                raise SandboxCreateError(f"the sandbox provider 'jail' has no {name} ({value!r}); use 'docker'")
        if self._runner is None:
            self._runner = await open_runner(self._settings)
        return await self._runner.open_session(limits=limits)


class ContainerProvider(_SessionProvider):
    """Sandboxes in containers of one engine."""

    def __init__(self, image: str = "python:3.12-slim") -> None:
        super().__init__()
        self._runner = ContainerRunner(image=image, engine=self.name)

    async def _session(self, spec: SandboxSpec, limits: SandboxLimits) -> ContainerSession:
        if spec.ports or spec.needs.gpu:
            raise SandboxCreateError(f"the sandbox provider {self.name!r} offers neither ports nor GPUs")
        return await self._runner.open_session(limits=limits, image=spec.image)


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerCreateConfig:
    """How containers are created, as NeMo Gym's folders write it.

    Ours have no network and no capabilities, and a read-only system; an option that would change that is refused.
    """

    keepalive_shell: str = "/bin/sh"
    keepalive_cmd: str = "sleep infinity"
    start_timeout_s: float = 600
    use_init: bool = True
    network: str | None = None
    read_only: bool = False
    cap_drop: Sequence[str] = ()
    security_opt: Sequence[str] = ()
    pids_limit: int | None = None
    extra_run_args: Sequence[str] = ()
    apply_resource_limits: bool = True
    publish_host: str = "127.0.0.1"

    def check(self) -> None:
        """Refuse what containers here can't have."""
        wanted = {"extra_run_args": self.extra_run_args, "network": self.network not in (None, "none")}
        if refused := [name for name, value in wanted.items() if value]:
            raise ConfigError(
                f"the sandbox provider 'docker' does not take {', '.join(refused)}: its containers have no network",
                hint="remove these options, or register a provider of your own with register_provider",
            )


class DockerProvider(ContainerProvider):
    """Containers of Docker."""

    name = ENGINES[0]

    def __init__(
        self,
        image: str = "python:3.12-slim",
        *,
        exec: Mapping[str, Any] | None = None,  # noqa: A002 - the name is part of the interface
        create: DockerCreateConfig | Mapping[str, Any] | None = None,
        probe: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(image)
        del exec, probe  # limits of commands are those of the box, and a container is probed by its first command
        (create if isinstance(create, DockerCreateConfig) else DockerCreateConfig(**(create or {}))).check()


class PodmanProvider(ContainerProvider):
    """Containers of Podman."""

    name = ENGINES[1]


class _Open:
    """An open session with its specification and time to live."""

    def __init__(self, session: BoxSession, spec: SandboxSpec, limits: SandboxLimits) -> None:
        self.session = session
        self.spec = spec
        self.limits = limits
        self._until = time.monotonic() + spec.ttl_s if spec.ttl_s else float("inf")
        loop = asyncio.get_running_loop()
        # A little later than the time to live, so that a command that reaches it is reported as timed out.
        self._end = loop.call_later(spec.ttl_s + _GRACE_S, self._expire) if spec.ttl_s else None
        self._ending: asyncio.Task[None] | None = None

    def seconds_left(self) -> float:
        """Seconds until the time to live is over."""
        return self._until - time.monotonic()

    async def stop(self) -> None:
        """End the session before its time to live is over."""
        if self._end is not None:
            self._end.cancel()
        await self.session.stop()

    def _expire(self) -> None:
        self._ending = asyncio.ensure_future(self.session.stop())


def _limits_of(spec: SandboxSpec) -> SandboxLimits:
    limits = _SESSION_LIMITS
    resources = spec.needs
    if resources.memory_mib:
        limits = replace(limits, memory_mib=resources.memory_mib)
    if resources.disk_gib:
        size = max(1, int(resources.disk_gib * 1024))
        # Room for one file per 64 KiB.
        limits = replace(limits, disk_mib=size, file_mib=size, disk_files=max(limits.disk_files, size * 16))
    seconds = spec.provider_options.get("wall_s", limits.wall_s)
    cores = resources.cpu or os.cpu_count() or 1
    return replace(limits, wall_s=seconds, cpu_s=seconds * cores, output_kib=16 * 1024)


def _exec_result(result: Result) -> SandboxExecResult:
    over = result.ending is not ProgramEnding.EXITED
    return SandboxExecResult(
        stdout=result.text,
        stderr=result.stderr.decode("utf-8", "replace"),
        return_code=_TIMED_OUT if result.ending in _ERROR_TYPES else result.exit_code,
        error_type=_ERROR_TYPES.get(result.ending, str(result.ending)) if over else None,
    )
