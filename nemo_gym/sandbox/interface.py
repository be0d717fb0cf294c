"""The sandbox types that servers use: the specification, the result of a command, and the interface of a provider.

A failure of the sandbox is an error and never becomes a reward. A failure of the program is a result, not an error.

    RolloutError
    └── SandboxError                              the sandbox failed; nothing is known about the program
        └── SandboxCreateError                    it could not be created
            └── SandboxCreateVerificationError    it was created, but does not isolate what it should
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from nemo_gym.errors import RolloutError


class SandboxError(RolloutError):
    """A sandbox failed, so the result of the program is unknown."""


class SandboxCreateError(SandboxError):
    """A sandbox could not be created."""


class SandboxCreateVerificationError(SandboxCreateError):
    """A sandbox was created, but does not meet its specification."""


class SandboxStatus(StrEnum):
    """The state of a sandbox."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPED = "stopped"
    ERROR = "error"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SandboxResources:
    """The resources of a sandbox; None leaves the choice to the provider."""

    cpu: float | None = None
    memory_mib: int | None = None
    disk_gib: float | None = None
    gpu: int | None = None
    gpu_type: str | None = None


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """The specification of a sandbox. ``files`` maps paths in it to contents, text or bytes."""

    image: str | None = None
    ttl_s: float | None = None
    ready_timeout_s: float | None = None
    workdir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    resources: SandboxResources = field(default_factory=SandboxResources)
    entrypoint: list[str] | None = None
    provider_options: Mapping[str, Any] = field(default_factory=dict)
    ports: list[int] | None = None


@dataclass(frozen=True, slots=True)
class SandboxExecResult:
    """The output of a command and how it ended. ``error_type`` is set if it hit a limit: ``timeout``, ``memory``, …"""

    stdout: str | None
    stderr: str | None
    return_code: int
    error_type: str | None = None


ExecResult = SandboxExecResult


@dataclass(frozen=True, slots=True)
class SandboxHandle:
    """A sandbox that exists; ``raw`` is the provider's own object."""

    sandbox_id: str
    provider_name: str
    raw: Any = None


@runtime_checkable
class SandboxProvider(Protocol):
    """Creates sandboxes and runs commands in them."""

    name: str

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Create a sandbox that is ready for commands; raises ``SandboxCreateError``."""

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
        """Run a command and wait for it to end."""

    async def upload_file(self, handle: SandboxHandle, local: Path, remote: str) -> None:
        """Copy a file into the sandbox."""

    async def download_file(self, handle: SandboxHandle, remote: str, local: Path) -> None:
        """Copy a file out of the sandbox."""

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        """The state of a sandbox."""

    async def close(self, handle: SandboxHandle) -> None:
        """End a sandbox with everything in it."""

    async def aclose(self) -> None:
        """Close all sandboxes and the provider itself."""
