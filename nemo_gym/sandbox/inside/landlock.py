"""Landlock: restricts which files a process may read, write and run, without privileges or namespaces.

Rules are layered, and every layer must allow an access. The fork server applies a layer with everything that any box
may read; each program adds one that allows writing only to its own folder.
"""

import ctypes
import os
from collections.abc import Iterable
from typing import Final

from nemo_gym.sandbox.inside import kernel

_EXECUTE: Final = 1 << 0
_WRITE_FILE: Final = 1 << 1
_READ_FILE: Final = 1 << 2
_READ_DIRECTORY: Final = 1 << 3
_FIRST_RIGHTS: Final = (1 << 13) - 1
_REFER: Final = 1 << 13
_TRUNCATE: Final = 1 << 14
_IOCTL_DEVICE: Final = 1 << 15
_READ: Final = _EXECUTE | _READ_FILE | _READ_DIRECTORY
_OF_FILES: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE
_SCOPES: Final = 0b11  # abstract sockets and signals
SIGNALS_SINCE: Final = 6
_RULE_PATH: Final = 1
_VERSION_FLAG: Final = 1


def version() -> int:
    """The version of the kernel's Landlock interface; 0 if it has none."""
    try:
        return kernel.syscall("landlock", None, 0, _VERSION_FLAG)
    except OSError:
        return 0


def restrict(readable: Iterable[str], writable: Iterable[str], *, listed: Iterable[str] = ()) -> None:
    """Forbid access to all other files, and signals to outside processes where the kernel supports that."""
    known = version()
    handled = _handled(known)
    attributes = handled.to_bytes(8, "little") + bytes(8)
    if known >= SIGNALS_SINCE:
        attributes += _SCOPES.to_bytes(8, "little")
    ruleset = kernel.syscall("landlock", attributes, len(attributes), 0)
    try:
        for path in readable:
            _allow(ruleset, path, _READ & handled)
        for path in listed:
            _allow(ruleset, path, _READ_DIRECTORY)
        for path in writable:
            _allow(ruleset, path, handled & ~_IOCTL_DEVICE)
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)  # required of unprivileged processes
        # The two other calls of Landlock have the next numbers: 1 adds a rule, 2 applies the rules.
        kernel.raw_syscall(kernel.NUMBERS[kernel.architecture()]["landlock"] + 2, ruleset, 0)
    finally:
        os.close(ruleset)


def _handled(known: int) -> int:
    rights = _FIRST_RIGHTS
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEVICE)):
        rights |= right if known >= since else 0
    return rights


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # the path does not exist, so there is nothing to allow
    try:
        rights &= -1 if os.path.isdir(path) else _OF_FILES
        rule = ctypes.create_string_buffer(rights.to_bytes(8, "little") + folder.to_bytes(4, "little", signed=True), 12)
        number = kernel.NUMBERS[kernel.architecture()]["landlock"] + 1
        kernel.raw_syscall(number, ruleset, _RULE_PATH, rule, 0)
    finally:
        os.close(folder)
