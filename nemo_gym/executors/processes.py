"""Uses all cores of one machine: each worker process hosts a whole Gym; the collector plans and is the only writer.

If a worker dies, each of its leases becomes a failed attempt of class ``worker_died``, which does not count against the
rollout, and the worker is replaced. If workers die several times in a row without having been given anything, the run
ends; rollouts that kill their worker are found by the collector (``rollouts/suspects``).
"""

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator

from omegaconf import DictConfig, OmegaConf

from nemo_gym.errors import ConfigError
from nemo_gym.executors.frames import Frame, open_connection
from nemo_gym.executors.leases import Roster, Worker
from nemo_gym.io.child_process import ChildProcess, show_on_stderr
from nemo_gym.io.process import usable_cores

logger = logging.getLogger(__name__)

MODULE = "nemo_gym.executors.worker"
REPLACEMENTS = 3  # of one worker in a row, without a rollout in between
STOP_S = 5.0


class WorkerProcess(Worker):
    """One worker process, as the collector sees it."""

    def __init__(self, process: ChildProcess) -> None:
        super().__init__(f"process {process.pid}")
        self.process = process
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def receive(self, frame: Frame) -> None:
        """Take a frame; the first one only reports that the Gym is ready."""
        if self.ready.done():
            super().receive(frame)
        else:
            self.ready.set_result(None)

    async def ended(self) -> None:
        """Wait for the process to end, and for the outcomes that it sent before."""
        assert self.connection is not None
        await self.connection.closed
        await self.process.ended()

    async def stop(self) -> None:
        """End the process, by force if it takes too long. It stops by itself when its connection is closed."""
        if self.connection is not None:
            self.connection.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self.process.ended()
        await self.process.stop()


class WorkerPool(Roster):
    """Runs rollouts in worker processes; calling it runs one attempt."""

    def __init__(
        self,
        config: DictConfig,
        *,
        timeout_s: float | None,
        steps: bool = False,
        trace_run: str = "",
    ) -> None:
        super().__init__()
        self._opening = Frame(
            {"timeout_s": timeout_s, "steps": steps, "trace_run": trace_run}, OmegaConf.to_yaml(config).encode()
        )
        self._keepers: list[asyncio.Task[None]] = []

    async def start(self, number: int) -> None:
        """Start the processes and wait until each has hosted its Gym."""
        first = [asyncio.Event() for _ in range(number)]
        self._keepers = [asyncio.create_task(self._keep(event)) for event in first]
        for event in first:
            await event.wait()
        if self.error is not None:
            raise self.error

    async def stop(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)

    async def _keep(self, first: asyncio.Event) -> None:
        """Start one worker, and replace it when it dies, as long as workers get to run rollouts between deaths."""
        deaths = 0
        while deaths <= REPLACEMENTS:
            worker = await self._open()
            deaths += 1
            if worker is not None:
                self.add(worker)
                first.set()
                deaths = 1 if await self._use(worker) else deaths
        self.give_up(
            ConfigError(
                f"worker processes keep dying ({1 + REPLACEMENTS} times in one place)",
                hint="their last lines are above; what was saved is intact: correct the cause and resume",
            )
        )
        first.set()  # ``start`` must not wait for ever; it finds the error

    async def _use(self, worker: WorkerProcess) -> bool:
        """Wait until a worker dies; returns whether it was given rollouts."""
        process = worker.process
        try:
            await worker.ended()
            logger.warning("%s ended and will be replaced: %s", process.name, process.end_text)
        finally:
            self.remove(worker)  # first, or the rollouts that it gives back could be leased to it again
            reason = f"the worker process that ran it ended ({process.exit_reason})"
            lost = worker.give_back(reason, crash=f"worker-{process.pid}-{process.started:.3f}")
            await worker.stop()
        return bool(worker.finished or lost)

    async def _open(self) -> WorkerProcess | None:
        """A worker that is ready, or None if it died before that."""
        ours, theirs = socket.socketpair()
        # Our copy of the worker's end must be closed: otherwise ours would stay open when the worker dies.
        with theirs:
            worker = WorkerProcess(
                ChildProcess(
                    "a worker process",
                    [sys.executable, "-m", MODULE, str(theirs.fileno())],
                    environment=os.environ | {"PYTHONUNBUFFERED": "1"},
                    descriptors=[theirs.fileno()],
                    on_line=show_on_stderr,
                )
            )
        try:
            worker.connection = await open_connection(ours, worker.receive)
            worker.connection.send(self._opening.encode())
            # A worker that dies while it hosts its Gym never becomes ready; its socket closes instead.
            await asyncio.wait([worker.ready, worker.connection.closed], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await worker.stop()
            raise
        if worker.ready.done():
            return worker
        await worker.stop()
        logger.warning("%s ended before it was ready: %s", worker.process.name, worker.process.end_text)
        return None


def worker_count(workers: int | str | None) -> int:
    """The number of worker processes; ``auto`` is one for each core that this process may use."""
    return usable_cores() if workers == "auto" else int(workers or 1)


@contextlib.asynccontextmanager
async def worker_pool(
    config: DictConfig,
    number: int,
    *,
    timeout_s: float | None = None,
    steps: bool = False,
    trace_run: str = "",
) -> AsyncIterator[WorkerPool]:
    """Worker processes that are ready, and are stopped when the context ends."""
    pool = WorkerPool(config, timeout_s=timeout_s, steps=steps, trace_run=trace_run)
    try:
        await pool.start(number)
        yield pool
    finally:
        await pool.stop()
