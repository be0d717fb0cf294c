"""How much of a plan the numbers speak about: planned, completed, failed and why. Printed beside every mean."""

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from nemo_gym.schemas.rows import RolloutKey


@dataclass(frozen=True, slots=True)
class Coverage:
    """Counts of rollouts. A rollout that failed and later succeeded is completed."""

    planned: int
    completed: int
    failed: Mapping[str, int] = field(default_factory=dict)  # by class of the last failure

    @property
    def pending(self) -> int:
        """Neither completed nor failed."""
        return max(0, self.planned - self.completed - sum(self.failed.values()))

    @property
    def percent(self) -> float:
        """Completed rollouts in percent of the plan."""
        return 100.0 * self.completed / self.planned if self.planned else 100.0

    def as_dict(self) -> dict[str, Any]:
        """For a report."""
        return {
            "planned": self.planned,
            "completed": self.completed,
            "failed": dict(self.failed),
            "pending": self.pending,
            "completed_pct": self.percent,
        }

    def __str__(self) -> str:
        text = f"{self.completed} of {self.planned} rollouts completed ({self.percent:.1f} %)"
        if self.failed:
            classes = ", ".join(f"{name} {count}" for name, count in sorted(self.failed.items()))
            text += f", {sum(self.failed.values())} failed ({classes})"
        return f"{text}, {self.pending} not run" if self.pending else text


def coverage(
    planned: AbstractSet[RolloutKey], completed: AbstractSet[RolloutKey], failures: Iterable[tuple[RolloutKey, str]]
) -> Coverage:
    """Coverage of a plan; of several failures of a rollout the last one counts. Keys outside the plan do not."""
    last = {key: cause for key, cause in failures if key in planned and key not in completed}
    return Coverage(len(planned), len(planned & completed), dict(sorted(Counter(last.values()).items())))
