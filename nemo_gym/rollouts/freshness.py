"""How old the weights are that made a rollout, and what to do when they are too old.

A model server whose weights can change records with every turn the version that made it. As the trainer updates the
weights, rollouts that began earlier fall behind, and training on them as if they were fresh is a silent mistake. A
rollout that is too old is a failure of the class ``stale``: it is tried again with newer weights while attempts are
left, and never handed out with a reward.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from nemo_gym.conversion.parts import POLICY_VERSION
from nemo_gym.metrics.fields import output_of
from nemo_gym.rollouts.classify import failed
from nemo_gym.rollouts.dispatch import Attempt
from nemo_gym.rollouts.outcome import Completed, Failed, Failure, Outcome
from nemo_gym.rollouts.plan import PlannedRollout
from nemo_gym.schemas.rows import FailureClass

NAME: Final = POLICY_VERSION.encode()


def policy_versions(record: Mapping[str, Any]) -> list[int]:
    """The versions of the weights that made the turns of a rollout, in order; empty if it does not say."""
    items = output_of(record) or ()
    found = (item.get(POLICY_VERSION) for item in items if isinstance(item, Mapping))
    return [version for version in found if isinstance(version, int)]


@dataclass(frozen=True, slots=True)
class Freshness:
    """At most ``max_staleness`` versions behind ``current``, which the trainer counts up with every update."""

    current: Callable[[], int]
    max_staleness: int

    def judge(self, outcome: Outcome) -> Outcome:
        """The outcome unchanged, or a failure if its weights are too old by now."""
        if not isinstance(outcome, Completed) or NAME not in outcome.line:
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
