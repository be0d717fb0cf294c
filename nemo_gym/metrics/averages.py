"""Plain averages of every numeric field per agent, as a quick look at a rollout file.

Other than in the aggregate metrics, a rollout without the field counts as 0, so the average is over all rollouts.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nemo_gym.metrics.fields import agent_of, as_float, numeric_fields

NO_AGENT = "(no agent)"


@dataclass(slots=True)
class AgentAverages:
    """The rollouts of one agent."""

    count: int = 0
    sums: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def averages(self) -> dict[str, float]:
        """Sum by number of rollouts, for every field."""
        return {name: total / self.count for name, total in self.sums.items()}


def average_fields(records: Iterable[Mapping[str, Any]]) -> dict[str, AgentAverages]:
    """Averages by agent, agents in the order in which they appear. Fields whose name starts with ``_`` do not count."""
    agents: dict[str, AgentAverages] = {}
    for record in records:
        agent = agents.setdefault(agent_of(record) or NO_AGENT, AgentAverages())
        agent.count += 1
        for name, value in numeric_fields(record).items():
            number = as_float(value)
            if not name.startswith("_"):
                agent.sums[name] += 0.0 if math.isnan(number) else number
    return agents
