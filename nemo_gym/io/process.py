"""This process: the cores it may use, the files it may open, its start and its end.

A machine may have more cores than the process is allowed on (``taskset``, Slurm), and a container may be granted less
time on them than they have (``docker run --cpus``, Kubernetes). Code that starts one process or thread for each core
would otherwise start far too many.
"""

import gc
import os
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

CGROUP_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")
OPEN_FILES: Final = 65_535
_CHECK_INTERVAL_S: Final = 1.0


def usable_cores(quota: Path = CGROUP_QUOTA) -> int:
    """Count the cores that the process is allowed on, or the share of them that its container grants."""
    # Not every system has the first function, and the second one counts the whole machine.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    granted = read_quota(quota.read_text()) if quota.is_file() else None
    return max(1, cores if granted is None else min(cores, round(granted)))


def read_quota(text: str) -> float | None:
    """Read the cores granted by a line such as ``200000 100000`` (two) or ``max 100000`` (all)."""
    allowed, _, period = text.strip().partition(" ")
    return int(allowed) / int(period) if allowed.isdigit() and period.isdigit() else None


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


def raise_open_files_limit() -> None:
    """Raise the limit of open files, because thousands of concurrent rollouts need as many sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def end_with_parent() -> None:
    """End this process when its parent is gone, even while a handler blocks the event loop."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_CHECK_INTERVAL_S)
        os._exit(1)

    threading.Thread(target=watch, name="end_with_parent", daemon=True).start()
