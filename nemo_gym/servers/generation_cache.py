"""Answers of models, kept in a folder: one file each, named after what was asked.

Any number of processes may share a folder. A file appears whole or not at all, and says what its content must be, so
that a damaged one is thrown away and asked for again. Once the folder exceeds its size, what was not used for longest
goes first. A folder that can't be written any more costs the cache, never a rollout.
"""

import asyncio
import fcntl
import itertools
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

from nemo_gym.errors import ConfigError

logger = logging.getLogger(__name__)

MAGIC: Final = b"rollout-gym-answer-1 "
DEFAULT_MAX_GB: Final = 10.0
GIGABYTE: Final = 10**9
# How far the folder is cleared at a time, and how much may be added before it is looked at again.
KEPT: Final = 0.9
UNSEEN: Final = 1 / 32
STALE_S: Final = 3600.0


class _Entry(NamedTuple):
    used: float
    size: int
    path: str


class GenerationCache:
    """A folder of answers."""

    def __init__(self, folder: Path, *, max_bytes: int = int(DEFAULT_MAX_GB * GIGABYTE)) -> None:
        self.folder = folder
        self.hits = 0
        self.misses = 0
        self._max_bytes = max_bytes
        self._unseen: float = float("inf")  # bytes added since the folder was looked at
        self._drafts = itertools.count()
        self._accounts = threading.Lock()
        self._has_warned = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            draft = self._draft()
            draft.touch()
            draft.unlink()
        except OSError as error:
            raise ConfigError(
                f"cache: {folder} can't be written: {error.strerror}", hint="choose another folder with +cache=…"
            ) from error

    async def get(self, key: str) -> bytes | None:
        """The answer to what has this key, if it is here and undamaged."""
        content = await asyncio.to_thread(self.read, key)
        self.hits += content is not None
        self.misses += content is None
        return content

    async def put(self, key: str, content: bytes) -> None:
        """Keep an answer."""
        await asyncio.to_thread(self.write, key, content)

    def read(self, key: str) -> bytes | None:
        """The same as ``get``, without giving way to others."""
        path = self._path(key)
        try:
            text = path.read_bytes()
        except OSError:
            return None
        content = _content(text)
        with suppress(OSError):
            if content is None:
                logger.warning("%s is damaged and was removed", path)
                path.unlink()
            else:
                os.utime(path)
        return content

    def write(self, key: str, content: bytes) -> None:
        """The same as ``put``, without giving way to others."""
        path, text = self._path(key), _head(content) + content
        if len(text) > self._max_bytes:
            return
        try:
            draft = self._draft()
            draft.write_bytes(text)
            path.parent.mkdir(exist_ok=True)
            draft.replace(path)
            self._account(len(text))
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                logger.warning("%s can't be written, so answers are not kept: %s", self.folder, error.strerror or error)

    # ---- size -------------------------------------------------------------------------------------------------------
    def _account(self, size: int) -> None:
        with self._accounts:
            self._unseen += size
            if self._unseen <= self._max_bytes * UNSEEN:
                return
            self._unseen = 0.0
        self.trim()

    def trim(self) -> None:
        """Remove what was not used for longest until the folder is well below its size."""
        with _sole(self.folder / "lock") as is_sole:
            if not is_sole:
                return  # another process is at it
            entries = sorted(self._entries())
            size = sum(entry.size for entry in entries)
            if size <= self._max_bytes:
                return
            for entry in entries:
                with suppress(OSError):
                    os.unlink(entry.path)  # noqa: PTH108 - there may be a million, and a Path for each takes longer
                size -= entry.size
                if size <= self._max_bytes * KEPT:
                    return

    def _entries(self) -> Iterator[_Entry]:
        for drawer in os.scandir(self.folder):
            if not drawer.is_dir():
                continue
            for file in os.scandir(drawer.path):
                with suppress(OSError):
                    facts = file.stat()
                    if drawer.name != "drafts":
                        yield _Entry(facts.st_mtime, facts.st_size, file.path)
                    elif facts.st_mtime < time.time() - STALE_S:
                        os.unlink(file.path)  # noqa: PTH108 - as above

    # ---- names ------------------------------------------------------------------------------------------------------
    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / key[2:]

    def _draft(self) -> Path:
        drafts = self.folder / "drafts"
        drafts.mkdir(exist_ok=True)
        return drafts / f"{os.getpid()}-{next(self._drafts)}"


def _head(content: bytes) -> bytes:
    return MAGIC + blake2b(content, digest_size=16).hexdigest().encode() + b"\n"


def _content(text: bytes) -> bytes | None:
    head, _, content = text.partition(b"\n")
    return content if head + b"\n" == _head(content) else None


@contextmanager
def _sole(path: Path) -> Iterator[bool]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(descriptor)
