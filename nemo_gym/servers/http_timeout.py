"""How long a request may take."""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol


class Limits(Protocol):
    """What is read of a timeout: an own one, or ``aiohttp.ClientTimeout``."""

    @property
    def total(self) -> float | None:
        """Seconds for everything; None: any number."""

    @property
    def sock_connect(self) -> float | None:
        """Seconds for a connection; None: any number."""

    @property
    def connect(self) -> float | None:
        """Seconds for a connection and the wait for a place in the pool, which only aiohttp can limit."""

    @property
    def sock_read(self) -> float | None:
        """Seconds between two parts of an answer, which only aiohttp can limit."""


@dataclass(frozen=True, slots=True)
class Timeout:
    """Limits in seconds; None: no limit."""

    total: float | None = None
    sock_connect: float | None = None

    connect: ClassVar[None] = None
    sock_read: ClassVar[None] = None


def timeout_of(given: Any) -> Limits:
    """What a caller gave: a number for the whole request, or limits."""
    limits: Limits = given if hasattr(given, "total") else Timeout(total=given)
    return limits
