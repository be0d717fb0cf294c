"""Stopping a run from outside: the first request lets running attempts finish, the second ends the process.

Signal handlers are Python's own and not those of the event loop, which the code of an environment may block. The second
signal starts a clock: even if that code swallows cancellation, blocks the loop or hangs in a thread, the process ends
some seconds later. What was saved by then is intact.
"""

import asyncio
import faulthandler
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final

from nemo_gym.errors import ExitCode

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
END_WITHIN_S: Final = 4.0
_NO_THREADS_S: Final = 3.0  # a later, harder end for code that does not let other threads run


class StopSwitch:
    """Remembers that the run was asked to stop, and notifies the code that runs it."""

    def __init__(self, *, drain_s: float) -> None:
        self._drain_s = drain_s
        self._requests = 0
        self._listener: Callable[[float], None] | None = None

    @property
    def is_on(self) -> bool:
        """Whether the run was asked to stop."""
        return self._requests > 0

    def press(self) -> None:
        """Ask for the run to stop; asking again is more urgent."""
        self._requests += 1
        if self._listener is not None:
            self._listener(self._time_left)

    def connect(self, listener: Callable[[float], None]) -> None:
        """Tell the listener, now or when the run is stopped, how many seconds running attempts may take."""
        self._listener = listener
        if self.is_on:
            listener(self._time_left)

    @property
    def _time_left(self) -> float:
        return self._drain_s if self._requests == 1 else 0.0


@contextmanager
def on_signals(switch: StopSwitch, announce: Callable[[str], None], *, end_process: bool = False) -> Iterator[None]:
    """Press the switch on Ctrl-C and SIGTERM while the block runs. Must be entered inside a running event loop.

    With ``end_process`` the second signal also ends the process soon. After a first signal the handlers stay until the
    process ends, because closing servers can hang as well.
    """
    loop, received = asyncio.get_running_loop(), 0

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal received
        received += 1
        if received > 1 and end_process:
            _end_process_soon(announce, at_once=received > 2)
        again = " (again to stop at once)"
        waiting = "starting no more rollouts; waiting for those that run"
        with suppress(RuntimeError):  # the signal interrupted another message, or the loop is closed
            announce(f"{signal.Signals(number).name}: " + ("stopping now" if received > 1 else waiting + again))
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(switch.press)

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        # After a first signal the handlers stay, so that a second one can still end a process that hangs while closing.
        if not (end_process and received):
            for number, handler in before.items():
                signal.signal(number, handler)


def _end_process_soon(announce: Callable[[str], None], *, at_once: bool) -> None:
    """End this process within seconds, whatever its threads and its event loop do."""

    def end() -> None:
        with suppress(Exception):
            announce("some code does not stop, so the process ends now; what was saved is intact")
        os._exit(ExitCode.INTERRUPTED)

    if at_once:
        os._exit(ExitCode.INTERRUPTED)
    timer = threading.Timer(END_WITHIN_S, end)
    timer.daemon = True
    timer.start()
    # Code that holds the interpreter's lock keeps our thread from running; this timer works without the lock.
    nowhere = Path(os.devnull).open("w")  # noqa: SIM115 - open as long as the process is
    faulthandler.dump_traceback_later(END_WITHIN_S + _NO_THREADS_S, exit=True, file=nowhere)
