"""How many processor cores this process may use.

A machine may have more of them than the process is allowed on (``taskset``, Slurm), and a container may be granted less
time on them than they have (``docker run --cpus``, Kubernetes). Code that starts one process or thread for each core
would otherwise start far too many.
"""

import os
from pathlib import Path
from typing import Final

CGROUP_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")


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
