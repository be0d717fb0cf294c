"""One rollout that is owed, on its way to an agent."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from nemo_gym.rollouts.keyed import key_in
from nemo_gym.rollouts.plan import Row, agent_name
from nemo_gym.schemas.rows import RolloutKey


@dataclass(frozen=True, slots=True)
class Planned:
    """A rollout to run: who takes it, what is sent, and which attempt it is."""

    key: RolloutKey
    agent: str
    row: Row
    attempt: int = 1  # counted over all runs of this output
    last_attempt: int = 1  # after that one it is given up
    text: bytes | None = field(default=None, compare=False, repr=False)  # the row as JSON, if it is at hand

    @classmethod
    def of(cls, row: Row, *, attempt: int = 1, last_attempt: int = 1) -> Self:
        """The rollout that a row of the plan describes."""
        key, agent = key_in(row), agent_name(row)
        if key is None or not agent:
            raise ValueError(f"not a row of a plan: {summary_of(row)}")
        return cls(key, agent, row, attempt, last_attempt)

    @property
    def may_retry(self) -> bool:
        """Whether there is an attempt left after this one."""
        return self.attempt < self.last_attempt

    def again(self) -> Self:
        """The next attempt."""
        return replace(self, attempt=self.attempt + 1)


def summary_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """What may be logged of a row: which rollout it is and who takes it, never what is in it."""
    ref = row.get("agent_ref")
    named = {
        "_ng_task_index": row.get("_ng_task_index"),
        "_ng_rollout_index": row.get("_ng_rollout_index"),
        "agent_name": ref.get("name") if isinstance(ref, dict) else None,
    }
    return {name: value for name, value in named.items() if value is not None}
