"""The sandbox types that servers use: the specification, the result of a command, and the interface of a provider.

A failure of the sandbox is an error and never becomes a reward. A failure of the program is a result, not an error.

    RolloutError
    └── SandboxError                              the sandbox failed; nothing is known about the program
        └── SandboxCreateError                    it could not be created
            └── SandboxCreateVerificationError    it was created, but does not isolate what it should
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from urllib.parse import urlsplit

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
    PAUSED = "paused"
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

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any] | None) -> "SandboxResources":
        """The resources that a configuration lists. An unknown name is a ``ValueError``."""
        known = {each.name for each in fields(cls)}
        if unknown := sorted(set(given or {}) - known):
            raise ValueError(f"unknown resources {', '.join(unknown)}; known are {', '.join(sorted(known))}")
        return cls(**(given or {}))


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
    resources: SandboxResources | Mapping[str, Any] = field(default_factory=SandboxResources)
    entrypoint: list[str] | None = None
    provider_options: Mapping[str, Any] = field(default_factory=dict)
    ports: Sequence[int] | None = None

    def __post_init__(self) -> None:
        ports = list(self.ports or ())
        if len(set(ports)) < len(ports) or not all(0 < port < 1 << 16 for port in ports):
            raise ValueError(f"ports must be different numbers from 1 to 65535, not {ports}")
        if not isinstance(self.resources, SandboxResources):
            object.__setattr__(self, "resources", SandboxResources.from_mapping(self.resources))

    @property
    def needs(self) -> SandboxResources:
        """The resources, however they were given."""
        assert isinstance(self.resources, SandboxResources)
        return self.resources


@dataclass(frozen=True, slots=True)
class SandboxEndpoint:
    """Where a port of a sandbox can be reached from outside."""

    endpoint: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = urlsplit(self.endpoint)
        if not parts.scheme or not parts.netloc:
            raise ValueError(f"{self.endpoint!r} is not an absolute URL")


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
        """Run a command as ``user`` and wait for it to end. ``env`` is added to the variables of the sandbox."""

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


@runtime_checkable
class ConnectableProvider(Protocol):
    """A provider whose sandboxes can be used by another process than the one that created them."""

    async def serialize_handle(self, handle: SandboxHandle, *, scope: str | None = None) -> dict[str, Any]:
        """What another process needs to connect to a sandbox."""

    async def connect(self, descriptor: Mapping[str, Any]) -> SandboxHandle:
        """The sandbox that a descriptor names."""


@runtime_checkable
class SupportsSandboxEndpoint(Protocol):
    """A provider that can publish ports."""

    async def endpoint(self, handle: SandboxHandle, port: int) -> SandboxEndpoint:
        """Where a port of a sandbox can be reached."""


@runtime_checkable
class SupportsSandboxPauseResume(Protocol):
    """A provider that can stop a sandbox for a while."""

    async def pause(self, handle: SandboxHandle) -> None:
        """Stop everything in a sandbox until it is resumed."""

    async def resume(self, handle: SandboxHandle) -> None:
        """Let everything in a sandbox go on."""
