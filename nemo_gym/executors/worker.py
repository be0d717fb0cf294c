"""A worker process: a whole Gym and a socket to the collector.

It starts every rollout as soon as it arrives, and sends back its outcome. It ends when the collector closes the socket
or dies. It ignores Ctrl-C, because the collector lets running rollouts finish first.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final

from omegaconf import DictConfig, OmegaConf

from nemo_gym.config.addresses import choose_port, server_settings
from nemo_gym.config.environments import environment_servers
from nemo_gym.config.instances import read_instances
from nemo_gym.config.keys import CONFIG_DICT_ENV_VAR
from nemo_gym.executors.frames import Connection, Frame, decode_planned, encode_outcome, next_frame, open_connection
from nemo_gym.io.child_process import end_with_parent
from nemo_gym.io.process import settle_heap
from nemo_gym.rollouts.attempt import AgentAttempt, recorded
from nemo_gym.rollouts.dispatch import Attempt
from nemo_gym.servers.event_loop import new_event_loop
from nemo_gym.servers.gym import Gym, host_gym
from nemo_gym.servers.profiles import profile_folder
from nemo_gym.servers.supervision import ServerCrashedError

logger = logging.getLogger(__name__)

READY: Final = {"ready": True}
DISMISSED: Final = "dismissed"


def run_worker() -> None:
    """Serve the socket whose file descriptor is the only argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    end = socket.socket(fileno=int(sys.argv[1]))
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(work(end))
    except ServerCrashedError as crash:
        sys.exit(str(crash))


async def work(end: socket.socket) -> None:
    """Host a Gym and run the rollouts that arrive."""
    frames: asyncio.Queue[Frame] = asyncio.Queue()
    connection = await open_connection(end, frames.put_nowait)
    opening = await next_frame(frames, connection)
    if opening is None:
        return
    config = configuration(opening)
    if config.get("profiling_enabled"):
        config["profiling_results_dirpath"] = f"{profile_folder(config)}/worker-{os.getpid()}"
    async with host_gym(with_own_ports(config)) as gym:
        attempt: Attempt = AgentAttempt(gym.client, timeout_s=opening.head["timeout_s"])
        if opening.head["steps"]:
            attempt = recorded(attempt, trace_run=opening.head["trace_run"])
        settle_heap()
        connection.send(Frame(READY).encode())
        await serve_while_it_runs(gym, serve_collector(frames, connection, attempt))


async def serve_while_it_runs(gym: Gym, serving: Coroutine[Any, Any, bool]) -> bool:
    """Serve the collector; a server of the Gym that can't be kept running is an error that ends it."""
    either = [asyncio.ensure_future(serving), asyncio.ensure_future(gym.watch())]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if either[1].done():
            await either[1]
        return bool(await either[0])
    finally:
        for task in either:
            task.cancel()
        await asyncio.gather(*either, return_exceptions=True)


def configuration(opening: Frame) -> DictConfig:
    """The configuration that the collector sends first."""
    config = OmegaConf.create(opening.body.decode())
    assert isinstance(config, DictConfig)
    return config


async def serve_collector(frames: "asyncio.Queue[Frame]", connection: Connection, attempt: Attempt) -> bool:
    """Run what arrives until the connection ends. Returns whether the collector dismissed this worker."""
    running: dict[int, asyncio.Task[None]] = {}

    async def run(number: int, frame: Frame) -> None:
        outcome = await attempt(decode_planned(frame))
        connection.send(encode_outcome(number, outcome))

    def settle(number: int, task: asyncio.Task[None]) -> None:
        running.pop(number, None)
        if not task.cancelled() and (bug := task.exception()) is not None:
            # The collector handles workers that end: it repeats their rollouts and counts how often that happens.
            logger.error("this worker process ends because of a bug", exc_info=bug)
            connection.close()

    async def start_all() -> None:
        while DISMISSED not in (head := (frame := await frames.get()).head):
            if (cancelled := running.get(head.get("cancel", -1))) is not None:  # no lease has the number -1
                cancelled.cancel()
            elif (number := head.get("number")) is not None:
                running[number] = task = asyncio.create_task(run(number, frame))
                task.add_done_callback(partial(settle, number))

    starting = asyncio.create_task(start_all())
    either: set[asyncio.Future[None]] = {starting, connection.closed}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    dismissed = starting.done()  # it ends only when it reads that frame
    tasks = [starting, *running.values()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return dismissed


def with_own_ports(config: DictConfig) -> DictConfig:
    """The same servers on new ports, because every worker hosts all of them. It becomes that of this process."""
    mine: Any = OmegaConf.create(OmegaConf.to_container(config))
    taken: list[int] = []
    for instance in read_instances(config):
        port = choose_port(taken)
        taken.append(port)
        mine[instance.name][instance.server_type][instance.implementation].port = port
    assert isinstance(mine, DictConfig)
    for relay in environment_servers(mine):
        if relay.is_relay and relay.agent is not None:  # which is where its agent is
            server_settings(mine, relay.name).port = server_settings(mine, relay.agent).port
    # For servers that ask for the configuration of their process, which must not be looked for on its command line.
    os.environ[CONFIG_DICT_ENV_VAR] = OmegaConf.to_yaml(mine)
    return mine


if __name__ == "__main__":
    run_worker()
