"""The event loop that all our processes run on, and the end of a process whose parent is gone."""

import asyncio
import os
import threading
import time
from importlib import import_module

_LOOK_S = 1.0


def new_event_loop() -> asyncio.AbstractEventLoop:
    """An event loop of the fastest kind that is installed."""
    try:
        loop: asyncio.AbstractEventLoop = import_module("uvloop").new_event_loop()
    except ImportError:  # not on every platform
        return asyncio.new_event_loop()
    return loop


def end_with_parent() -> None:
    """End this process when its parent is gone, also while a handler blocks the event loop."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_S)
        os._exit(1)

    threading.Thread(target=watch, name="end_with_parent", daemon=True).start()
