"""A sandbox as servers use it: start it, run commands, copy files, stop it. ``Sandbox`` is the blocking version."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from nemo_gym.sandbox.interface import (
    ConnectableProvider,
    SandboxEndpoint,
    SandboxError,
    SandboxExecResult,
    SandboxHandle,
    SandboxProvider,
    SandboxSpec,
    SandboxStatus,
    SupportsSandboxEndpoint,
    SupportsSandboxPauseResume,
)
from nemo_gym.sandbox.provider_registry import DEFAULT_PROVIDER, create_provider

T = TypeVar("T")
ProviderConfig = str | Mapping[str, Any] | SandboxProvider


class AsyncSandbox:
    """One sandbox of a provider.

    A provider that was created for it is closed with it, and one that was passed if ``owns_provider`` says so.
    """

    def __init__(
        self,
        provider: ProviderConfig = DEFAULT_PROVIDER,
        spec: SandboxSpec | None = None,
        *,
        owns_provider: bool | None = None,
    ) -> None:
        self._provider = create_provider(provider)
        self._owns_provider = self._provider is not provider if owns_provider is None else owns_provider
        self._spec = spec
        self._handle: SandboxHandle | None = None
        self._is_connected = False  # and was created by someone else

    async def start(self, spec: SandboxSpec | None = None) -> Self:
        if self._handle is not None:
            raise SandboxError("the sandbox is running already")
        self._spec = spec or self._spec or SandboxSpec()
        self._handle = await self._provider.create(self._spec)
        return self

    async def start_with_setup(self, spec: SandboxSpec | None, setup: Callable[[Self], Awaitable[Any]]) -> Self:
        """Start it and prepare it; if that fails, it is stopped again."""
        await self.start(spec)
        try:
            await setup(self)
        except BaseException:
            await self.stop()
            raise
        return self

    async def endpoint(self, port: int) -> SandboxEndpoint:
        """Where a port of its specification can be reached."""
        if port not in (self._spec.ports or () if self._spec is not None else ()):
            raise ValueError(f"port {port} is not among the ports of the specification")
        if not isinstance(self._provider, SupportsSandboxEndpoint):
            raise NotImplementedError(f"the sandbox provider {self._provider.name!r} can't publish ports")
        return await self._provider.endpoint(self._running(), port)

    async def pause(self) -> None:
        await self._pausing().pause(self._running())

    async def resume(self) -> None:
        await self._pausing().resume(self._running())

    def _pausing(self) -> SupportsSandboxPauseResume:
        if not isinstance(self._provider, SupportsSandboxPauseResume):
            raise NotImplementedError(f"the sandbox provider {self._provider.name!r} can't pause")
        return self._provider

    async def serialize(self, *, scope: str | None = None) -> dict[str, Any]:
        """What another process needs to connect to this sandbox."""
        described = await _connectable(self._provider).serialize_handle(self._running(), scope=scope)
        spec = self._spec or SandboxSpec()
        return {**described, "workdir": spec.workdir, "ports": list(spec.ports or ())}

    @classmethod
    async def connect(
        cls, descriptor: Mapping[str, Any], *, provider: ProviderConfig, owns_provider: bool = True
    ) -> Self:
        """A sandbox that was created elsewhere."""
        spec = SandboxSpec(workdir=descriptor.get("workdir"), ports=descriptor.get("ports"))
        sandbox = cls(provider, spec, owns_provider=owns_provider)
        sandbox._handle = await _connectable(sandbox._provider).connect(descriptor)
        sandbox._is_connected = True
        return sandbox

    async def disconnect(self) -> None:
        """Stop using a sandbox that was created elsewhere, which goes on without us."""
        if not self._is_connected:
            raise RuntimeError("only a sandbox that was connected to can be disconnected from")
        self._handle = None
        if self._owns_provider:
            await self._provider.aclose()

    async def exec(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        user: str | int | None = None,
    ) -> SandboxExecResult:
        return await self._provider.exec(self._running(), command, cwd=cwd, env=env, timeout_s=timeout_s, user=user)

    async def upload(self, local: str | Path, remote: str) -> None:
        await self._provider.upload_file(self._running(), Path(local), remote)

    async def download(self, remote: str, local: str | Path) -> None:
        await self._provider.download_file(self._running(), remote, Path(local))

    async def status(self) -> SandboxStatus:
        """The state; ``STOPPED`` before the start too."""
        return SandboxStatus.STOPPED if self._handle is None else await self._provider.status(self._handle)

    async def stop(self) -> None:
        """End the sandbox and everything in it; does nothing if it has ended already."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            await self._provider.close(handle)
        if self._owns_provider:
            await self._provider.aclose()

    async def __aenter__(self) -> Self:
        return self if self._handle is not None else await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _running(self) -> SandboxHandle:
        if self._handle is None:
            raise SandboxError("the sandbox is not running")
        return self._handle


def _connectable(provider: SandboxProvider) -> ConnectableProvider:
    if not isinstance(provider, ConnectableProvider):
        raise RuntimeError(f"sandboxes of the provider {provider.name!r} can't be used by another process")  # noqa: TRY004
    return provider


class Sandbox:
    """``AsyncSandbox`` for code without an event loop; it runs its own loop in a thread."""

    def __init__(self, provider: ProviderConfig = DEFAULT_PROVIDER, spec: SandboxSpec | None = None) -> None:
        self._sandbox = AsyncSandbox(provider, spec)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self, spec: SandboxSpec | None = None) -> Self:
        self._wait(self._sandbox.start(spec))
        return self

    def exec(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        user: str | int | None = None,
    ) -> SandboxExecResult:
        return self._wait(self._sandbox.exec(command, cwd=cwd, env=env, timeout_s=timeout_s, user=user))

    def upload(self, local: str | Path, remote: str) -> None:
        self._wait(self._sandbox.upload(local, remote))

    def download(self, remote: str, local: str | Path) -> None:
        self._wait(self._sandbox.download(remote, local))

    def status(self) -> SandboxStatus:
        """The state; ``STOPPED`` before the start too."""
        return self._wait(self._sandbox.status())

    def stop(self) -> None:
        """End the sandbox, everything in it, and the thread."""
        if self._loop is None or self._thread is None:
            return
        self._wait(self._sandbox.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="sandbox", daemon=True)
            self._thread.start()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
