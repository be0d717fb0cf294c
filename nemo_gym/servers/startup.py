"""Makes starting cheaper: while modules are imported and servers built, nothing becomes garbage."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """What is made at the start stays; looking for garbage in it again and again is a tenth of the time to start."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
