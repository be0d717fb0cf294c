"""Runs rollouts in Gyms on a cluster: the collector plans and is the only writer; workers connect and take leases.

The cluster starts processes and watches them; this module decides how many, and where. The death of a process, node or
connection shows on its socket: at once if a process was killed, within ten seconds if a cable was pulled. Its leases
become failed attempts of class ``worker_died``, which do not count against the rollouts. The worker then reconnects, or
another is started in its place. A node on which the Gym cannot start or keeps dying is reported and excluded. If no
other node is left, the run ends with the error of the Gym.
"""

import asyncio
import contextlib
import logging
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any, Final

from omegaconf import DictConfig, OmegaConf

from nemo_gym import __version__
from nemo_gym.errors import ConfigError
from nemo_gym.executors.frames import Connection, Frame, next_frame
from nemo_gym.executors.handshake import Frames, Invitation, Listener, collector_tls, new_secret
from nemo_gym.executors.leases import Roster, Worker
from nemo_gym.executors.placement import Cluster, ClusterNode, Demand, GymGoneError, Place, StartFailure
from nemo_gym.executors.worker import DISMISSED, READY
from nemo_gym.rollouts.options import WorkerOptions

logger = logging.getLogger(__name__)

DEFAULT_WINDOW: Final = 256
LOOK_S: Final = 1.0  # between checks for nodes that joined or left
SILENT_S: Final = 120.0  # of silence after which a connected worker is given up
DEATHS: Final = 4  # in a row on one node, without a finished attempt in between
NONE_LEFT_S: Final = 60.0  # how long a run waits for a new node once no usable node is left
STOP_S: Final = 5.0
_VARIABLE: Final = re.compile(r"\$\{\s*oc\.env:\s*([A-Za-z_]\w*)")


@dataclass(slots=True, eq=False)
class _Gym:
    """One process of the cluster, from its request to its end."""

    number: int
    place: Place
    node: str | None  # where it is, once that is known
    worker: Worker | None = None
    finished: int = 0  # attempts, over earlier connections
    since: float = field(default_factory=monotonic)
    started: Any = None  # the cluster's handle
    keeper: "asyncio.Task[None] | None" = None


