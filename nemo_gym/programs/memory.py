"""How many programs run at once: as many as fit into the memory that is free, by what such programs were seen to use.

Until one has ended, a program is expected to use as much as it ever may, up to half a gigabyte; afterwards as much as
the largest so far. A program that runs holds what it has not used yet; what it uses is missing in the free memory by
itself. One program always runs, however little is free.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

from nemo_gym.io.process import available_memory

FIRST_GUESS: Final = 512 << 20
RESERVE: Final = 0.1  # of the free memory, which is left alone
LOOK_AGAIN_S: Final = 1.0
_REMEMBERED: Final = 50  # peaks


class MemoryGate:
    """Lets programs start while there is memory for them."""

    def __init__(self, *, most: int | None, free: Callable[[], int | None] = available_memory) -> None:
        self._most = most
        self._free = free
        self._running: dict[object, int] = {}
        self._peaks: deque[int] = deque(maxlen=_REMEMBERED)
        self._ended = asyncio.Event()
        self._turn = asyncio.Lock()  # those who wait start in the order in which they came

    @property
    def expected(self) -> int:
        """The bytes that the next program is expected to use."""
        return max(self._peaks) if self._peaks else min(self._most or FIRST_GUESS, FIRST_GUESS)

    def has_room(self) -> bool:
        promised = sum(max(0, self.expected - used) for used in self._running.values())
        free = self._free()
        return not self._running or free is None or self.expected + promised <= free * (1 - RESERVE)

    @asynccontextmanager
    async def place(self) -> AsyncIterator["MemoryPlace"]:
        """A place for one program, which is told the program's memory."""
        place = MemoryPlace(self._running)
        async with self._turn:
            while not self.has_room():
                self._ended.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_AGAIN_S):  # others use memory, too
                        await self._ended.wait()
            self._running[place] = 0
        try:
            yield place
        finally:
            del self._running[place]
            if place.peak:
                self._peaks.append(place.peak)
            self._ended.set()


class MemoryPlace:
    """What is known of the memory of one running program."""

    def __init__(self, running: dict[object, int]) -> None:
        self._running = running
        self.peak = 0

    def note(self, used: int) -> None:
        """The program uses so many bytes."""
        self.peak = max(self.peak, used)
        if self in self._running:
            self._running[self] = used
