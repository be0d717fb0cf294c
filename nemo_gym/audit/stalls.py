"""Interrupts code that blocks the event loop for too long, so that checking a verifier that never ends comes to an end.

A signal reaches regular expressions, arithmetic with huge numbers and Python's own loops, in the main thread only. It
can't reach a C library that neither returns nor looks for signals.
"""

import asyncio
import signal
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import FrameType
from typing import Final

STALLED: Final = "blocks the event loop for more than"
CHECK_EVERY_S: Final = 0.1
# Waiting is cheaper than computing, and a busy machine makes everything wait.
WAITING: Final = 6


@asynccontextmanager
async def interrupted_stalls(limit_s: float) -> AsyncIterator[None]:
    """Within the context, what blocks the loop for so many seconds of computing is interrupted by a ``TimeoutError``.

    Of waiting, six times as long. Does nothing outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    computed, passed = time.process_time(), time.monotonic()

    async def beat() -> None:
        nonlocal computed, passed
        while True:
            computed, passed = time.process_time(), time.monotonic()
            await asyncio.sleep(CHECK_EVERY_S)

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        nonlocal computed, passed
        stalled = max(time.process_time() - computed, (time.monotonic() - passed) / WAITING)
        if stalled > limit_s:
            computed, passed = time.process_time(), time.monotonic()  # code may catch this and continue
            raise TimeoutError(f"{STALLED} {limit_s:g} s")

    task = asyncio.create_task(beat())
    before = signal.signal(signal.SIGALRM, interrupt)
    timer = signal.setitimer(signal.ITIMER_REAL, CHECK_EVERY_S, CHECK_EVERY_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)
        task.cancel()
        await asyncio.wait([task])
