"""Uses all cores of one machine: each worker process hosts a whole Gym; the collector plans and is the only writer.

If a worker dies, each of its leases becomes a failed attempt of class ``worker_died``, which does not count against the
rollout, and the worker is replaced. If workers die several times in a row without finishing anything, the run ends.
"""

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import AsyncIterator

from omegaconf import DictConfig, OmegaConf

from nemo_gym.errors import ConfigError
from nemo_gym.executors.frames import Frame, connect
from nemo_gym.executors.leases import Roster, Worker
from nemo_gym.io.process import usable_cores

logger = logging.getLogger(__name__)

MODULE = "nemo_gym.executors.worker"
REPLACEMENTS = 3  # of one worker in a row, without a finished attempt in between
STOP_S = 5.0


class WorkerProcess(Worker):
    """One worker process, as the collector sees it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        super().__init__(f"process {process.pid}")
        self.process = process
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def receive(self, frame: Frame) -> None:
        """Take a frame; the first one only reports that the Gym is ready."""
        if self.ready.done():
            super().receive(frame)
        else:
            self.ready.set_result(None)

    async def wait(self) -> int:
        """Wait for the process to end; returns its exit code."""
        assert self.connection is not None
        await self.connection.closed
        return await self.process.wait()

    async def stop(self) -> None:
        """End the process, by force if it takes too long."""
        if self.connection is not None:
            self.connection.close()
        try:
            await asyncio.wait_for(self.process.wait(), STOP_S)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


class WorkerPool(Roster):
    """Runs rollouts in worker processes; calling it runs one attempt."""

    def __init__(
        self,
        config: DictConfig,
        *,
        timeout_s: float | None,
        window: int | None = None,
        steps: bool = False,
        trace_run: str = "",
    ) -> None:
        super().__init__(window)
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
        """Stop all processes."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)

    async def _keep(self, first: asyncio.Event) -> None:
        """Start one worker, and replace it when it dies, as long as workers finish attempts between deaths."""
        deaths = 0
        while deaths <= REPLACEMENTS:
            worker = await self._open()
            deaths += 1
            if worker is not None:
                self.add(worker)
                first.set()
                await self._use(worker)
                deaths = 1 if worker.finished else deaths  # progress in between: counting starts again
            if deaths <= REPLACEMENTS:
                logger.warning("a worker process ended and will be replaced")
        self.give_up(
            ConfigError(
                f"worker processes keep dying ({1 + REPLACEMENTS} times in one place)",
                hint="their last lines are above; what was saved is intact: correct the cause and resume",
            )
        )
        first.set()  # ``start`` must not wait for ever; it finds the error

    async def _use(self, worker: WorkerProcess) -> None:
        code = None
        try:
            code = await worker.wait()
        finally:
            self.remove(worker)  # first, or the rollouts that it gives back could be leased to it again
            worker.give_back(f"the worker process that ran it ended with exit code {code}")
            await worker.stop()

    async def _open(self) -> WorkerProcess | None:
        """A worker that is ready, or None if it died before that."""
        ours, theirs = socket.socketpair()
        # Our copy of the worker's end must be closed: otherwise ours would stay open when the worker dies.
        with theirs:
            worker = WorkerProcess(
                await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", MODULE, str(theirs.fileno())),
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                )
            )
        worker.connection = await connect(ours, worker.receive)
        worker.connection.send(self._opening.encode())
        try:
            # A worker that dies while it hosts its Gym never becomes ready; its socket closes instead.
            await asyncio.wait([worker.ready, worker.connection.closed], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await worker.stop()
            raise
        if worker.ready.done():
            return worker
        await worker.stop()
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
    window: int | None = None,
    steps: bool = False,
    trace_run: str = "",
) -> AsyncIterator[WorkerPool]:
    """Worker processes that are ready, and are stopped when the context ends."""
    pool = WorkerPool(config, timeout_s=timeout_s, window=window, steps=steps, trace_run=trace_run)
    try:
        await pool.start(number)
        yield pool
    finally:
        await pool.stop()
