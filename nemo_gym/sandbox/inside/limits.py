"""The limits of a program in a sandbox, and how it ended. The host and the processes in a box share these types."""

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, Final

from nemo_gym.errors import ConfigError

MIB: Final = 1 << 20
KIB: Final = 1 << 10


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Limits that apply to a program together with all its descendants, unless stated otherwise."""

    cpu_s: float = 10.0
    wall_s: float = 20.0
    memory_mib: int = 512
    processes: int = 32
    file_mib: int = 32
    disk_mib: int = 64
    disk_files: int = 4096
    open_files: int = 256
    output_kib: int = 1024

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise ConfigError(f"the limit {field.name} must be a positive number, not {value!r}")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class ProgramEnding(StrEnum):
    """Why a program is no longer running."""

    EXITED = "exited"  # by itself, or by a signal
    CPU_TIME = "cpu_time"
    WALL_TIME = "wall_time"
    MEMORY = "memory"
    DISK = "disk"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Result:
    """How a program ended and what it wrote. ``exit_code`` is negative for a signal, as in ``subprocess``."""

    ending: ProgramEnding
    exit_code: int
    stdout: bytes
    stderr: bytes
    cpu_s: float
    wall_s: float
    peak_memory_mib: float
    cut: bool = False  # whether output beyond the limit was dropped

    @property
    def ok(self) -> bool:
        """Whether it ended by itself, with exit code 0."""
        return self.ending is ProgramEnding.EXITED and self.exit_code == 0

    @property
    def text(self) -> str:
        """Standard output as text; bytes that are not UTF-8 are replaced."""
        return self.stdout.decode("utf-8", "replace")
