"""Waits out what lies outside the rollouts: an endpoint that is down, a server that went away, a rate limit. Pure.

After one such failure the rollout is put off and tried again, while the others go on. Several in a row, with nothing
getting through in between, are an outage: the run pauses, and now and then a single rollout probes whether the outage
is over. None of this costs a rollout one of its attempts. After ``patience_s`` seconds the run ends; what it did not
get to stays owed.
"""

import logging
from dataclasses import dataclass, field
from typing import Final

from nemo_gym.rollouts.outcome import Failed, Failure, Outcome
from nemo_gym.schemas.rows import FailureClass, RolloutKey

logger = logging.getLogger(__name__)

DEFAULT_PATIENCE_S: Final = 600.0
STREAK: Final = 5  # failures in a row that make an outage,
DIFFERENT: Final = 3  # if that many rollouts are among them: one that always fails is not an outage
FIRST_PROBE_S: Final = 1.0
LONGEST_PROBE_S: Final = 15.0
PROBE_GROWTH: Final = 1.5
# A slow rollout looks like a slow endpoint, and one dying worker takes all its rollouts with it.
SAY_NOTHING: Final = frozenset({FailureClass.TIMEOUT, FailureClass.WORKER_DIED})
MOST_TRIES: Final = 8  # failures of one rollout while others get through, after which it is left for the next run


@dataclass(slots=True)
class _Troubled:
    """A rollout that was hit by outside causes."""

    since: float
    tries: int = 0


@dataclass(slots=True)
class OutageWatch:
    """Decides from the outcomes when to pause, when to probe, and when to give up waiting."""

    patience_s: float = DEFAULT_PATIENCE_S
    reason: str = ""  # of the current outage, or of the one that ended the run
    _streak: int = 0
    _hit: set[RolloutKey] = field(default_factory=set)  # by the failures of the streak
    _first_failure: float = 0.0
    _is_on: bool = False
    _probing: bool = False
    _next_probe: float = 0.0
    _delay: float = FIRST_PROBE_S
    _troubled: dict[RolloutKey, _Troubled] = field(default_factory=dict)

    @property
    def is_on(self) -> bool:
        """Whether the run is paused."""
        return self._is_on

    def room(self, now: float) -> int | None:
        """How many may be started now; None for no limit."""
        if not self._is_on:
            return None
        return 1 if not self._probing and now >= self._next_probe else 0

    def started(self) -> None:
        """A rollout was started; during an outage that is the probe."""
        self._probing = self._is_on

    def is_over(self, now: float) -> bool:
        """Whether the run has waited long enough."""
        return self._is_on and now - self._first_failure >= self.patience_s

    def next_change(self, now: float) -> float | None:
        """When to ask again although nothing has ended."""
        if not self._is_on:
            return None
        end = self._first_failure + self.patience_s
        return end if self._probing or now >= self._next_probe else min(end, self._next_probe)

    def observe(self, outcome: Outcome, now: float) -> None:
        """Learn from an outcome."""
        if isinstance(outcome, Failed) and outcome.failure.kind in SAY_NOTHING:
            self._probing = False  # if it was the probe, another one takes its place
        elif isinstance(outcome, Failed) and outcome.failure.outside:
            self._hit.add(outcome.planned.key)
            self._on_failure(outcome.failure, now)
        else:
            self._on_success(now)
        if not isinstance(outcome, Failed):
            self._troubled.pop(outcome.planned.key, None)

    def tries(self, outcome: Failed, now: float) -> int | None:
        """How often the rollout has failed for outside causes; None if it is left for the next run."""
        trouble = self._troubled.setdefault(outcome.planned.key, _Troubled(now))
        trouble.tries += not self._is_on  # during an outage every rollout fails, which says nothing about this one
        if trouble.tries >= MOST_TRIES or now - trouble.since >= self.patience_s:
            del self._troubled[outcome.planned.key]
            return None
        return max(trouble.tries, 1)

    def _on_failure(self, failure: Failure, now: float) -> None:
        if not self._streak:
            self._first_failure = now
        self._streak += 1
        if self._is_on:
            # Only the probe's failure counts; others were started before the pause and end late.
            self._delay = min(PROBE_GROWTH * self._delay, LONGEST_PROBE_S) if self._probing else self._delay
        elif self._streak >= STREAK and len(self._hit) >= DIFFERENT:
            self._is_on, self._delay, self.reason = True, FIRST_PROBE_S, f"{failure.kind}: {failure.message}"
            logger.warning(
                "Nothing gets through (%s). The run is paused and tries again for up to %g s (+patience_s=…)",
                self.reason,
                self.patience_s,
            )
        self._probing = False
        self._next_probe = now + max(self._delay, failure.retry_after_s or 0.0)

    def _on_success(self, now: float) -> None:
        if self._is_on:
            logger.warning("The run goes on after a pause of %.0f s", now - self._first_failure)
            self._troubled.clear()
        self._streak, self._is_on, self._probing, self.reason = 0, False, False, ""
        self._hit.clear()
