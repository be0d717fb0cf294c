"""Makes starting cheaper by pausing garbage collection while modules are imported and servers are built."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Pause garbage collection. What is created at the start stays, and searching it takes a tenth of the start-up."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
