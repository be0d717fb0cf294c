"""This process: the cores and the memory it may use, the files it may open, its garbage collection.

A machine may have more cores than the process is allowed on (``taskset``, Slurm), and a container may be granted less
time on them than they have (``docker run --cpus``, Kubernetes). Code that starts one process or thread for each core
would otherwise start far too many.
"""

import gc
import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

CGROUP_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")
CGROUP: Final = Path("/sys/fs/cgroup")
MEMORY: Final = Path("/proc/meminfo")
_MEMORY_FILES: Final = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),  # the older hierarchy
)
OPEN_FILES: Final = 65_535


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


def available_memory(machine: Path = MEMORY, container: Path = CGROUP) -> int | None:
    """How many bytes programs can still get, from the machine and from the limit of a container; None if unknown."""
    left = [1024 * int(number) for number in re.findall(r"MemAvailable: +(\d+) kB", _text(machine))]
    for names in _MEMORY_FILES:
        most, used, details = (_text(container / name).strip() for name in names)
        if most.isdigit() and used.isdigit():
            # Pages of files that nobody reads at the moment count as used, and are given up when they are needed.
            idle = sum(map(int, re.findall(r"^(?:total_)?inactive_file (\d+)", details, re.MULTILINE)[-1:]))
            left.append(max(0, int(most) - int(used) + idle))
    return min(left, default=None)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


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


_GC_THRESHOLD: Final = (
    20_000  # new objects between two collections; the default (700 in Python 3.11) suits small programs
)


def settle_heap() -> None:
    """Look for garbage less often, and not at all in what is loaded by now; for processes that run many rollouts."""
    # What is loaded stays alive, and so do rollouts in flight: frequent collections would find no garbage.
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)


def is_running(pid: int) -> bool:
    """Whether there is a process with this id on this machine."""
    try:
        os.kill(pid, 0)  # signal 0 only checks whether the process exists
    except ProcessLookupError:
        return False
    except PermissionError:  # it exists and belongs to somebody else
        pass
    return True


def raise_open_files_limit() -> None:
    """Raise the limit of open files, because thousands of concurrent rollouts need as many sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
