"""What is known about crashed servers: which have crashed, and which are down now.

The supervisor of a server's processes writes it down. Clients wait for a server that is down instead of failing one by
one, and an attempt that failed asks whether a crash is the reason.
"""

import asyncio
from collections import deque
from contextlib import suppress
from time import perf_counter
from typing import Final, NamedTuple

from nemo_gym.servers.http.deadlines import not_counted

REMEMBERED: Final = 1000  # crashes


class Crash(NamedTuple):
    """The unexpected end of a server's process."""

    id: str  # distinguishes it from all other crashes
    server: str
    reason: str  # for people: ``killed by SIGKILL``


class ServerDownError(ConnectionError):
    """A server that crashed can't be started again."""


class CrashLog:
    """The crashes of the servers of one Gym."""

    def __init__(self) -> None:
        self.down: dict[str, asyncio.Event] = {}  # servers without a process; each event is set when it is over
        self.is_used = False  # whether a supervisor writes it
        self._given_up: dict[str, str] = {}
        self._noticed: deque[tuple[float, Crash]] = deque(maxlen=REMEMBERED)
        self._next = asyncio.Event()

    @property
    def crashes(self) -> list[Crash]:
        """The last crashes, oldest first."""
        return [crash for _, crash in self._noticed]

    def add(self, crash: Crash) -> None:
        """Note a crash, now."""
        self._noticed.append((perf_counter(), crash))
        self._next.set()
        self._next = asyncio.Event()

    def note_down(self, server: str) -> None:
        """From now on, calls to this server wait."""
        self.down.setdefault(server, asyncio.Event())

    def note_up(self, server: str) -> None:
        """The server replies again."""
        if (event := self.down.pop(server, None)) is not None:
            event.set()

    def give_up(self, server: str, reason: str) -> None:
        """The server will not come back: all calls to it fail."""
        self._given_up[server] = reason
        self.down.setdefault(server, asyncio.Event()).set()

    async def wait_until_up(self, server: str) -> None:
        """Wait while a server is down. The time does not count against the limit on an attempt."""
        event = self.down.get(server)
        if event is not None:
            with not_counted():
                await event.wait()
        if server in self._given_up:
            raise ServerDownError(self._given_up[server])

    def latest(self, since: float) -> Crash | None:
        """The last crash, if it was noticed after a moment of ``perf_counter``."""
        noticed, crash = self._noticed[-1] if self._noticed else (-1.0, None)
        return crash if noticed >= since else None

    async def expect(self, since: float, *, within_s: float) -> Crash | None:
        """The same, but wait for it: a caller can see a broken connection before anyone knows why it broke."""
        if (known := self.latest(since)) is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self._next.wait()
            known = self.latest(since)
        return known
