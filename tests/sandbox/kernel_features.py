"""What this machine's kernel can do, found out without our own code: only where it can't, tests of a level may skip."""

import ctypes
import shutil
import subprocess
from functools import cache

LANDLOCK_CREATE_RULESET = 444  # on every architecture
ONLY_VERSION = 1


@cache
def kernel_supports(level: str) -> bool:
    """Whether a level of the sandbox can work here at all."""
    return _has_namespaces() if level == "namespaces" else _has_landlock()


def _has_namespaces() -> bool:
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--net", "--fork", "--mount-proc", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _has_landlock() -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.syscall(LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(ONLY_VERSION))) > 0
