"""Uses all cores of one machine: each worker process has a whole Gym; the collector plans and is the only writer.

A rollout is leased to the worker with the fewest rollouts and stays there: its calls never leave that process, so
session state needs no sticky routing. If a worker dies, each of its leases becomes a failed attempt of class
``worker_died``, which does not count against the rollout, and the worker is replaced. If workers die several times in a
row without finishing anything, the run ends.
"""

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter

from omegaconf import DictConfig, OmegaConf

from nemo_gym.errors import ConfigError
from nemo_gym.executors.frames import Connection, Frame, connect, decode_outcome, encode_planned
from nemo_gym.rollouts.classify import failed
from nemo_gym.rollouts.outcome import Failure, Outcome
from nemo_gym.rollouts.plan import PlannedRollout
from nemo_gym.schemas.rows import FailureClass

logger = logging.getLogger(__name__)

MODULE = "nemo_gym.executors.worker"
REPLACEMENTS = 3  # of one worker in a row, without a finished attempt in between
STOP_S = 5.0


@dataclass(slots=True)
class _Lease:
    planned: PlannedRollout
    outcome: "asyncio.Future[Outcome]"
    started: float = field(default_factory=perf_counter)


class Worker:
    """One worker process, as the collector sees it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.connection: Connection | None = None
        self.has_finished = False  # any attempt
        self._leases: dict[int, _Lease] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._leases)

    def lease(self, planned: PlannedRollout) -> "asyncio.Future[Outcome]":
        """Give the worker a rollout, and return its future outcome."""
        assert self.connection is not None
        number = next(self._numbers)
        lease = _Lease(planned, asyncio.get_running_loop().create_future())
        self._leases[number] = lease
        self.connection.send(encode_planned(number, planned))
        return lease.outcome

    def receive(self, frame: Frame) -> None:
        """Deliver an outcome to its lease. The first frame only says that the Gym is ready."""
        if not self.ready.done():
            self.ready.set_result(None)
            return
        self.has_finished = True
        lease = self._leases.pop(frame.head["number"], None)
        if lease is not None and not lease.outcome.done():
            lease.outcome.set_result(decode_outcome(frame, lease.planned))

    async def wait(self) -> None:
        """Wait until the process is gone; then fail the rollouts that it still had."""
        assert self.connection is not None
        await self.connection.closed
        code = await self.process.wait()
        for lease in self._leases.values():
            if not lease.outcome.done():
                lease.outcome.set_result(_death(lease, code))
        self._leases.clear()

    async def stop(self) -> None:
        """End the process, by force if it takes too long."""
        if self.connection is not None:
            self.connection.close()
        try:
            await asyncio.wait_for(self.process.wait(), STOP_S)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


def _death(lease: _Lease, code: int) -> Outcome:
    failure = Failure.of(FailureClass.WORKER_DIED, f"the worker process that ran it ended with exit code {code}")
    return failed(lease.planned, failure, perf_counter() - lease.started)


class WorkerPool:
    """Runs rollouts in worker processes; calling it is one attempt."""

    def __init__(self, config: DictConfig, *, timeout_s: float | None) -> None:
        self._opening = Frame({"timeout_s": timeout_s}, OmegaConf.to_yaml(config).encode())
        self._workers: list[Worker] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._arrival = asyncio.Event()
        self._error: ConfigError | None = None

    async def __call__(self, planned: PlannedRollout) -> Outcome:
        """Run one rollout in the worker with the fewest."""
        while not self._workers:
            if self._error is not None:
                raise self._error
            self._arrival.clear()
            await self._arrival.wait()
        return await min(self._workers, key=len).lease(planned)

    async def start(self, number: int) -> None:
        """Start the processes and wait until each has hosted its Gym."""
        first = [asyncio.Event() for _ in range(number)]
        self._keepers = [asyncio.create_task(self._keep(event)) for event in first]
        for event in first:
            await event.wait()
        if self._error is not None:
            raise self._error

    async def stop(self) -> None:
        """Stop all processes."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)

    async def _keep(self, first: asyncio.Event) -> None:
        """Start one worker, and replace it when it dies, as long as it gets anything done."""
        deaths = 0
        while deaths <= REPLACEMENTS:
            worker = await self._open()
            deaths += 1
            if worker is not None:
                self._workers.append(worker)
                self._arrival.set()
                first.set()
                try:
                    await worker.wait()
                finally:
                    self._workers.remove(worker)
                    await worker.stop()
                deaths = 1 if worker.has_finished else deaths
            if deaths <= REPLACEMENTS:
                logger.warning("a worker process ended and will be replaced")
        self._error = ConfigError(
            f"worker processes keep dying ({1 + REPLACEMENTS} times in one place)",
            hint="their last lines are above; what was saved is intact: correct the cause and resume",
        )
        self._arrival.set()
        first.set()

    async def _open(self) -> Worker | None:
        """A worker that is ready, or None if it died before that."""
        # Our copy of the worker's end is closed at once; otherwise we would not notice that the worker is gone.
        ours, theirs = socket.socketpair()
        with theirs:
            worker = Worker(
                await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", MODULE, str(theirs.fileno())),
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                )
            )
        worker.connection = await connect(ours, worker.receive)
        worker.connection.send(self._opening.encode())
        try:
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
    return len(os.sched_getaffinity(0)) if workers == "auto" else int(workers or 1)


@contextlib.asynccontextmanager
async def worker_pool(config: DictConfig, number: int, *, timeout_s: float | None = None) -> AsyncIterator[WorkerPool]:
    """Worker processes that are ready, and are stopped when the context ends."""
    pool = WorkerPool(config, timeout_s=timeout_s)
    try:
        await pool.start(number)
        yield pool
    finally:
        await pool.stop()
