"""Sandboxes that are plain folders of this machine. Nothing is isolated: they are for trusted code, and for trials."""

import asyncio
import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from nemo_gym.errors import ConfigError
from nemo_gym.sandbox.interface import (
    SandboxCreateError,
    SandboxError,
    SandboxExecResult,
    SandboxHandle,
    SandboxSpec,
    SandboxStatus,
)

TIMED_OUT: Final = 124  # the exit code of the command ``timeout``


class LocalProvider:
    """Runs commands as this user, each sandbox in a folder of its own, which is removed with it."""

    name = "local"

    def __init__(
        self,
        workspace_root: str | Path | None = None,
        shell: str = "/bin/bash",
        default_timeout_s: float = 180.0,
        concurrency: int = 8,
    ) -> None:
        self._root = Path(workspace_root) if workspace_root is not None else None
        self._shell = shell
        self._timeout_s = default_timeout_s
        self._slots = asyncio.Semaphore(concurrency)
        self._open: dict[str, tuple[Path, SandboxSpec]] = {}

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Make the folder and write the files; anything that needs a real sandbox is refused."""
        if spec.image or spec.ports or spec.needs.gpu:
            raise SandboxCreateError("the sandbox provider 'local' has no images, ports or GPUs; use 'docker'")
        if self._root is not None:
            self._root.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="sandbox-", dir=self._root))
        handle = SandboxHandle(f"{self.name}-{uuid.uuid4().hex}", self.name, folder)
        self._open[handle.sandbox_id] = folder, spec
        for path, content in spec.files.items():
            place = self._place(handle, path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content.encode() if isinstance(content, str) else content)
        if spec.workdir:
            self._place(handle, spec.workdir).mkdir(parents=True, exist_ok=True)
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
        """Run a command in the shell. If it takes too long, its whole group of processes is killed."""
        if user is not None:
            raise ConfigError(f"the sandbox provider 'local' has one user, so user={user!r} can't be chosen")
        spec = self._get(handle)[1]
        folder = self._place(handle, cwd or spec.workdir or ".")
        variables = {**os.environ, **spec.env, **(env or {})}
        async with self._slots:
            process = await asyncio.create_subprocess_exec(
                *(self._shell, "-c", command),
                cwd=folder,
                env=variables,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
            return await _ended(process, timeout_s or self._timeout_s)

    async def upload_file(self, handle: SandboxHandle, local: Path, remote: str) -> None:
        place = self._place(handle, remote)
        place.parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(shutil.copyfile, local, place)

    async def download_file(self, handle: SandboxHandle, remote: str, local: Path) -> None:
        await asyncio.to_thread(shutil.copyfile, self._place(handle, remote), local)

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        """The state: running until it is closed."""
        return SandboxStatus.RUNNING if handle.sandbox_id in self._open else SandboxStatus.STOPPED

    async def close(self, handle: SandboxHandle) -> None:
        """Remove the folder."""
        folder, _ = self._open.pop(handle.sandbox_id, (None, None))
        if folder is not None:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def aclose(self) -> None:
        for name in tuple(self._open):
            await self.close(SandboxHandle(name, self.name))

    def _get(self, handle: SandboxHandle) -> tuple[Path, SandboxSpec]:
        if handle.sandbox_id not in self._open:
            raise SandboxError(f"the sandbox {handle.sandbox_id} is not running")
        return self._open[handle.sandbox_id]

    def _place(self, handle: SandboxHandle, path: str) -> Path:
        return self._get(handle)[0] / path  # an absolute path is one of this machine


async def _ended(process: asyncio.subprocess.Process, timeout_s: float) -> SandboxExecResult:
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await process.communicate()
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = await process.communicate()
        if not isinstance(error, TimeoutError):
            raise
        return _result(out, err, TIMED_OUT, "timeout")
    return _result(out, err, process.returncode or 0, None)


def _result(out: bytes, err: bytes, code: int, error_type: str | None) -> SandboxExecResult:
    stdout, stderr = (part.decode(errors="replace") for part in (out, err))
    return SandboxExecResult(stdout, stderr, return_code=code, error_type=error_type)
