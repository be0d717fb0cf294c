"""A worker process: a whole Gym and a socket to the collector.

It starts every rollout as soon as it arrives, and answers each with its outcome. It ends when the collector closes the
socket or dies. It ignores Ctrl-C, because the collector lets running rollouts finish first.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from functools import partial
from typing import Any, Final

from omegaconf import DictConfig, OmegaConf

from nemo_gym.config.addresses import reserve_open_port
from nemo_gym.config.instances import read_instances
from nemo_gym.executors.frames import Connection, Frame, connect, decode_planned, encode_outcome, receive
from nemo_gym.io.process import end_with_parent
from nemo_gym.rollouts.attempt import AgentAttempt, recorded
from nemo_gym.rollouts.dispatch import Attempt
from nemo_gym.servers.event_loop import new_event_loop
from nemo_gym.servers.gym import host_gym
from nemo_gym.servers.profiles import profile_folder

logger = logging.getLogger(__name__)

READY: Final = {"ready": True}
DISMISSED: Final = "dismissed"


def main() -> None:
    """Serve the socket whose file descriptor is the only argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    end = socket.socket(fileno=int(sys.argv[1]))
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(work(end))


async def work(end: socket.socket) -> None:
    """Host a Gym and run the rollouts that arrive."""
    frames: asyncio.Queue[Frame] = asyncio.Queue()
    connection = await connect(end, frames.put_nowait)
    opening = await receive(frames, connection)
    if opening is None:
        return
    config = configuration(opening)
    if config.get("profiling_enabled"):
        config["profiling_results_dirpath"] = f"{profile_folder(config)}/worker-{os.getpid()}"
    async with host_gym(with_own_ports(config)) as gym:
        attempt: Attempt = AgentAttempt(gym.client, timeout_s=opening.head["timeout_s"])
        if opening.head["steps"]:
            attempt = recorded(attempt, trace_run=opening.head["trace_run"])
        connection.send(Frame(READY).encode())
        await serve(frames, connection, attempt)


def configuration(opening: Frame) -> DictConfig:
    """The configuration that the collector sends first."""
    config = OmegaConf.create(opening.body.decode())
    assert isinstance(config, DictConfig)
    return config


async def serve(frames: "asyncio.Queue[Frame]", connection: Connection, attempt: Attempt) -> bool:
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
    """The same servers on new ports, because every worker hosts all of them."""
    mine: Any = OmegaConf.create(OmegaConf.to_container(config))
    taken: list[int] = []
    for instance in read_instances(config):
        port = reserve_open_port(taken)
        taken.append(port)
        mine[instance.name][instance.server_type][instance.implementation].port = port
    assert isinstance(mine, DictConfig)
    return mine


if __name__ == "__main__":
    main()
