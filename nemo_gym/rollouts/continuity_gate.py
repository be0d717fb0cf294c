"""Checks whether the token ids of every finished rollout, if it has any, form one growing sequence.

``warn`` counts those that break and reports them in one line at the end; ``fail`` makes each a failure, which keeps it
out of the rollouts that a trainer reads. A rollout without token ids costs one search for their name.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from typing import Final

from nemo_gym.metrics.continuity import Continuity, check_continuity
from nemo_gym.metrics.fields import output_of
from nemo_gym.rollouts.classify import failed
from nemo_gym.rollouts.dispatch import Attempt
from nemo_gym.rollouts.outcome import Completed, Failure, Outcome
from nemo_gym.rollouts.plan import PlannedRollout
from nemo_gym.schemas.rows import FailureClass

logger = logging.getLogger(__name__)

NAME: Final = b'"generation_token_ids"'


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
        if not isinstance(outcome, Completed) or NAME not in outcome.line:
            return outcome
        found = check_continuity(output_of(outcome.record) or [])
        self._checked += found.calls > 0
        if found.ok:
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
