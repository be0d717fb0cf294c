"""What a running collection is doing: which rollouts run, how fast it goes, where they run.

A small file beside the output says so. It is rewritten every second or two, so that ``ng_status`` can read it from any
machine that sees the file, and is removed at the end. After a crash it stays behind, but its age shows that the run is
gone.
"""

import heapq
import json
import os
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic, time
from typing import Any, Final, TypeAlias

from nemo_gym.rollouts.dispatch import Attempt, Dispatch
from nemo_gym.rollouts.outcome import Outcome
from nemo_gym.rollouts.plan import PlannedRollout
from nemo_gym.rollouts.tally import Tally
from nemo_gym.schemas.rows import RolloutKey

SLOWEST: Final = 5
RATE_OVER_S: Final = 30.0
STALE_S: Final = 15.0  # a file older than this belongs to a run that is gone

Describe: TypeAlias = Callable[[], dict[str, Any]]


class Activity:
    """Wraps the function that runs an attempt, and remembers what is running."""

    def __init__(self, attempt: Attempt, path: Path, describe: Describe | None = None) -> None:
        self._attempt = attempt
        self._path = path
        self._describe = describe
        self._running: dict[RolloutKey, tuple[float, str]] = {}
        self._started = monotonic()
        self._ended: deque[tuple[float, int]] = deque([(self._started, 0)])

    async def __call__(self, planned: PlannedRollout) -> Outcome:
        """Run one rollout."""
        self._running[planned.key] = (monotonic(), planned.agent)
        try:
            return await self._attempt(planned)
        finally:
            self._running.pop(planned.key, None)

    def write(self, tally: Tally, dispatch: Dispatch, owed: int) -> None:
        """Write the current state. The run continues if the file can't be written."""
        text = json.dumps(self.state(tally, dispatch, owed), indent=1)
        # Not forced to the disk, unlike what ``replacing`` writes: the file is worthless after a crash of the machine.
        draft = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
        with suppress(OSError):
            draft.write_text(text, "utf-8")
            draft.replace(self._path)

    def remove(self) -> None:
        """Remove the file at the end of the run."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def state(self, tally: Tally, dispatch: Dispatch, owed: int) -> dict[str, Any]:
        """The content of the file."""
        now = monotonic()
        self._ended.append((now, tally.ended))
        while now - self._ended[0][0] > RATE_OVER_S and len(self._ended) > 2:
            self._ended.popleft()
        then, before = self._ended[0]
        slowest = heapq.nsmallest(SLOWEST, self._running.items(), key=lambda each: each[1][0])
        return {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "written_at": time(),
            "seconds": round(now - self._started, 1),
            "owed": owed,
            "completed": tally.completed,
            "failed": tally.failed,
            "ended": tally.ended,
            "running": len(self._running),
            "allowed": dispatch.allowed,
            "per_second": round((tally.ended - before) / max(now - then, 1e-9), 2),
            "outage": dispatch.outage.reason,
            "slowest": [
                {"task": key.task, "rollout": key.rollout, "agent": agent, "seconds": round(now - began, 1)}
                for key, (began, agent) in slowest
            ],
            **(self._describe() if self._describe is not None else {}),
        }


def read_activity(path: Path) -> dict[str, Any] | None:
    """The state that a running collection reports; None if there is none, or it is out of date."""
    try:
        state: dict[str, Any] = json.loads(path.read_bytes())
        return state if time() - float(state["written_at"]) < STALE_S else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
