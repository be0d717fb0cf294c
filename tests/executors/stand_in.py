"""Workers and a cluster that cost nothing: coroutines of this process that talk to the collector over real sockets."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from nemo_gym.executors.frames import Frame, next_frame
from nemo_gym.executors.handshake import Invitation
from nemo_gym.executors.placement import ClusterNode, GymGoneError, Place, StartFailure
from nemo_gym.executors.remote_worker import join
from nemo_gym.executors.worker import READY, serve_collector
from nemo_gym.io.json import encode
from nemo_gym.rollouts.dispatch import Attempt
from nemo_gym.rollouts.store.outcome import Completed, Outcome, PlannedRollout

Work = Callable[[Invitation, str], Awaitable[StartFailure | None]]


async def answer(planned: PlannedRollout) -> Outcome:
    return Completed(planned, encode({**planned.row, "reward": 1.0}), 0.0, 1.0, None)


def worker(attempt: Attempt = answer, *, on_connection: Callable[[str, Any], None] | None = None) -> Work:
    """A worker without a Gym, which connects again when its connection breaks."""

    async def work(invitation: Invitation, node: str) -> StartFailure | None:
        while True:
            frames: asyncio.Queue[Frame] = asyncio.Queue()
            about = {"number": invitation.number, "node_id": node, "node_ip": "127.0.0.1"}
            connection = await join(invitation, frames, about)
            if await next_frame(frames, connection) is None:
                continue
            connection.send(Frame(READY).encode())
            if on_connection is not None:
                on_connection(node, connection)
            try:
                if await serve_collector(frames, connection, attempt):
                    return None
            finally:
                connection.close()

    return work


class StandInCluster:
    """Nodes that come and go as a test says; what is started on one is a task."""

    host = "127.0.0.1"

    def __init__(self, work: Work, nodes: int = 1, cpus: float = 1.0) -> None:
        self.work = work
        self.cpus = cpus
        self.alive: dict[str, list[asyncio.Task[StartFailure | None]]] = {}
        self.added = 0
        for _ in range(nodes):
            self.add_node()

    def add_node(self) -> str:
        name = f"n{self.added}"
        self.added += 1
        self.alive[name] = []
        return name

    def remove_node(self, name: str) -> None:
        for task in self.alive.pop(name):
            task.cancel()

    def kill_worker(self, name: str) -> None:
        for task in self.alive[name]:
            task.cancel()

    async def nodes(self) -> list[ClusterNode]:
        return [ClusterNode(name, name, {"CPU": self.cpus}) for name in self.alive]

    async def start(self, place: Place, invitation: Invitation) -> asyncio.Task[StartFailure | None]:
        name = place.node or next(name for name in self.alive if name not in place.avoid)
        task = asyncio.ensure_future(self.work(invitation, name))
        self.alive.setdefault(name, []).append(task)
        return task

    async def ended(self, started: asyncio.Task[StartFailure | None]) -> StartFailure | None:
        await asyncio.wait([started])
        if started.cancelled() or started.exception() is not None:
            raise GymGoneError("killed")
        return started.result()

    async def end(self, started: asyncio.Task[StartFailure | None]) -> None:
        started.cancel()
        await asyncio.wait([started])


async def endless(planned: PlannedRollout) -> Outcome:
    await asyncio.Event().wait()
    raise AssertionError(planned)


if __name__ == "__main__":  # a worker that never finishes anything, in a process of its own
    address, port, secret = sys.argv[1:]
    asyncio.run(worker(endless)(Invitation(address, int(port), bytes.fromhex(secret), 0), "far"))
