"""Where Gyms go on a cluster: pure decisions, made anew whenever nodes come or go.

Without a number of workers every node gets a Gym for each ``cpus`` of its CPUs, or a single one, and nodes that join
get theirs while the run goes on. With a number, that many Gyms are asked for and the cluster spreads them, so that an
autoscaler sees what is wanted.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from nemo_gym.executors.handshake import Invitation

CPU = "CPU"


class ClusterNode(NamedTuple):
    """A machine of the cluster."""

    id: str
    name: str  # for people
    resources: Mapping[str, float]


class Place(NamedTuple):
    """Where one Gym is to start: on this node, or anywhere but on those."""

    node: str | None
    avoid: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Demand:
    """How many Gyms are wanted, and what each takes."""

    workers: int | None = None  # None: as many as the nodes have room for
    cpus: float | None = 1.0  # of each Gym; None: one Gym on each node
    resources: Mapping[str, float] = field(default_factory=dict)

    def room(self, node: ClusterNode) -> int:
        """How many Gyms a node has room for, if nobody else is there."""
        if self.cpus is None:
            fits = 1 if node.resources.get(CPU, 0.0) > 0 else 0
        else:
            fits = int(node.resources.get(CPU, 0.0) / self.cpus)
        return min(
            [fits, *(int(node.resources.get(name, 0.0) / each) for name, each in self.resources.items() if each)]
        )

    def missing(
        self, nodes: Iterable[ClusterNode], present: Counter[str | None], excluded: Collection[str]
    ) -> list[Place]:
        """The Gyms that have to be started now."""
        if self.workers is not None:
            return [Place(None, frozenset(excluded))] * (self.workers - present.total())
        usable = [node for node in nodes if node.id not in excluded]
        return [Place(node.id) for node in usable for _ in range(self.room(node) - present[node.id])]


class StartFailure(NamedTuple):
    """Why a Gym could not start, in its own words."""

    message: str
    hint: str | None = None


class GymGoneError(Exception):
    """The process with the Gym ended without having said why."""


class Cluster(Protocol):
    """What starts processes on several machines and notices their end."""

    @property
    def host(self) -> str:
        """The address at which the machines reach this one."""
        ...

    async def nodes(self) -> list[ClusterNode]:
        """The machines that are there now."""
        ...

    async def start(self, place: Place, invitation: Invitation) -> Any:
        """Start a Gym, which then connects to the collector; returns what the others take."""
        ...

    async def ended(self, started: Any) -> StartFailure | None:
        """Wait until it has ended. Raises GymGoneError unless it could say how."""
        ...

    async def end(self, started: Any) -> None:
        """End it, whatever it does."""
        ...
