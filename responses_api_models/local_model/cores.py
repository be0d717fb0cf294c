"""How many cores this process may use."""

import os
from pathlib import Path
from typing import Final

CGROUP_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")


def usable_cores(quota: Path = CGROUP_QUOTA) -> int:
    """The cores that the process is allowed on, or the share of them that a container grants."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    granted = read_quota(quota.read_text()) if quota.is_file() else None
    return max(1, cores if granted is None else min(cores, round(granted)))


def read_quota(text: str) -> float | None:
    """Cores granted by a line such as ``200000 100000`` (two) or ``max 100000`` (all)."""
    allowed, _, period = text.strip().partition(" ")
    return int(allowed) / int(period) if allowed.isdigit() and period.isdigit() else None
