"""What was planned and what failed, as far as the files beside some rollouts tell: for saying how complete they are."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from nemo_gym.metrics.builder import MetricsBuilder
from nemo_gym.metrics.table import Keys
from nemo_gym.rollouts.jsonl import decode
from nemo_gym.rollouts.keyed import key_in
from nemo_gym.rollouts.store.files import RunFiles
from nemo_gym.rollouts.store.repair import read_lines
from nemo_gym.schemas.rows import NG_FAILURE_CLASS_KEY, RolloutKey


@dataclass(frozen=True, slots=True)
class PlannedKeys:
    """The rollouts that some plans ask for, and the failures of attempts in the order in which they happened."""

    plan: MetricsBuilder
    failures: list[tuple[RolloutKey, str]]

    @classmethod
    def of(cls, rollouts: Sequence[Path]) -> Self | None:
        """What lies beside these rollout files; None if one of them has no plan, as then nobody knows."""
        files = [RunFiles.of(path) for path in rollouts]
        if not all(each.plan.is_file() for each in files):
            return None
        plan = MetricsBuilder()
        for each in files:
            plan.add_file(each.plan)
        return cls(plan, [failure for each in files for failure in _failures(each.failures)])

    @property
    def agents(self) -> list[str]:
        """The agents that the plans name."""
        return self.plan.agents

    def keys_of(self, agent: str) -> Keys:
        """What an agent was asked for."""
        rows, keys = self.plan.rows_of(agent), self.plan.keys()
        return Keys(keys.task[rows], keys.rollout[rows])


def _failures(path: Path) -> list[tuple[RolloutKey, str]]:
    found = []
    for line in read_lines(path) if path.is_file() else ():
        try:
            record = decode(line.text)
        except ValueError:  # torn; the next run sets it aside
            continue
        if key := key_in(record):
            found.append((key, str(record.get(NG_FAILURE_CLASS_KEY))))
    return found
