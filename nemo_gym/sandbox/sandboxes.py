"""A sandbox as servers use it: start it, run commands, copy files, stop it. ``Sandbox`` is the blocking version."""

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from nemo_gym.sandbox.interface import (
    SandboxError,
    SandboxExecResult,
    SandboxHandle,
    SandboxProvider,
    SandboxSpec,
    SandboxStatus,
)
from nemo_gym.sandbox.providers import DEFAULT_PROVIDER, create_provider

T = TypeVar("T")
ProviderConfig = str | Mapping[str, Any] | SandboxProvider


class AsyncSandbox:
    """One sandbox of a provider. A provider that was created for it is closed with it."""

    def __init__(self, provider: ProviderConfig = DEFAULT_PROVIDER, spec: SandboxSpec | None = None) -> None:
        self._provider = create_provider(provider)
        self._owns_provider = self._provider is not provider
        self._spec = spec
        self._handle: SandboxHandle | None = None

    async def start(self, spec: SandboxSpec | None = None) -> Self:
        """Create the sandbox."""
        if self._handle is not None:
            raise SandboxError("the sandbox is running already")
        self._handle = await self._provider.create(spec or self._spec or SandboxSpec())
        return self

    async def exec(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        user: str | int | None = None,
    ) -> SandboxExecResult:
        """Run a command and wait for it to end."""
        return await self._provider.exec(self._running(), command, cwd=cwd, env=env, timeout_s=timeout_s, user=user)

    async def upload(self, local: str | Path, remote: str) -> None:
        """Copy a file into the sandbox."""
        await self._provider.upload_file(self._running(), Path(local), remote)

    async def download(self, remote: str, local: str | Path) -> None:
        """Copy a file out of the sandbox."""
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


class Sandbox:
    """``AsyncSandbox`` for code without an event loop; it runs its own loop in a thread."""

    def __init__(self, provider: ProviderConfig = DEFAULT_PROVIDER, spec: SandboxSpec | None = None) -> None:
        self._sandbox = AsyncSandbox(provider, spec)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self, spec: SandboxSpec | None = None) -> Self:
        """Create the sandbox."""
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
        """Run a command and wait for it to end."""
        return self._wait(self._sandbox.exec(command, cwd=cwd, env=env, timeout_s=timeout_s, user=user))

    def upload(self, local: str | Path, remote: str) -> None:
        """Copy a file into the sandbox."""
        self._wait(self._sandbox.upload(local, remote))

    def download(self, remote: str, local: str | Path) -> None:
        """Copy a file out of the sandbox."""
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
