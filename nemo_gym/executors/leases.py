"""Leases rollouts to workers: each rollout to the worker with the fewest leases, at most ``window`` to one worker.

A rollout runs entirely in the Gym it was leased to, so session state needs no sticky routing. The window keeps a slow
worker from being given more than it can handle, and bounds what is lost when a worker dies. A lease ends with the
outcome that the worker sends, or fails when the worker disappears. An outcome that arrives for a lease that has already
ended is dropped.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter
from typing import Any, Final

from nemo_gym.errors import ConfigError
from nemo_gym.executors.frames import Connection, Frame, decode_outcome, encode_planned
from nemo_gym.rollouts.classify import failed
from nemo_gym.rollouts.store.outcome import Failure, Outcome, PlannedRollout
from nemo_gym.schemas.rows import FailureClass

NO_WINDOW: Final = sys.maxsize


@dataclass(slots=True)
class _Lease:
    planned: PlannedRollout
    outcome: "asyncio.Future[Outcome]"
    started: float = field(default_factory=perf_counter)


class Worker:
    """The collector's view of a Gym that runs rollouts for it."""

    def __init__(self, name: str, numbers: Iterator[int] | None = None) -> None:
        self.name = name
        self.connection: Connection | None = None
        self.finished = 0  # attempts
        self._leases: dict[int, _Lease] = {}
        # Workers that may inherit each other's frames share a counter, so a late outcome never matches a new lease.
        self._numbers = numbers or count()

    @property
    def leases(self) -> int:
        """How many rollouts the worker is running."""
        return len(self._leases)

    async def run(self, planned: PlannedRollout) -> Outcome:
        """Send a rollout to the worker and wait for its outcome. Cancelling this cancels the rollout there."""
        assert self.connection is not None
        number = next(self._numbers)
        lease = _Lease(planned, asyncio.get_running_loop().create_future())
        self._leases[number] = lease
        self.connection.send(encode_planned(number, planned))
        try:
            return await lease.outcome
        except asyncio.CancelledError:
            # An outcome that is already on its way no longer finds its lease, and is dropped.
            if self._leases.pop(number, None) is not None:
                self.connection.send(Frame({"cancel": number}).encode())
            raise

    def receive(self, frame: Frame) -> None:
        """Deliver an outcome to its lease. Frames without a number only show that the worker is alive."""
        number = frame.head.get("number")
        lease = self._leases.pop(number, None) if number is not None else None
        if lease is not None and not lease.outcome.done():
            self.finished += 1
            lease.outcome.set_result(decode_outcome(frame, lease.planned))

    def give_back(self, reason: str, *, crash: str = "") -> int:
        """Fail all leases because the worker is gone, perhaps by a crash with an id; returns their number."""
        leases, self._leases = self._leases, {}
        for lease in leases.values():
            if not lease.outcome.done():
                failure = Failure.of(FailureClass.WORKER_DIED, reason, crash=crash)
                lease.outcome.set_result(failed(lease.planned, failure, perf_counter() - lease.started))
        return len(leases)


class Roster:
    """The connected workers; calling it runs one attempt. Choosing a worker costs the same for 2 and for 2,000."""

    def __init__(self, window: int | None = None) -> None:
        self._window = window or NO_WINDOW
        self._load: dict[Worker, int] = {}
        self._levels: list[dict[Worker, None]] = [{}]  # workers by their number of leases; dicts serve as ordered sets
        self._lowest = 0  # all levels below this one are empty
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.error: ConfigError | None = None  # why no more workers will come

    def __len__(self) -> int:
        return len(self._load)

    def __bool__(self) -> bool:
        return True  # __len__ would make a roster without workers false, but it is still a usable attempt function

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._load)

    async def __call__(self, planned: PlannedRollout) -> Outcome:
        """Run one rollout on the least busy worker; wait while all windows are full."""
        worker = self._take()
        if worker is None:
            worker = await self._wait()
        try:
            return await worker.run(planned)
        finally:
            self._release(worker)

    async def _wait(self) -> Worker:
        while (worker := self._take()) is None:
            if self.error is not None and not self._load:
                raise self.error
            room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(room)
            try:
                await room
            except asyncio.CancelledError:
                if room.done() and not room.cancelled():
                    self._wake()  # pass the free place on to the next caller in line
                raise
        return worker

    def describe(self) -> dict[str, Any]:
        """The workers and their leases, for ``ng_status``."""
        gyms = [
            {"name": each.name, "state": "ready", "leases": each.leases, "finished": each.finished} for each in self
        ]
        return {"gyms": gyms}

    def add(self, worker: Worker) -> None:
        """Start giving rollouts to this worker."""
        self._load[worker] = 0
        self._levels[0][worker] = None
        self._lowest = 0
        # No more than fit into the new worker's window; the others would only go back to waiting.
        for _ in range(min(self._window, len(self._waiting))):
            self._wake()

    def remove(self, worker: Worker) -> None:
        """Stop giving rollouts to this worker."""
        if (level := self._load.pop(worker, None)) is not None:
            del self._levels[level][worker]

    def give_up(self, error: ConfigError) -> None:
        """Fail all calls that wait for a worker, now and later, because no more workers will come."""
        self.error = error
        while self._waiting:
            self._wake()

    def _take(self) -> Worker | None:
        """Choose the worker with the fewest leases and count one more for it; None if all windows are full."""
        # Only ``add`` and ``_release`` put a worker on a level below ``_lowest``, and both lower it again.
        levels, level = self._levels, self._lowest
        while level < len(levels) and not levels[level]:
            level += 1
        self._lowest = level if level < len(levels) else 0
        if level >= min(len(levels), self._window):
            return None
        worker = next(iter(levels[level]))
        self._move(worker, level, level + 1)
        return worker

    def _release(self, worker: Worker) -> None:
        level = self._load.get(worker)
        if level is None:  # the worker was removed meanwhile
            return
        self._move(worker, level, level - 1)
        self._lowest = min(self._lowest, level - 1)
        self._wake()

    def _move(self, worker: Worker, old: int, new: int) -> None:
        del self._levels[old][worker]
        if new == len(self._levels):
            self._levels.append({})
        self._levels[new][worker] = None
        self._load[worker] = new

    def _wake(self) -> None:
        while self._waiting:
            room = self._waiting.popleft()
            if not room.done():
                room.set_result(None)
                return
