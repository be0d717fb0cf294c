"""Remembers what a run left in no file, or only among the failures, for callers who want all results in their hands."""

from collections.abc import Iterable
from typing import Any

from nemo_gym.rollouts.jsonl import decode
from nemo_gym.rollouts.outcome import Completed, Outcome
from nemo_gym.schemas.rows import RolloutKey


class Unsaved:
    """The last word on every rollout that did not complete."""

    def __init__(self) -> None:
        self._lines: dict[RolloutKey, bytes] = {}

    def __call__(self, outcomes: Iterable[Outcome]) -> None:
        """Hear of outcomes."""
        for outcome in outcomes:
            if isinstance(outcome, Completed):
                self._lines.pop(outcome.planned.key, None)
            else:
                self._lines[outcome.planned.key] = outcome.line

    def records(self) -> list[dict[str, Any]]:
        """Parsed."""
        return [decode(line) for line in self._lines.values()]
