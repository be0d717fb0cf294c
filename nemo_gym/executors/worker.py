"""A worker process: a whole Gym and a socket to the collector.

It runs all rollouts it is sent at once, and answers each with its outcome. It ends when the collector closes the socket
or dies. It ignores Ctrl-C, because the collector lets running rollouts finish first.
"""

import asyncio
import logging
import signal
import socket
import sys
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nemo_gym.config.addresses import find_open_port
from nemo_gym.config.instances import read_instances
from nemo_gym.executors.frames import Connection, Frame, connect, decode_planned, encode_outcome
from nemo_gym.rollouts.attempt import AgentAttempt
from nemo_gym.rollouts.dispatch import Attempt
from nemo_gym.servers.event_loop import end_with_parent, new_event_loop
from nemo_gym.servers.gym import host_gym

logger = logging.getLogger(__name__)

READY = {"ready": True}


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
    opening = await _opening(frames, connection)
    if opening is None:
        return
    config = OmegaConf.create(opening.body.decode())
    assert isinstance(config, DictConfig)
    async with host_gym(with_own_ports(config)) as gym:
        attempt = AgentAttempt(gym.client, timeout_s=opening.head["timeout_s"])
        connection.send(Frame(READY).encode())
        await _serve(frames, connection, attempt)


async def _opening(frames: "asyncio.Queue[Frame]", connection: Connection) -> Frame | None:
    """The first frame; None if the collector is gone before it sends one."""
    first = asyncio.create_task(frames.get())
    either: set[asyncio.Future[Any]] = {first, connection.closed}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    return first.result() if first.done() else None


async def _serve(frames: "asyncio.Queue[Frame]", connection: Connection, attempt: Attempt) -> None:
    running: set[asyncio.Task[None]] = set()

    async def run(frame: Frame) -> None:
        outcome = await attempt(decode_planned(frame))
        connection.send(encode_outcome(frame.head["number"], outcome))

    async def start_all() -> None:
        while True:
            task = asyncio.create_task(run(await frames.get()))
            running.add(task)
            task.add_done_callback(settle)

    def settle(task: asyncio.Task[None]) -> None:
        running.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            # The collector can handle a worker that ends: it runs its rollouts again and counts how often that happens.
            logger.error("this worker process ends because of a bug", exc_info=bug)
            connection.close()

    starting = asyncio.create_task(start_all())
    await connection.closed
    tasks = [starting, *running]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def with_own_ports(config: DictConfig) -> DictConfig:
    """The same servers on new ports, because every worker hosts all of them."""
    mine: Any = OmegaConf.create(OmegaConf.to_container(config))
    taken: list[int] = []
    for instance in read_instances(config):
        port = find_open_port(taken)
        taken.append(port)
        mine[instance.name][instance.server_type][instance.implementation].port = port
    assert isinstance(mine, DictConfig)
    return mine


if __name__ == "__main__":
    main()
