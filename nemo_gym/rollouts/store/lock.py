"""Keeps a second collector off the same output.

The lock is the kernel's (``flock``), so it is gone with the process that held it, however that ended. The file only
tells who holds it.
"""

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.store.files import storage_errors


class OutputInUseError(ConfigError):
    """Another process is writing to this output."""


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock file while the block runs; raise if somebody else does."""
    with storage_errors(path, "lock"):
        descriptor = _acquire(path)
    try:
        yield
    finally:
        # Removed while it is held: nobody can be left with the lock of a file that no longer has the name.
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)


def _acquire(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 4096, 0)
            os.close(descriptor)
            raise _in_use(path, holder) from None
        if _still_named(descriptor, path):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, _about_us(), 0)
            return descriptor
        os.close(descriptor)  # its last holder removed it between our opening and locking it


def _still_named(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _about_us() -> bytes:
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": started}).encode()


def _in_use(path: Path, holder: bytes) -> OutputInUseError:
    try:
        about = json.loads(holder)
        who = f"process {about['pid']} on {about['host']}, since {about['since']}"
    except (ValueError, KeyError, TypeError):  # caught between locking and writing
        who = "another process"
    return OutputInUseError(
        f"{path}: {who}, is collecting to this output",
        hint="wait for it, stop it, or choose another output_jsonl_fpath",
    )
