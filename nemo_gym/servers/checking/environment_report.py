"""The results of checking an environment, as figures and findings."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from nemo_gym.servers.checking.hosted_environment import PlayedRollout
from nemo_gym.servers.inspection import Finding

SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class PlayerSummary:
    """The rewards of one player."""

    player: str
    rollouts: int
    failed: int
    mean: float | None
    lowest: float | None
    highest: float | None

    @classmethod
    def of(cls, player: str, played: Sequence[PlayedRollout]) -> "PlayerSummary":
        """The figures of its rollouts."""
        rewards = [each.reward for each in played if is_number(each.reward) and each.failure is None]
        failed = sum(each.failure is not None for each in played)
        if not rewards:
            return cls(player, len(played), failed, None, None, None)
        return cls(player, len(played), failed, sum(rewards) / len(rewards), min(rewards), max(rewards))


@dataclass
class EnvironmentReport:
    """Everything that a check found out about an environment."""

    environment: str
    rows: int = 0
    players: list[PlayerSummary] = field(default_factory=list)
    rows_solved: int = 0
    verify_p95_s: float | None = None
    longest_block_s: float | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def must_be_fixed(self) -> bool:
        """Whether there is an error among the findings."""
        return any(finding.kind == "error" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        return {**asdict(self), "findings": [asdict(finding) for finding in self.findings]}

    def error(self, check: str, text: str) -> None:
        """Add something that must be fixed."""
        self.findings.append(Finding("error", check, text))

    def warn(self, check: str, text: str) -> None:
        """Add something that should be looked at."""
        self.findings.append(Finding("warning", check, text))


def is_number(value: Any) -> bool:
    """Whether a value can be a reward at all."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def listed(values: Sequence[Any]) -> str:
    """The first few of the values, and how many more there are."""
    shown = ", ".join(map(str, values[:SHOWN]))
    return f"{shown} and {len(values) - SHOWN} more" if len(values) > SHOWN else shown
