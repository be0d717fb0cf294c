"""Runs the asynchronous part of a command, and stops it on signals.

The first SIGINT, SIGTERM or SIGHUP (the terminal was closed) asks the work to end: a collection finishes the rollouts
that run, anything else is cancelled and cleans up after itself. The second one ends the process; server processes
notice that their parent is gone and end too.

Signal handlers are Python's own and not those of the event loop, which the code of an environment may block. In a
collection the second signal starts a clock: even if that code swallows cancellation, blocks the loop or hangs in a
thread, the process ends some seconds later. What was saved by then is intact.
"""

import asyncio
import contextlib
import faulthandler
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from nemo_gym.cli import console
from nemo_gym.errors import ExitCode
from nemo_gym.io.process import settle_heap
from nemo_gym.servers.event_loop import new_event_loop

Result = TypeVar("Result")


class Switch(Protocol):
    """What a signal presses: the ``StopSwitch`` of a run."""

    def press(self) -> None:
        """Ask for the run to stop; asking again is more urgent."""


SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
END_WITHIN_S: Final = 4.0
_NO_THREADS_S: Final = 3.0  # a later, harder end for code that does not let other threads run


def run_async(work: Coroutine[Any, Any, Result]) -> Result:
    """Run to the end on a new event loop."""
    settle_heap()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


@contextlib.contextmanager
def _signals_handled(handle: Callable[[int], None], *, stay: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Call a function on the signals while the block runs, and afterwards too if they are to ``stay``."""
    # A command under nohup is meant to survive its terminal.
    handled = [number for number in SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, lambda number, _: handle(number)) for number in handled}
    try:
        yield
    finally:
        if not stay():
            for number, handler in before.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def cancelled_by_signals(task: asyncio.Task[Any], *, announcement: str) -> Iterator[None]:
    """Announce the first signal and cancel the task; end the process on the second."""
    loop, received = asyncio.get_running_loop(), 0

    def handle(_: int) -> None:
        nonlocal received
        received += 1
        if received > 1:
            # Not sys.exit, which would wait for threads and for cleaning up that hangs.
            os._exit(ExitCode.INTERRUPTED)
        with contextlib.suppress(RuntimeError):  # the signal interrupted another message
            console.note(f"\n{announcement}")
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(task.cancel)

    with _signals_handled(handle):
        yield


@contextlib.contextmanager
def stopped_by_signals(switch: Switch, *, end_process: bool = True) -> Iterator[None]:
    """Press the switch on each signal while the block runs. Must be entered inside a running event loop.

    With ``end_process`` the second signal also ends the process soon. After a first signal the handlers stay, so that a
    second one can still end a process that hangs while closing its servers.
    """
    loop, received = asyncio.get_running_loop(), 0

    def handle(number: int) -> None:
        nonlocal received
        received += 1
        if received > 1 and end_process:
            _end_process_soon(at_once=received > 2)
        again = " (again to stop at once)"
        waiting = "starting no more rollouts; waiting for those that run"
        with contextlib.suppress(RuntimeError):  # the signal interrupted another message, or the loop is closed
            console.note(f"{signal.Signals(number).name}: " + ("stopping now" if received > 1 else waiting + again))
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(switch.press)

    with _signals_handled(handle, stay=lambda: end_process and received > 0):
        yield


def _end_process_soon(*, at_once: bool) -> None:
    """End this process within seconds, whatever its threads and its event loop do."""

    def end() -> None:
        with contextlib.suppress(Exception):
            console.note("some code does not stop, so the process ends now; what was saved is intact")
        os._exit(ExitCode.INTERRUPTED)

    if at_once:
        os._exit(ExitCode.INTERRUPTED)
    timer = threading.Timer(END_WITHIN_S, end)
    timer.daemon = True
    timer.start()
    # Code that holds the interpreter's lock keeps our thread from running; this timer works without the lock.
    nowhere = Path(os.devnull).open("w")  # noqa: SIM115 - open as long as the process is
    faulthandler.dump_traceback_later(END_WITHIN_S + _NO_THREADS_S, exit=True, file=nowhere)
