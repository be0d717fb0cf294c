"""The event loop of all our processes, and a watchdog that ends a process whose parent is gone."""

import asyncio
import os
import threading
import time
from importlib import import_module

_CHECK_INTERVAL_S = 1.0


def new_event_loop() -> asyncio.AbstractEventLoop:
    """The fastest event loop that is installed."""
    try:
        loop: asyncio.AbstractEventLoop = import_module("uvloop").new_event_loop()
    except ImportError:  # uvloop does not exist for every platform
        return asyncio.new_event_loop()
    return loop


def end_with_parent() -> None:
    """End this process when its parent is gone, even while a handler blocks the event loop."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_CHECK_INTERVAL_S)
        os._exit(1)

    threading.Thread(target=watch, name="end_with_parent", daemon=True).start()
