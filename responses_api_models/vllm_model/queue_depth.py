"""Reads how many requests wait inside an endpoint, and holds ours back while there are too many.

Inference servers accept more requests than they work on. Those that wait there use up their timeout, and are lost if
the server goes down. Servers that publish the length of their queue (``/metrics`` in Prometheus format) are queried for
it when there is something to hold back, at most twice a second; the others are rarely queried.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

# One name for each server: vLLM, SGLang, llama.cpp, TGI.
METRICS: Final = (
    "vllm:num_requests_waiting",
    "sglang:num_queue_reqs",
    "llamacpp:requests_deferred",
    "tgi_queue_size",
)
MIN_IN_FLIGHT: Final = 8
FRESH_S: Final = 0.5
SILENT_S: Final = 60.0

ReadMetrics = Callable[[], Awaitable[str | None]]


def queue_depth(metrics: str) -> int | None:
    """Read the number of waiting requests of all engines together; None if the text does not say."""
    found: list[float] = []
    for line in metrics.splitlines():
        name, _, rest = line.partition("{") if "{" in line else line.partition(" ")
        if name in METRICS:
            value = _number(rest.rpartition("}")[2].split() if "{" in line else rest.split())
            found += [] if value is None else [value]
    return int(sum(found)) if found else None


def _number(fields: list[str]) -> float | None:
    try:
        value = float(fields[0])
    except (IndexError, ValueError):
        return None
    return value if 0 <= value < float("inf") else None


class QueueGauge:
    """Lets requests through to one endpoint while its queue is short or unknown."""

    def __init__(self, read: ReadMetrics, *, limit: int | None) -> None:
        self.depth: int | None = None
        self._read = read
        self._limit = limit
        self._sent = 0
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()

    def may_go(self, in_flight: int) -> bool:
        """Whether a request may go at once, as far as that is known without asking."""
        if self._limit is None or in_flight < MIN_IN_FLIGHT:
            return True
        if self._is_old(asyncio.get_running_loop().time()):
            return False
        return self._go()

    async def wait(self, *, seconds: float) -> bool:
        """Wait for a place in the queue; False if none became free in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while True:
            await self._refresh(loop.time())
            if self._go():
                return True
            if loop.time() > deadline:
                return False
            await asyncio.sleep(FRESH_S)

    def _go(self) -> bool:
        """Take a place in the queue if there is one. Places taken since the last reading are occupied by now."""
        if self._limit is not None and self.depth and self.depth + self._sent > self._limit:
            return False
        self._sent += 1
        return True

    async def _refresh(self, now: float) -> None:
        """Read the depth again if it is old. Meanwhile others use the old one, if there is one."""
        if not self._is_old(now) or (self._reading.locked() and self.depth is not None):
            return
        async with self._reading:
            if self._is_old(now):
                metrics = await self._read()
                self.depth = queue_depth(metrics) if metrics is not None else None
                self._read_at = now
                self._sent = 0

    def _is_old(self, now: float) -> bool:
        return now - self._read_at >= (FRESH_S if self.depth is not None else SILENT_S)