class RemoteGyms(Roster):
    """Runs rollouts in Gyms on a cluster; calling it runs one attempt."""

    def __init__(self, cluster: Cluster, opening: Frame, demand: Demand, *, window: int = DEFAULT_WINDOW) -> None:
        super().__init__(window)
        self._cluster = cluster
        self._opening = opening.encode()
        self._demand = demand
        self._secret = new_secret()
        self._listener = Listener(self._secret, self._welcome)
        self._invitation: Invitation | None = None
        self._gyms: dict[int, _Gym] = {}
        self._nodes: dict[str, ClusterNode] = {}
        self._excluded: dict[str, StartFailure] = {}
        self._deaths: Counter[str | None] = Counter()
        self._look = asyncio.Event()
        self._first = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._none_since: float | None = None
        self._count = 0
        self._numbers = count()  # of leases, never reused: a worker that reconnects may still refer to old ones
        self._is_stopping = False

    # ---- begin and end ----------------------------------------------------------------------------------------------
    async def start(self, options: WorkerOptions) -> None:
        """Start listening, request the Gyms, and wait for the first of them."""
        files, host = options.executor_tls, self._cluster.host
        tls = collector_tls(files.certificate, files.key) if files else None
        port = await self._listener.open(host, options.executor_port, tls.context if tls else None)
        self._invitation = Invitation(host, port, self._secret, 0, tls.certificate if tls else None)
        self._spawn(self._place_gyms())
        self._spawn(self._watch_silence())
        await self._first.wait()
        if self.error is not None:
            raise self.error

    async def stop(self) -> None:
        """Dismiss all Gyms and wait for them to end."""
        self._is_stopping = True
        # Gyms without a connection can't be dismissed; cancelling their keepers kills them.
        ending = [gym.keeper for gym in self._gyms.values() if gym.worker is not None and gym.keeper is not None]
        for worker in list(self):
            if worker.connection is not None:
                worker.connection.send(Frame({DISMISSED: True}).encode())
                worker.connection.close()
        if ending:
            await asyncio.wait(ending, timeout=STOP_S)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._listener.close()

    def _spawn(self, work: "Coroutine[Any, Any, None]") -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._settle)
        return task

    def _settle(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            logger.error("A bug in the executor", exc_info=bug)
            self._give_up(ConfigError(f"the executor failed: {bug!r}"))

    # ---- the set of Gyms --------------------------------------------------------------------------------------------
    async def _place_gyms(self) -> None:
        """Start missing Gyms, now and whenever nodes or Gyms come and go."""
        while not self._is_stopping:
            self._nodes = {node.id: node for node in await self._cluster.nodes()}
            self._check_that_some_are_left()
            present = Counter(gym.place.node for gym in self._gyms.values())
            for place in self._demand.missing(self._nodes.values(), present, self._excluded):
                gym = _Gym(self._count, place, place.node)
                self._count += 1
                self._gyms[gym.number] = gym
                gym.keeper = self._spawn(self._keep(gym))
            self._look.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._look.wait()

    async def _keep(self, gym: _Gym) -> None:
        """Start one Gym and watch it until it ends."""
        assert self._invitation is not None
        invitation = Invitation(
            self._invitation.host,
            self._invitation.port,
            self._secret,
            gym.number,
            self._invitation.certificate,
        )
        try:
            await self._begin(gym, invitation)
            failure = await self._cluster.ended(gym.started)
            if failure is not None:
                self._exclude(gym.node, failure)
        except GymGoneError as death:
            if not self._is_stopping:
                self._on_death(gym, str(death))
        finally:
            self._gyms.pop(gym.number, None)
            self._look.set()
            if gym.started is not None:
                await self._cluster.end(gym.started)

    async def _begin(self, gym: _Gym, invitation: Invitation) -> None:
        """Start the Gym. If cancelled meanwhile, still wait for its handle, so that the caller can end the Gym."""
        starting = asyncio.ensure_future(self._cluster.start(gym.place, invitation))
        try:
            gym.started = await asyncio.shield(starting)
        except asyncio.CancelledError:
            gym.started = await starting
            raise

    def _on_death(self, gym: _Gym, reason: str) -> None:
        done = gym.finished + (gym.worker.finished if gym.worker else 0)
        gone = gym.node not in self._nodes if gym.node else False
        # A Gym that died together with its node says nothing about whether Gyms can run there.
        self._deaths[gym.node] = 0 if done else self._deaths[gym.node] + (not gone)
        logger.warning("A Gym on %s ended and is replaced: %s", self._name(gym.node), reason)
        if self._deaths[gym.node] >= DEATHS:
            self._exclude(gym.node, StartFailure(f"Gyms on {self._name(gym.node)} keep dying: {reason}"))

    def _exclude(self, node: str | None, failure: StartFailure) -> None:
        if node is None:  # the Gym failed before it connected, so its node is unknown
            self._give_up(ConfigError(failure.message, hint=failure.hint))
        elif node not in self._excluded:
            self._excluded[node] = failure
            logger.warning("%s gets no Gym: %s", self._name(node), failure.message)

    def _check_that_some_are_left(self) -> None:
        """End the run if no node is left on which a Gym could run."""
        if self._load or not self._nodes:
            self._none_since = None
            return
        usable = [node for node in self._nodes.values() if self._demand.room(node)]
        waits_for_more = not usable and self._demand.workers is not None  # an autoscaler may still add one
        if waits_for_more or any(node.id not in self._excluded for node in usable):
            self._none_since = None
            return
        self._none_since = self._none_since or monotonic()
        if self._first.is_set() and monotonic() - self._none_since < NONE_LEFT_S:
            return
        failure = next((self._excluded[node.id] for node in usable), None)
        if failure is not None:
            self._give_up(ConfigError(failure.message, hint=failure.hint))
        else:
            self._give_up(
                ConfigError(
                    f"none of the {len(self._nodes)} nodes has what a worker takes",
                    hint="lower worker_cpus or worker_resources; or give +workers=N so that an autoscaler adds nodes",
                )
            )

    def _give_up(self, error: ConfigError) -> None:
        self.give_up(error)
        self._first.set()

    def _name(self, node: str | None) -> str:
        known = self._nodes.get(node) if node else None
        return f"node {known.name}" if known else f"node {node}" if node else "the cluster"

    # ---- connections ------------------------------------------------------------------------------------------------
    async def _welcome(self, connection: Connection, frames: Frames, about: dict[str, Any]) -> None:
        """Give a worker its configuration, then leases, until its connection ends."""
        gym = self._gyms.get(about.get("number", -1))
        if gym is None:  # its process was given up, and another has taken its place
            connection.send(Frame({DISMISSED: True}).encode())
            return
        gym.node = about.get("node_id") or gym.node
        if (theirs := about.get("version", __version__)) != __version__:
            message = f"rollout-gym {theirs} is installed on {self._name(gym.node)}, but {__version__} here"
            self._exclude(gym.node, StartFailure(message, "install the same version on all nodes"))
            connection.send(Frame({DISMISSED: True}).encode())
            return
        connection.send(self._opening)
        while (reply := await next_frame(frames, connection)) is not None:
            if reply.head == READY:
                break
        else:
            return
        if gym.worker is not None and gym.worker.connection is not None:
            gym.worker.connection.abort()  # the old connection, whose loss was not noticed yet
            self._lose(gym, gym.worker)
        gym.worker = worker = Worker(f"{about.get('node_ip', '')} process {about.get('pid', '')}", self._numbers)
        worker.connection, connection.on_frame = connection, worker.receive
        self.error = None
        self._deaths.pop(None, None)
        self.add(worker)
        self._first.set()
        await connection.closed
        self._lose(gym, worker)

    def _lose(self, gym: _Gym, worker: Worker) -> None:
        """Take back the leases of a worker whose connection was lost."""
        if gym.worker is not worker:
            return
        self.remove(worker)
        gym.worker, gym.finished = None, gym.finished + worker.finished
        worker.give_back(f"the connection to the Gym that ran it, on {self._name(gym.node)}, was lost")

    async def _watch_silence(self) -> None:
        """Give up workers that are connected but frozen."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SILENT_S / 10)
            for worker in list(self):
                if worker.connection is not None and loop.time() - worker.connection.received_at > SILENT_S:
                    logger.warning("The Gym at %s has sent nothing for %g s", worker.name, SILENT_S)
                    worker.connection.abort()

    # ---- status -----------------------------------------------------------------------------------------------------
    def describe(self) -> dict[str, Any]:
        """Nodes, Gyms and leases, for ``ng_status``."""
        gyms = [
            {
                "name": self._name(gym.node),
                "state": "ready" if gym.worker else "starting",
                "leases": gym.worker.leases if gym.worker else 0,
                "finished": gym.finished + (gym.worker.finished if gym.worker else 0),
                "seconds": round(monotonic() - gym.since, 1),
            }
            for gym in self._gyms.values()
        ]
        excluded = {self._name(node): failure.message for node, failure in self._excluded.items()}
        return {"nodes": len(self._nodes), "gyms": gyms, "excluded": excluded}


def opening_frame(
    config: DictConfig, options: WorkerOptions, *, timeout_s: float | None, steps: bool = False, trace_run: str = ""
) -> Frame:
    """The first frame to an authenticated worker: the configuration, and what it refers to in this process."""
    text = OmegaConf.to_yaml(config)
    head: Mapping[str, Any] = {
        "timeout_s": timeout_s,
        "steps": steps,
        "trace_run": trace_run,
        "overrides": options.worker_overrides,
        "folder": str(Path.cwd()),
        "environment": {name: os.environ[name] for name in _VARIABLE.findall(text) if name in os.environ},
    }
    return Frame(dict(head), text.encode())


def demand_of(options: WorkerOptions) -> Demand:
    """How many Gyms the options ask for."""
    return Demand(
        workers=options.workers if isinstance(options.workers, int) else None,
        cpus=None if options.worker_cpus == "node" else options.worker_cpus,
        resources=options.worker_resources,
    )


@contextlib.asynccontextmanager
async def remote_gyms(
    cluster: Cluster,
    config: DictConfig,
    options: WorkerOptions,
    *,
    timeout_s: float | None = None,
    steps: bool = False,
    trace_run: str = "",
    window: int = DEFAULT_WINDOW,
) -> AsyncIterator[RemoteGyms]:
    """Gyms on a cluster for the duration of the context, which begins when the first of them is ready.

    ``timeout_s`` is for one attempt. ``steps`` records how long calls take, and ``trace_run`` makes them part of the
    trace of a run. ``window`` is the most rollouts at once in one Gym, and so the most that its death can interrupt.
    """
    opening = opening_frame(config, options, timeout_s=timeout_s, steps=steps, trace_run=trace_run)
    gyms = RemoteGyms(cluster, opening, demand_of(options), window=window)
    try:
        await gyms.start(options)
        yield gyms
    finally:
        await gyms.stop()
