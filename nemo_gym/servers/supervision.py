"""Keeps the processes of a server running: notices at once when one ends, says so, and starts it again.

Every server with processes of its own has a supervisor, wherever its Gym is hosted. The supervisor holds the socket on
which they listen. So the address never changes, and calls that arrive while no process is running wait in the queue of
that socket. (A program that ignores the socket it inherits, and binds the address itself, has no such queue; callers in
this process wait for it all the same.) What had been sent to the process that ended is lost, and so are its sessions.

Processes are started again with a growing pause. A server whose processes end several times in a row before they reply
is given up, and the error is raised by ``watch``.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from nemo_gym.io.child_process import STOP_S, ChildProcess
from nemo_gym.servers.crashes import Crash, CrashLog
from nemo_gym.servers.http.connections import aiohttp

logger = logging.getLogger(__name__)

FAILED_STARTS: Final = 5  # in a row, after which a server is given up
START_S: Final = 300.0  # a process that was started again and does not reply for so long is killed
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 10.0
STEADY_S: Final = 30.0  # a process that ran for so long is started again as soon as the first that ended
POLL_S: Final = 0.05
PROBE_S: Final = 2.0


class ServerCrashedError(Exception):
    """A server's process ended by itself, and the server can't be kept running."""

    def __init__(self, server: str, reason: str, last_lines: Iterable[str]) -> None:
        output = "\n".join(f"    {line}" for line in last_lines) or "    (no output)"
        super().__init__(f"Process `{server}` finished unexpectedly with {reason}. Its last lines:\n{output}")
        self.server = server


def pause_before_start(short_lives: int) -> float:
    """Seconds before a process is started again after so many that ended soon, in a row."""
    return min(FIRST_PAUSE_S * 2.0 ** (short_lives - 1), LONGEST_PAUSE_S)


class Supervisor:
    """The processes of one server.

    ``start`` starts one of them; its argument counts them from zero. All share the ``listener``.
    """

    def __init__(
        self,
        name: str,
        start: Callable[[int], ChildProcess],
        *,
        listener: socket.socket,
        crashes: CrashLog,
        number: int = 1,
    ) -> None:
        self.name = name
        self.processes: list[ChildProcess] = []
        self._start = start
        self._listener = listener
        self._address = "http://{}:{}/".format(*_shown_host(listener))
        self._crashes = crashes
        self._number = number
        self._keepers: list[asyncio.Task[None]] = []
        crashes.is_used = True

    async def open(self) -> None:
        """Start all processes and wait until the server replies; a process that ends before that is an error."""
        for number in range(self._number):
            self.processes.append(self._start(number))
        ended = {asyncio.ensure_future(process.ended()): process for process in self.processes}
        ready = asyncio.ensure_future(self._replies())
        try:
            await asyncio.wait([ready, *ended], return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                raise self._error(next(process for end, process in ended.items() if end.done()))
        finally:
            await _cancel([ready, *ended])
        self._keepers = [asyncio.create_task(self._keep(number)) for number in range(self._number)]

    async def watch(self) -> None:
        """Wait for as long as the server can be kept running, then raise the error."""
        await asyncio.gather(*map(asyncio.shield, self._keepers))

    async def close(self, grace_s: float = STOP_S) -> None:
        """Stop all processes."""
        await _cancel(self._keepers)
        await asyncio.gather(*(process.stop(grace_s) for process in self.processes))

    async def _keep(self, number: int) -> None:
        """Start one of the processes again whenever it ends."""
        clock = asyncio.get_running_loop().time
        replied, began, short_lives, failed_starts = True, clock(), 0, 0
        while True:
            process = self.processes[number]
            await process.ended()
            short_lives = 1 if clock() - began >= STEADY_S else short_lives + 1
            failed_starts = 0 if replied else failed_starts + 1
            if failed_starts >= FAILED_STARTS:
                raise self._give_up(process)
            pause = pause_before_start(short_lives)
            self._report(process, pause, replied=replied)
            await asyncio.sleep(pause)
            began = clock()
            replied = await self._start_again(number)
            if replied:
                process = self.processes[number]
                self._crashes.note_up(self.name)
                logger.info("%s is running again (process %d)", process.name, process.pid)

    async def _start_again(self, number: int) -> bool:
        """Start a process and wait until it replies; returns whether it did."""
        try:
            self.processes[number] = self._start(number)
        except OSError as error:  # no memory or no process is left for it
            logger.warning("%s can't be started: %s", self.processes[number].name, error)
            return False
        return await self._comes_up(self.processes[number])

    def _report(self, process: ChildProcess, pause: float, *, replied: bool) -> None:
        if not any(each.running for each in self.processes):
            self._crashes.note_down(self.name)
        if replied:  # nobody can have used one that did not
            crash_id = f"{self.name}-{process.pid}-{process.started:.3f}"
            self._crashes.add(Crash(crash_id, process.name, process.exit_reason))
        logger.warning("%s ended and is started again in %g s: %s", process.name, pause, process.end_text)

    def _give_up(self, process: ChildProcess) -> ServerCrashedError:
        error = self._error(process)
        self._crashes.give_up(self.name, str(error))
        self._listener.close()  # calls that wait in its queue fail
        return error

    def _error(self, process: ChildProcess) -> ServerCrashedError:
        return ServerCrashedError(self.name, process.exit_reason, process.last_lines)

    async def _comes_up(self, process: ChildProcess) -> bool:
        """Wait until the server replies; False if the process ends before that, or is killed because it takes long."""
        either = [asyncio.ensure_future(self._replies()), asyncio.ensure_future(process.ended())]
        try:
            done, _ = await asyncio.wait(either, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                logger.warning("%s has not replied for %g s and is killed", process.name, START_S)
                process.kill()
            return process.running and either[0].done()
        finally:
            await _cancel(either)

    async def _replies(self) -> None:
        """Wait until the server replies; any reply counts."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PROBE_S)) as session:
            while True:
                try:
                    async with session.get(self._address):
                        return
                except (aiohttp.ClientError, TimeoutError, OSError):
                    await asyncio.sleep(POLL_S)


def _shown_host(listener: socket.socket) -> tuple[str, int]:
    host, port = listener.getsockname()[:2]
    return (f"[{host}]" if ":" in host else host), port


async def _cancel(tasks: "Sequence[asyncio.Future[Any]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def first_failure(supervisors: Sequence[Supervisor]) -> None:
    """Wait until a server can't be kept running, and raise the error; waits forever if that never happens."""
    if not supervisors:
        await asyncio.Event().wait()
    await asyncio.gather(*(supervisor.watch() for supervisor in supervisors))
