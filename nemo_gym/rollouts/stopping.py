"""Stopping a run from outside: the first request lets running rollouts finish, the second does not."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class StopSwitch:
    """Remembers that the run was asked to stop, and tells whoever runs it."""

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
            self._listener(self._patience)

    def connect(self, listener: Callable[[float], None]) -> None:
        """Call this with the seconds that running rollouts may take, now if the switch is already on."""
        self._listener = listener
        if self.is_on:
            listener(self._patience)

    @property
    def _patience(self) -> float:
        return self._drain_s if self._requests == 1 else 0.0


@contextmanager
def on_signals(switch: StopSwitch, announce: Callable[[str], None]) -> Iterator[None]:
    """Press the switch on Ctrl-C and SIGTERM while the block runs. Must be entered inside a running event loop."""
    loop = asyncio.get_running_loop()

    def handle(name: str) -> None:
        announce(
            f"{name}: stopping now"
            if switch.is_on
            else f"{name}: starting no more rollouts; waiting for those that run (again to stop at once)"
        )
        switch.press()

    for number in SIGNALS:
        loop.add_signal_handler(number, handle, number.name)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
