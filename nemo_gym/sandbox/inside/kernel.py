"""Linux system calls that the standard library does not offer, made through the C library.

Every call that fails raises ``OSError``, because a restriction that was not applied must never go unnoticed.
"""

import ctypes
import os
import platform
import resource
import signal
from collections.abc import Mapping
from typing import Final

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWCGROUP: Final = 0x02000000
CLONE_NEWUTS: Final = 0x04000000
CLONE_NEWIPC: Final = 0x08000000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000
CLONE_NEWTIME: Final = 0x00000080

MS_RDONLY: Final = 0x1
MS_NOSUID: Final = 0x2
MS_NODEV: Final = 0x4
MS_NOEXEC: Final = 0x8
MS_REMOUNT: Final = 0x20
MS_BIND: Final = 0x1000
MS_REC: Final = 0x4000
MS_PRIVATE: Final = 0x40000
MNT_DETACH: Final = 2
MOUNT_ATTR_RDONLY: Final = 0x1
MOUNT_ATTR_NOSUID: Final = 0x2
MOUNT_ATTR_NODEV: Final = 0x4
AT_RECURSIVE: Final = 0x8000
AT_FDCWD: Final = -100

PR_SET_PDEATHSIG: Final = 1
PR_SET_DUMPABLE: Final = 4
PR_CAPBSET_DROP: Final = 24
PR_SET_CHILD_SUBREAPER: Final = 36
PR_SET_NO_NEW_PRIVS: Final = 38
PR_CAP_AMBIENT: Final = 47
PR_CAP_AMBIENT_RAISE: Final = 2
CAPABILITY_VERSION: Final = 0x20080522

# The numbers of system calls differ between the two architectures that are supported.
NUMBERS: Final[Mapping[str, Mapping[str, int]]] = {
    "x86_64": {"clone": 56, "capset": 126, "pivot_root": 155, "mount_setattr": 442, "landlock": 444},
    "aarch64": {"clone": 220, "capset": 91, "pivot_root": 41, "mount_setattr": 442, "landlock": 444},
}

# PyDLL keeps the interpreter's lock during a call. The child of a clone could otherwise wait for it forever.
_LIBC: Final = ctypes.PyDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long


def architecture() -> str:
    """The machine's architecture as a key of ``NUMBERS``; raises where there is no table for it."""
    machine = platform.machine()
    if machine not in NUMBERS:
        raise OSError(f"the system calls of {machine} are not known")
    return machine


def syscall(name: str, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """A system call by its name in ``NUMBERS``."""
    return raw_syscall(NUMBERS[architecture()][name], *arguments)


def raw_syscall(number: int, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """A system call by number."""
    wide = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result = int(_LIBC.syscall(ctypes.c_long(number), *wide))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def clone(flags: int) -> int:
    """Fork into new namespaces. Returns 0 in the child, which has only the calling thread."""
    # As os.fork does. From 3.13 on, the interpreter aborts in the child if it did not take its locks before.
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = -1
    try:
        pid = syscall("clone", flags | signal.SIGCHLD, 0, 0, 0, 0)
    finally:
        if pid == 0:
            ctypes.pythonapi.PyOS_AfterFork_Child()
        else:
            ctypes.pythonapi.PyOS_AfterFork_Parent()
    return pid


def mount(source: str, target: str, kind: str = "", *, flags: int = 0, options: str = "") -> None:
    """Mount a filesystem of a ``kind`` or, with ``MS_BIND``, a folder or file. ``options`` are those of the kind."""
    _check(
        _LIBC.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()), target
    )


def unmount(target: str) -> None:
    """Detach a mount at once; processes that still use it keep their access."""
    _check(_LIBC.umount2(target.encode(), MNT_DETACH), target)


def seal(target: str) -> None:
    """Make a mount and all mounts below it read-only, without setuid programs and devices."""
    attributes = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV
    structure = b"".join(value.to_bytes(8, "little") for value in (attributes, 0, 0, 0))
    syscall("mount_setattr", AT_FDCWD, target.encode() + b"\0", AT_RECURSIVE, structure, len(structure))


def enter_root(folder: str) -> None:
    """Make a mounted folder the root, and detach everything else."""
    os.chdir(folder)
    # With the same folder for both, the old root ends up on top of the new one, and no place for it is needed.
    syscall("pivot_root", b".\0", b".\0")
    unmount(".")
    os.chdir("/")


def set_hostname(name: str) -> None:
    """Set the host name, which only this namespace sees."""
    _check(_LIBC.sethostname(name.encode(), len(name)), name)


def prctl(option: int, *arguments: int) -> None:
    """Set an attribute of the process."""
    padded = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    _check(_LIBC.prctl(option, *padded), f"prctl {option}")


def drop_capabilities(keep: int = 0) -> None:
    """Give up all capabilities but those of the mask ``keep``, also for programs that this one starts."""
    for capability in range(64):
        if not keep >> capability & 1 and _LIBC.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) != 0:
            break  # past the last capability, or not permitted; in either case the empty sets below are what counts
    header = CAPABILITY_VERSION.to_bytes(4, "little") + bytes(4)
    low, high = keep & 0xFFFFFFFF, keep >> 32
    words = (low, low, low, high, high, high)
    syscall("capset", header, b"".join(word.to_bytes(4, "little") for word in words))


def set_limit(kind: int, value: int) -> None:
    """Set the soft and hard limits, or a lower value if the hard limit is already lower."""
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
