"""Gates for training: what a completed rollout must satisfy before it is handed out with a reward.

**Continuity.** The token ids of a rollout, if it has any, must form one growing sequence. ``warn`` counts those that
break and reports them in one line at the end; ``fail`` makes each a failure, which keeps it out of the rollouts that a
trainer reads. A rollout without token ids costs one search for their name.

**Freshness.** The weights that made a rollout must not be too old. A model server whose weights can change records with
every turn the version that made it. As the trainer updates the weights, rollouts that began earlier fall behind, and
training on them as if they were fresh is a silent mistake. A rollout that is too old is a failure of the class
``stale``: it is tried again with newer weights while attempts are left.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from nemo_gym.conversion.parts import POLICY_VERSION
from nemo_gym.metrics.continuity import Continuity, check_continuity
from nemo_gym.rollouts.classify import failed
from nemo_gym.rollouts.dispatch import Attempt
from nemo_gym.rollouts.store.outcome import Completed, Failed, Failure, Outcome, PlannedRollout
from nemo_gym.schemas.record import Record
from nemo_gym.schemas.rows import FailureClass

logger = logging.getLogger(__name__)

# ---- continuity ------------------------------------------------------------------------------------------------------
_TOKEN_IDS: Final = b'"generation_token_ids"'


class TokenContinuity(StrEnum):
    """What to do about rollouts whose token ids are not one sequence."""

    OFF = "off"
    WARN = "warn"
    FAIL = "fail"


class ContinuityGate:
    """Counts the rollouts whose token ids are not one sequence, and keeps examples."""

    def __init__(self, mode: TokenContinuity) -> None:
        self._mode = mode
        self._checked = 0
        self._broken = 0
        self._reasons: Counter[str] = Counter()
        self._example = ""

    def judge(self, outcome: Outcome) -> Outcome:
        """The outcome unchanged, or the failure that it becomes."""
        if not isinstance(outcome, Completed) or _TOKEN_IDS not in outcome.line:
            return outcome
        record = Record.parse(outcome.line)
        found = check_continuity(record.items)
        self._checked += found.calls > 0
        if found.ok or record.traces:  # an agent that changed its history has a sequence for each trace
            return outcome
        self._note(outcome, found)
        if self._mode is TokenContinuity.WARN:
            return outcome
        # Not transient: what broke the sequence is most likely still there, and every attempt costs as much.
        failure = Failure(kind=FailureClass.INVALID_RESPONSE, message=_message(found))
        return replace(failed(outcome.planned, failure, outcome.seconds, outcome.usage), steps=outcome.steps)

    def report(self) -> str:
        """One line about the rollouts that break; empty if none does."""
        if not self._broken:
            return ""
        reasons = ", ".join(f"{count} {reason}" for reason, count in self._reasons.most_common())
        return (
            f"{self._broken} of {self._checked} rollouts with token ids are not one sequence of tokens ({reasons}), "
            f"for example {self._example}"
        )

    def _note(self, outcome: Completed, found: Continuity) -> None:
        self._broken += 1
        self._reasons.update(one.reason for one in found.breaks)
        key = outcome.planned.key
        self._example = self._example or f"task {key.task} rollout {key.rollout}, {found.breaks[0].message}"


def _message(found: Continuity) -> str:
    more = f" (and {len(found.breaks) - 1} more)" if len(found.breaks) > 1 else ""
    return f"the token ids are not one sequence: {found.breaks[0].message}{more}"


@contextmanager
def continuity_gate(attempt: Attempt, mode: TokenContinuity) -> Iterator[Attempt]:
    """Wrap an attempt so that its outcomes are checked, and report at the end what was found."""
    if mode is TokenContinuity.OFF:
        yield attempt
        return
    gate = ContinuityGate(mode)

    async def gated(planned: PlannedRollout) -> Outcome:
        return gate.judge(await attempt(planned))

    try:
        yield gated
    finally:
        if report := gate.report():
            logger.warning("%s", report)


# ---- freshness -------------------------------------------------------------------------------------------------------
_VERSION: Final = POLICY_VERSION.encode()


def policy_versions(record: Mapping[str, Any]) -> list[int]:
    """The versions of the weights that made the turns of a rollout, in order; empty if it does not say."""
    found = (item.get(POLICY_VERSION) for item in Record(record).items)
    return [version for version in found if isinstance(version, int)]


@dataclass(frozen=True, slots=True)
class Freshness:
    """At most ``max_staleness`` versions behind ``current``, which the trainer counts up with every update."""

    current: Callable[[], int]
    max_staleness: int

    def judge(self, outcome: Outcome) -> Outcome:
        """The outcome unchanged, or a failure if its weights are too old by now."""
        if not isinstance(outcome, Completed) or _VERSION not in outcome.line:
            return outcome
        versions, current = policy_versions(outcome.record), self.current()
        if not versions or current - min(versions) <= self.max_staleness:
            return outcome
        message = (
            f"made with version {min(versions)} of the weights, which are at {current} now: "
            f"more than {self.max_staleness} behind"
        )
        failure = Failure(kind=FailureClass.STALE, message=message, transient=True)
        return replace(failed(outcome.planned, failure, outcome.seconds), steps=outcome.steps)

    def judge_group(self, group: Iterable[Outcome]) -> list[Outcome]:
        """The same for outcomes that waited for the rest of their group; they are not tried again."""
        judged = map(self.judge, group)
        return [replace(outcome, final=True) if isinstance(outcome, Failed) else outcome for outcome in judged]

    def gate(self, attempt: Attempt) -> Attempt:
        """Wrap an attempt so that its outcomes are judged as they arrive."""

        async def gated(planned: PlannedRollout) -> Outcome:
            return self.judge(await attempt(planned))

        return gated
