"""Decides what to do about causes outside the rollouts: an endpoint that is down, a wrong key, a rate limit. Pure.

After one such failure the rollout is put off and tried again while the others continue. Several in a row, with nothing
getting through in between, are an outage: the run pauses, and now and then a single rollout probes whether the outage
is over. After ``patience_s`` seconds the run ends. None of this costs a rollout one of its attempts; what the run did
not get to stays owed.

Patience is for what has worked before. An endpoint that never answered is most likely not where it is looked for, so
the run ends after ``UNANSWERED_S``. A key that is refused, or an account without credit, will be refused again: the run
ends without waiting. Servers that crash are the subject of ``suspects``.
"""

import logging
from dataclasses import dataclass, field
from typing import Final

from nemo_gym.rollouts.store.outcome import Failed, Failure, Outcome
from nemo_gym.rollouts.suspects import CrashWatch
from nemo_gym.schemas.rows import FailureClass, RolloutKey

logger = logging.getLogger(__name__)

DEFAULT_PATIENCE_S: Final = 600.0
UNANSWERED_S: Final = 15.0  # enough for an endpoint that is just starting
STREAK: Final = 5  # failures in a row that make an outage,
DIFFERENT: Final = 3  # if that many rollouts are among them: one that always fails is not an outage
FIRST_PROBE_S: Final = 1.0
LONGEST_PROBE_S: Final = 15.0
PROBE_GROWTH: Final = 1.5
# They don't show that something outside is down: one rollout may just be slow, and a server or worker that dies takes
# all of its rollouts with it.
INCONCLUSIVE: Final = frozenset({FailureClass.TIMEOUT, FailureClass.SERVER_CRASHED, FailureClass.WORKER_DIED})
HOPELESS: Final = frozenset({FailureClass.AUTH, FailureClass.QUOTA})  # waiting does not help, only a person does
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
    unanswered_s: float = UNANSWERED_S
    reason: str = ""  # of the current outage, or of the one that ended the run
    blocked: str = ""  # why nothing can get through before a person changes something; empty if waiting may help
    crashes: CrashWatch = field(default_factory=CrashWatch)
    _streak: int = 0
    _hit: set[RolloutKey] = field(default_factory=set)  # by the failures of the streak
    _refused: set[RolloutKey] = field(default_factory=set)  # in a row, for a reason that will not pass
    _first_failure: float = 0.0
    _is_on: bool = False
    _probing: bool = False
    _next_probe: float = 0.0
    _delay: float = FIRST_PROBE_S
    _troubled: dict[RolloutKey, _Troubled] = field(default_factory=dict)
    _answered: set[str] = field(default_factory=set)  # agents whose endpoints have answered in this run
    _unanswered: dict[str, float] = field(default_factory=dict)  # agents whose endpoints have not, and since when

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
        return len(self._refused) >= DIFFERENT or (self._is_on and now >= self._end) or self.crashes.is_over

    def next_change(self, now: float) -> float | None:
        """When to ask again although nothing has ended."""
        if not self._is_on:
            return None
        end = self._end
        return end if self._probing or now >= self._next_probe else min(end, self._next_probe)

    def notice(self, now: float) -> str:
        """What people who watch a paused run should know; empty if it is not paused."""
        left = max(0.0, self._end - now)
        return f"paused, gives up in {left:.0f} s, Ctrl-C loses nothing" if self._is_on else ""

    def why_it_ended(self) -> str:
        """A sentence about an outage that ended the run."""
        if self.crashes.is_over:
            return self.crashes.why_it_ended()
        return self.blocked or f"nothing got through for {self.patience_s:g} s (patience_s): {self.reason}"

    def observe(self, outcome: Outcome, now: float) -> None:
        """Learn from an outcome."""
        if isinstance(outcome, Failed) and outcome.failure.kind in INCONCLUSIVE:
            self._probing = False  # if it was the probe, another one takes its place
        elif isinstance(outcome, Failed) and outcome.failure.kind in HOPELESS:
            self._refused.add(outcome.planned.key)
            self._probing = False
            self.blocked = self.reason = f"{outcome.failure.kind}: {outcome.failure.message}"
        elif isinstance(outcome, Failed) and outcome.failure.outside:
            self._hit.add(outcome.planned.key)
            self._note_endpoint(outcome, now)
            self._on_failure(outcome.failure, now)
        else:
            self._answered.add(outcome.planned.agent)
            self._on_success(now)
        if not isinstance(outcome, Failed):
            self._troubled.pop(outcome.planned.key, None)
            self.crashes.note_completed(outcome.planned.key)

    def tries(self, outcome: Failed, now: float) -> int | None:
        """How often the rollout has failed for outside causes; None if it is left for the next run."""
        if outcome.failure.kind in HOPELESS:
            return None
        trouble = self._troubled.setdefault(outcome.planned.key, _Troubled(now))
        trouble.tries += not self._is_on  # during an outage every rollout fails, which says nothing about this one
        unanswered_since = self._unanswered.get(outcome.planned.agent, now)
        is_late = now - trouble.since >= self.patience_s or now - unanswered_since >= self._unanswered_s
        if trouble.tries >= MOST_TRIES or is_late:
            del self._troubled[outcome.planned.key]
            return None
        return max(trouble.tries, 1)

    @property
    def _unanswered_s(self) -> float:
        return min(self.unanswered_s, self.patience_s)

    @property
    def _end(self) -> float:
        """When the outage has lasted long enough."""
        if self.blocked and self._unanswered:
            return min(self._unanswered.values()) + self._unanswered_s
        return self._first_failure + self.patience_s

    def _note_endpoint(self, outcome: Failed, now: float) -> None:
        """Note whether the endpoint of an agent has ever answered; ``blocked`` is the reason if none of them has."""
        agent, failure = outcome.planned.agent, outcome.failure
        if failure.kind != FailureClass.UNREACHABLE or agent in self._answered:
            self._answered.add(agent)
            self._unanswered.pop(agent, None)
            self.blocked = ""
            return
        self._unanswered.setdefault(agent, now - outcome.seconds)
        if self.blocked or not self._streak:
            self.blocked = f"the endpoint has not answered a single request: {failure.message}"

    def _on_failure(self, failure: Failure, now: float) -> None:
        if not self._streak:
            self._first_failure = now
        self._streak += 1
        self._refused.clear()
        if self._is_on:
            # Only the probe's failure counts; others were started before the pause and end late.
            self._delay = min(PROBE_GROWTH * self._delay, LONGEST_PROBE_S) if self._probing else self._delay
        elif self._streak >= STREAK and len(self._hit) >= DIFFERENT:
            self._is_on, self._delay, self.reason = True, FIRST_PROBE_S, f"{failure.kind}: {failure.message}"
            logger.warning(
                "Nothing gets through (%s). The run is paused and tries again for %s. Ctrl-C loses nothing: "
                "+resume_from_cache=true continues",
                self.reason,
                f"{self._unanswered_s:g} s, because the endpoint has never answered"
                if self.blocked
                else f"up to {self.patience_s:g} s (+patience_s=…)",
            )
        self._probing = False
        self._next_probe = now + max(self._delay, failure.retry_after_s or 0.0)

    def _on_success(self, now: float) -> None:
        if self._is_on:
            logger.warning("The run continues after a pause of %.0f s", now - self._first_failure)
            self._troubled.clear()
        self._streak, self._is_on, self._probing, self.reason, self.blocked = 0, False, False, "", ""
        self._hit.clear()
        self._refused.clear()
