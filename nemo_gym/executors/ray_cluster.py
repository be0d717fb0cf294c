"""Runs Gyms on a Ray cluster. Only this module imports Ray, and it is loaded only if Ray is chosen.

Ray only starts processes and notices when they end; rollouts go over our own connections (``remote_gyms``). If this
process already uses Ray, as trainers do, that Ray is used as it is and left running.

    async with ray_gyms(config, WorkerOptions(workers=8)) as gyms:
        async for group in stream_groups(tasks, gyms, agent="my_agent", repeats=8):
            train_on(group)
"""

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Self, TypeVar

import ray
from omegaconf import DictConfig
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from nemo_gym.config.keys import RAY_HEAD_NODE_ADDRESS
from nemo_gym.errors import ConfigError
from nemo_gym.executors.handshake import Invitation
from nemo_gym.executors.placement import ClusterNode, GymGoneError, Place, StartFailure
from nemo_gym.executors.remote_gyms import RemoteGyms, remote_gyms
from nemo_gym.executors.remote_worker import work_for
from nemo_gym.rollouts.options import WorkerOptions
from nemo_gym.servers.event_loop import new_event_loop

Result = TypeVar("Result")
CLIENT_SCHEME: Final = "ray://"
NODE_LABEL: Final = "ray.io/node-id"


class GymActor:
    """The actor that hosts a Gym for as long as the collector needs it."""

    def work(self, invitation: Invitation) -> StartFailure | None:
        """Work for the collector until it needs this Gym no longer."""
        about = {
            "node_id": ray.get_runtime_context().get_node_id(),
            "node_ip": ray.util.get_node_ip_address(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(work_for(invitation, about))


class RayCluster:
    """The part of Ray that is needed here, called in a separate thread because its calls block."""

    def __init__(self, options: WorkerOptions, address: str | None = None) -> None:
        self._options = options
        self._address = address
        # Ray ends processes when the thread that started them ends, so this thread has to outlive them.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ray")
        self._is_ours = False
        self.host = "127.0.0.1"

    async def _in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def open(self) -> Self:
        """Connect to the cluster, or start one on this machine."""
        with _sigterm_kept():
            await self._in_thread(self._connect)
        self.host = await self._in_thread(ray.util.get_node_ip_address)
        return self

    async def close(self) -> None:
        """Disconnect from the cluster, unless this process was already connected to it before."""
        if self._is_ours:
            await self._in_thread(ray.shutdown)
        self._thread.shutdown(wait=False)

    def _connect(self) -> None:
        if ray.is_initialized():
            return
        address = self._address or os.environ.get("RAY_ADDRESS")
        if address and address.startswith(CLIENT_SCHEME):
            raise ConfigError(
                f"the collector can't be outside the cluster ({address}): workers have to reach it",
                hint="run the command on a machine of the cluster, for example with: ray job submit -- ng_collect_…",
            )
        here = {} if address else {"include_dashboard": False}
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False, **here)
        except (ConnectionError, RuntimeError, ValueError, RayError) as error:
            raise ConfigError(
                f"no Ray cluster at {address or 'this machine'}: {error}",
                hint="start it with ray start --head; correct ray_head_node_address or RAY_ADDRESS; a cluster with "
                "token authentication needs RAY_AUTH_TOKEN",
            ) from None
        self._is_ours = True

    async def nodes(self) -> list[ClusterNode]:
        """The machines that are in the cluster now."""
        found = await self._in_thread(ray.nodes)
        return [
            ClusterNode(node["NodeID"], f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})", node["Resources"])
            for node in found
            if node["Alive"]
        ]

    async def start(self, place: Place, invitation: Invitation) -> Any:
        """Request an actor; it starts as soon as the cluster has room for it."""
        return await self._in_thread(self._start, place, invitation)

    def _start(self, place: Place, invitation: Invitation) -> Any:
        options = self._options
        wanted: dict[str, Any] = {
            "num_cpus": 1.0 if options.worker_cpus == "node" else options.worker_cpus,
            "resources": options.worker_resources or None,
            "max_restarts": 0,  # Gyms are replaced by the collector, which has to know of every death
        }
        if place.node is not None:
            wanted["scheduling_strategy"] = NodeAffinitySchedulingStrategy(place.node, soft=False)
        else:
            wanted["scheduling_strategy"] = "SPREAD"
            if place.avoid:
                wanted["label_selector"] = {NODE_LABEL: f"!in({','.join(sorted(place.avoid))})"}
        actor = ray.remote(GymActor).options(**wanted).remote()
        return actor, actor.work.remote(invitation)

    async def ended(self, started: Any) -> StartFailure | None:
        """Wait until an actor has ended."""
        try:
            # Ray completes the future in one of its own threads.
            failure: StartFailure | None = await asyncio.wrap_future(started[1].future())
        except RayTaskError as error:
            return StartFailure(f"{type(error.cause).__name__}: {error.cause}")
        except RayError as error:
            raise GymGoneError(_last_line(str(error))) from None
        return failure

    async def end(self, started: Any) -> None:
        """Kill an actor."""
        with contextlib.suppress(RayError):
            await self._in_thread(ray.kill, started[0])


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Restore our SIGTERM handler afterwards, because Ray installs its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.asynccontextmanager
async def ray_gyms(
    config: DictConfig,
    options: WorkerOptions | None = None,
    *,
    timeout_s: float | None = None,
    steps: bool = False,
    trace_run: str = "",
) -> AsyncIterator[RemoteGyms]:
    """Gyms on a Ray cluster for the duration of the context, which begins when the first of them is ready."""
    options = options or WorkerOptions(executor="ray")
    cluster = RayCluster(options, config.get(RAY_HEAD_NODE_ADDRESS))
    try:
        await cluster.open()
        async with remote_gyms(cluster, config, options, timeout_s=timeout_s, steps=steps, trace_run=trace_run) as gyms:
            yield gyms
    finally:
        await cluster.close()
