"""How many rollouts fit into memory, where nobody has said how many are to run.

A rollout in flight holds its conversation several times over: as text, as objects, as the row it becomes. How much that
is shows in the rows of those that have completed, and in what has become of the free memory. So the run stays within a
share of the memory that was free when it began; other programs, worker processes and sandboxes count as well.
"""

import logging
from collections.abc import Callable
from typing import Final

from nemo_gym.io.process import available_memory
from nemo_gym.rollouts.concurrency import Limit
from nemo_gym.rollouts.store.outcome import Completed, Outcome

logger = logging.getLogger(__name__)

SHARE: Final = 0.8  # of the memory that is free when the run begins
FIRST_ROW: Final = 400_000  # bytes of a row, until one has completed: a hundred turns with token ids
TIMES_ROW: Final = (
    10  # memory of a rollout in flight, in times its row: measured, 64 rollouts of a hundred turns at once
)
RECENT: Final = 0.1  # weight of the last row in their mean
LOOK_EVERY_S: Final = 1.0


class MemoryLimit:
    """Another limit, and never more than fit into memory. Says so when that is fewer."""

    def __init__(self, limit: Limit, available: Callable[[], int | None] = available_memory) -> None:
        self._limit = limit
        self._available = available
        self._free = available()
        self._row = float(FIRST_ROW)
        self._rows = 0
        self._most = 1  # rollouts at once so far
        self._fitting = float("inf")  # how many of those fit, according to the memory that they take
        self._look_at = float("-inf")
        self._held: tuple[int, int] | None = None  # how many may run, and how many would without this limit
        self._said = float("inf")

    @property
    def adaptive(self) -> bool:
        """Whether the other limit looks for its number."""
        return self._limit.adaptive

    def allowed(self, now: float) -> int:
        """As many as the other limit allows and memory holds; one always may run."""
        wanted = self._limit.allowed(now)
        if self._free is None or wanted <= 1:
            return wanted
        room = max(1, int(min(SHARE * self._free / (TIMES_ROW * self._row), self._fitting)))
        self._held = (room, wanted) if room < wanted else None
        return min(room, wanted)

    def next_change(self, now: float) -> float | None:
        """Memory is looked at when a rollout has ended."""
        return self._limit.next_change(now)

    def observe(self, outcome: Outcome, *, in_flight: int, now: float) -> None:
        """Learn how large a row is and, now and then, how much memory is left."""
        self._limit.observe(outcome, in_flight=in_flight, now=now)
        if isinstance(outcome, Completed):
            # The first rows are usually the shortest, so a mean over all of them would be too small for long.
            self._row += (len(outcome.line) - self._row) * (RECENT if self._rows else 1.0)
            self._rows += 1
        self._most = max(self._most, in_flight)
        if self._held is not None and in_flight >= self._held[0] and self._rows:
            self._say(*self._held)
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY_S
            self._look()

    def _look(self) -> None:
        left = self._available()
        if left is None or self._free is None:
            return
        # Allocators keep what they once had, so the memory belongs to the most rollouts that ever ran, not to the few
        # that may be running now.
        used = self._free - left
        self._fitting = self._most * SHARE * self._free / used if used > SHARE * self._free else float("inf")

    def _say(self, room: int, wanted: int) -> None:
        if room > self._said / 2 or self._free is None:
            return
        self._said = room
        logger.warning(
            "memory: %d rollouts at once instead of %d, to stay within %.0f %% of the %.1f GB that were free "
            "(rows of %.2g MB, and about %d times that in flight). Your own num_samples_in_parallel=<number> is kept.",
            *(room, wanted, 100 * SHARE, self._free / 1e9, self._row / 1e6, TIMES_ROW),
        )
