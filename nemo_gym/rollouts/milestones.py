"""Tells, each time a good part of a run is done, what is left for each agent. Pure."""

from collections import Counter
from typing import Final

SHARES: Final = (20, 40, 60, 80, 90, 95, 98, 99, 100)
SHOWN: Final = 5


class Milestones:
    """Watches the share of a plan that is finished; what an earlier run finished counts, but is not announced."""

    def __init__(self, *, total: int, done: int, left: Counter[str]) -> None:
        self._total = total
        self._finished = done
        self._left = Counter(left)
        self._ahead = [share for share in SHARES if share > self._percent]

    def advance(self, agents: Counter[str]) -> str | None:
        """Note what each agent finished; return what to tell if that reached a milestone."""
        self._finished += agents.total()
        self._left -= agents  # drops those that have nothing left
        if not self._ahead or self._percent < self._ahead[0]:
            return None
        self._ahead = [share for share in self._ahead if share > self._percent]
        return self._text() if self._left else None

    @property
    def _percent(self) -> float:
        return 100 * self._finished / self._total if self._total else 100

    def _text(self) -> str:
        ranked = self._left.most_common(SHOWN)
        lines = [f"{number}. {agent}: {count}" for number, (agent, count) in enumerate(ranked, start=1)]
        return "\n".join(["Examples left:", *lines])
