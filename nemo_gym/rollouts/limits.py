"""How many rollouts may run at once: what dispatch asks for, and the answer that never changes."""

from dataclasses import dataclass
from typing import Protocol

from nemo_gym.rollouts.outcome import Outcome


class Limit(Protocol):
    """Decides how many may run. Told of every outcome, asked before every start."""

    def allowed(self, now: float) -> int:
        """How many may be in flight at this time."""
        ...

    def observe(self, outcome: Outcome, *, in_flight: int, now: float) -> None:
        """Learn from an outcome; ``in_flight`` is how many were running until it came."""
        ...

    def next_change(self, now: float) -> float | None:
        """When to ask again although nothing has ended; None if only outcomes change the answer."""
        ...


@dataclass(frozen=True, slots=True)
class FixedLimit:
    """The same number at all times."""

    number: int

    def allowed(self, now: float) -> int:  # noqa: ARG002 - the protocol's parameter
        """The number."""
        return self.number

    def observe(self, outcome: Outcome, *, in_flight: int, now: float) -> None:
        """There is nothing to learn."""

    def next_change(self, now: float) -> float | None:  # noqa: ARG002 - the protocol's parameter
        """Never."""
        return None
