"""Runs the asynchronous part of a command, and turns Ctrl-C into an orderly end.

The first SIGINT or SIGTERM cancels the work, which then cleans up after itself. The second one ends the process on the
spot: server processes notice that their parent is gone and end, too.
"""

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import Coroutine, Iterator
from importlib import import_module
from typing import Any, TypeVar

from nemo_gym.cli import console
from nemo_gym.cli.outcome import Exit

Result = TypeVar("Result")
GC_THRESHOLD = 20_000


def run_async(work: Coroutine[Any, Any, Result]) -> Result:
    """Run to the end on a new event loop."""
    # What is loaded now stays, and rollouts in flight are alive: looking through all of it often finds no garbage.
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(work)


def new_loop() -> asyncio.AbstractEventLoop:
    """An event loop of the fastest kind that is installed."""
    try:
        loop: asyncio.AbstractEventLoop = import_module("uvloop").new_event_loop()
    except ImportError:
        return asyncio.new_event_loop()
    return loop


@contextlib.contextmanager
def cancelled_by_signals(task: asyncio.Task[Any], *, announcement: str) -> Iterator[None]:
    """Cancel the task on the first signal, saying so; end the process on the second."""
    received = 0

    def on_signal() -> None:
        nonlocal received
        received += 1
        if received > 1:
            os._exit(Exit.INTERRUPTED)
        console.note(f"\n{announcement}")
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
