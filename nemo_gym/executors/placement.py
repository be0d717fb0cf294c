"""Decides where Gyms run on a cluster. Pure; the decision is made again whenever nodes join or leave.

Without a number of workers, every node gets one Gym for each ``cpus`` of its CPUs, or a single one, and nodes that join
during the run get theirs. With a number, that many Gyms are requested and the cluster spreads them, so an autoscaler
sees the unmet demand.
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
    name: str  # for messages
    resources: Mapping[str, float]


class Place(NamedTuple):
    """Where one Gym is to start: on a given node, or on any node that is not excluded."""

    node: str | None
    avoid: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Demand:
    """How many Gyms are wanted, and what each of them needs."""

    workers: int | None = None  # None: as many as the nodes have room for
    cpus: float | None = 1.0  # of each Gym; None: one Gym on each node
    resources: Mapping[str, float] = field(default_factory=dict)

    def room(self, node: ClusterNode) -> int:
        """How many Gyms fit on a node if nothing else runs there."""
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
        """The places where Gyms have to be started now."""
        if self.workers is not None:
            return [Place(None, frozenset(excluded))] * (self.workers - present.total())
        usable = [node for node in nodes if node.id not in excluded]
        return [Place(node.id) for node in usable for _ in range(self.room(node) - present[node.id])]


class StartFailure(NamedTuple):
    """Why a Gym could not start, as it reported it."""

    message: str
    hint: str | None = None


class GymGoneError(Exception):
    """The process of a Gym ended without reporting why."""


class Cluster(Protocol):
    """Starts processes on several machines and notices when they end."""

    @property
    def host(self) -> str:
        """The address at which the other machines reach this one."""
        ...

    async def nodes(self) -> list[ClusterNode]:
        """The machines that are in the cluster now."""
        ...

    async def start(self, place: Place, invitation: Invitation) -> Any:
        """Start a Gym, which then connects to the collector; returns a handle for ``ended`` and ``end``."""
        ...

    async def ended(self, started: Any) -> StartFailure | None:
        """Wait until the Gym has ended. Raises GymGoneError if it ended without reporting how."""
        ...

    async def end(self, started: Any) -> None:
        """Kill the Gym, whatever it is doing."""
        ...
