"""What still has to be started: the plan in its order, and failed rollouts that wait for their next attempt.

Rows of the plan are taken only when there is room for them, so the backlog holds nothing but the few that wait.
"""

import heapq
from collections.abc import Iterator
from itertools import count
from typing import Final

from nemo_gym.rollouts.planned import Planned

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0


class Backlog:
    """Rollouts to start. A retry whose time has come goes before what is new."""

    def __init__(self, owed: Iterator[Planned]) -> None:
        self._owed = owed
        self._exhausted = False
        self._waiting: list[tuple[float, int, Planned]] = []
        self._order = count()  # equal times start in the order in which they were put off

    def take(self, now: float) -> Planned | None:
        """The next rollout to start, or None if there is none at this time."""
        if self._waiting and self._waiting[0][0] <= now:
            return heapq.heappop(self._waiting)[2]
        if self._exhausted:
            return None
        planned = next(self._owed, None)
        self._exhausted = planned is None
        return planned

    def put_off(self, planned: Planned, until: float) -> None:
        """Take this one again, but not before its time."""
        heapq.heappush(self._waiting, (until, next(self._order), planned))

    @property
    def next_due(self) -> float | None:
        """When the first of those that wait may start."""
        return self._waiting[0][0] if self._waiting else None

    @property
    def is_empty(self) -> bool:
        """Whether nothing will ever come again. Only known once the plan has been read to its end."""
        return self._exhausted and not self._waiting


def pause_before_retry(planned: Planned, retry_after_s: float | None) -> float:
    """Seconds to wait after a failed attempt: longer each time, as long as the server asks for, spread by key.

    The spread keeps rollouts that failed together from coming back together; taking it from the key needs no dice.
    """
    pause = min(FIRST_PAUSE_S * 2.0 ** (planned.attempt - 1), LONGEST_PAUSE_S)
    spread = (planned.key.task * 0.618034 + planned.key.rollout * 0.414214) % 1.0
    return max(pause, retry_after_s or 0.0) * (1.0 + spread / 2)
