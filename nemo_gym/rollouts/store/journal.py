"""A file that only grows, by lines or frames, and the lock that keeps a second collector off the same output.

Once ``append`` returns, its lines are with the operating system and survive the death of this process; once they are
synced, they survive that of the machine. An append that fails is undone, so the file ends with a whole line at all
times, except after a crash in the middle of a write; that torn tail is cut off before the file is opened again (see
``saved_lines``).

The lock is the kernel's (``flock``), so it ends with the process that held it, however that died. The content of the
lock file only says who holds it.
"""

import fcntl
import json
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Self, TypeAlias

from nemo_gym.errors import ConfigError
from nemo_gym.io.compressed import is_framed
from nemo_gym.io.files import storage_errors
from nemo_gym.io.zstd_frames import framed


class OutputInUseError(ConfigError):
    """Another process is writing to this output."""


@contextmanager
def exclusive(path: Path, *, output: Path) -> Iterator[None]:
    """Hold the lock file of an output while the block runs; raise if another process does."""
    with storage_errors(output, "write to"):
        descriptor = _acquire(path, output)
    try:
        yield
    finally:
        # Removed while still locked: the next process that locks the nameless file notices, and opens the path again.
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)


def _acquire(path: Path, output: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 4096, 0)
            os.close(descriptor)
            raise _in_use(output, holder) from None
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


def _in_use(output: Path, holder: bytes) -> OutputInUseError:
    try:
        about = json.loads(holder)
        who = f"process {about['pid']} on {about['host']}, since {about['since']}"
    except (ValueError, KeyError, TypeError):  # its holder has locked it but not written to it yet
        who = "another process"
    return OutputInUseError(
        f"{output}: {who}, is collecting to this output",
        hint="wait for it, stop it, or choose another output_jsonl_fpath",
    )


Write: TypeAlias = Callable[[int, bytes], int]  # os.write, or something that fails on purpose


class Journal:
    """An open file for appending lines. Only one process has it open, which the store's lock ensures."""

    def __init__(self, path: Path, *, write: Write = os.write) -> None:
        self.path = path
        self._write = write
        with storage_errors(path, "open"):
            # O_CLOEXEC: a server process that inherited the descriptor would keep the file open after we are gone.
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.size = os.fstat(self._descriptor).st_size
        self._synced_size = self.size
        self._is_framed = is_framed(path)

    def append(self, lines: Iterable[bytes]) -> None:
        """Write lines, all or none of them, in one call where the system allows."""
        if self._is_framed:
            data = b"".join(framed(self.path, (line + b"\n" for line in lines)))
        else:
            data = b"\n".join([*lines, b""])
        if not data:
            return
        try:
            self._write_all(data)
        except BaseException:
            # The next line would be glued to a partial one. If even this fails, the next start repairs the file.
            with suppress(OSError):
                os.ftruncate(self._descriptor, self.size)
            with storage_errors(self.path, "write to"):  # only here, because entering it costs more than a short write
                raise
        self.size += len(data)

    def sync(self) -> None:
        """Force what was appended to the disk. May run in another thread than ``append``."""
        size = self.size  # cleared before syncing, because the sync may not cover what another thread appends meanwhile
        if size > self._synced_size:
            with storage_errors(self.path, "sync"):
                os.fsync(self._descriptor)
            self._synced_size = size

    def close(self) -> None:
        """Sync and close."""
        try:
            self.sync()
        finally:
            os.close(self._descriptor)

    def _write_all(self, data: bytes) -> None:
        rest = data
        while rest:  # a write that is interrupted, or that fills the disk, takes only a part
            rest = rest[self._write(self._descriptor, rest) :]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
