"""What a run was going to do, as far as the plan beside its rollouts tells, and whether it still does."""

import json
import os
import socket
from pathlib import Path

from nemo_gym.metrics.builder import MetricsBuilder
from nemo_gym.metrics.coverage import distinct
from nemo_gym.metrics.table import Keys


class Plan:
    """The plan of a run, read again when it changes. ``refresh`` belongs to one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self.keys: Keys | None = None  # each rollout once, in order

    @property
    def count(self) -> int | None:
        """How many rollouts were planned; None if there is no plan, or it was not read yet."""
        return None if self.keys is None else len(self.keys.task)

    def refresh(self) -> bool:
        """Read the plan if it is new; True if it was."""
        try:
            status = self._path.stat()
        except OSError:
            return False
        look = (status.st_ino, status.st_size, status.st_mtime_ns)
        if look == self._seen:
            return False
        self._seen = look
        builder = MetricsBuilder()
        builder.add_file(self._path)
        self.keys = distinct(builder.keys())
        return True


def is_held(lock: Path) -> bool:
    """Whether the process that a lock file names is there, as far as one can tell. Locks nothing itself."""
    try:
        holder = json.loads(lock.read_text("utf-8"))
        if holder["host"] == socket.gethostname():
            os.kill(int(holder["pid"]), 0)
    except PermissionError:  # it is there, and somebody else's
        return True
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return True
