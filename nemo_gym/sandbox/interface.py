"""The types of sandboxes that servers hold: what they ask for, what they get back, and what a provider has to do.

What goes wrong with a sandbox is never a reward. What a program does wrong is not an error but a result.

    RolloutError
    └── SandboxError                              it did not do its work; nothing is known about the program
        └── SandboxCreateError                    it could not be made
            └── SandboxCreateVerificationError    it was made, but does not isolate what it should
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from nemo_gym.errors import RolloutError


class SandboxError(RolloutError):
    """A sandbox failed, so whatever it was to find out is unknown."""


class SandboxCreateError(SandboxError):
    """A sandbox could not be made."""


class SandboxCreateVerificationError(SandboxCreateError):
    """A sandbox was made but is not what was asked for."""


class SandboxStatus(StrEnum):
    """Where a sandbox is in its life."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPED = "stopped"
    ERROR = "error"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SandboxResources:
    """What a sandbox may use; None leaves it to the provider."""

    cpu: float | None = None
    memory_mib: int | None = None
    disk_gib: float | None = None
    gpu: int | None = None
    gpu_type: str | None = None


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """A sandbox as it is asked for. ``files`` maps paths in it to contents, text or bytes."""

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
    """What a command wrote and how it ended. ``error_type`` is set if a limit ended it: ``timeout``, ``memory``, …"""

    stdout: str | None
    stderr: str | None
    return_code: int
    error_type: str | None = None


ExecResult = SandboxExecResult


@dataclass(frozen=True, slots=True)
class SandboxHandle:
    """A sandbox that exists; ``raw`` is the provider's own."""

    sandbox_id: str
    provider_name: str
    raw: Any = None


@runtime_checkable
class SandboxProvider(Protocol):
    """Makes sandboxes and works in them."""

    name: str

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Make a sandbox that is ready for commands; raises ``SandboxCreateError``."""

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
        """Run a command to its end."""

    async def upload_file(self, handle: SandboxHandle, local: Path, remote: str) -> None:
        """Copy a file into the sandbox."""

    async def download_file(self, handle: SandboxHandle, remote: str, local: Path) -> None:
        """Copy a file out of the sandbox."""

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        """Where it is in its life."""

    async def close(self, handle: SandboxHandle) -> None:
        """End a sandbox with everything in it."""

    async def aclose(self) -> None:
        """End all sandboxes, and the provider."""
