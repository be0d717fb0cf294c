"""Finds rollouts that crash the server they use, and notices servers that do not stay up. Pure.

Every rollout that was using a server when it crashed is owed again; one of them may be the cause. A rollout becomes a
suspect after two crashes in which one of its calls was under way, or after three in which it only had a session there.
Suspects run alone (``dispatch``), so a further crash is their own doing: it uses up one of their attempts. Their
neighbours are not affected.

Crashes in a row without a completed rollout in between mean that the server does not stay up: the run ends. Those that
a suspect caused alone do not count if others have completed since it was first hit: then the server is not to blame.
"""

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Final

from nemo_gym.rollouts.classify import failed
from nemo_gym.rollouts.store.outcome import Failed, Failure
from nemo_gym.schemas.rows import FailureClass, RolloutKey

CRASHES_IN_CALL: Final = 2  # that make a rollout a suspect
CRASHES_IN_SESSION: Final = 3
FRUITLESS_CRASHES: Final = 10  # in a row that end a run
BLOCKING_CRASHES: Final = 2  # in a row after which suspects run before everything else
_REMEMBERED: Final = 1000


@dataclass(slots=True)
class _Hit:
    """A rollout that crashes have hit."""

    completed_before: int  # rollouts, when it was hit first
    in_call: int = 0
    crashes: int = 0

    @property
    def is_suspect(self) -> bool:
        return self.in_call >= CRASHES_IN_CALL or self.crashes >= CRASHES_IN_SESSION


@dataclass(slots=True)
class CrashWatch:
    """Decides from the outcomes who runs alone, whose attempts a crash uses up, and when to give up."""

    fruitless: int = 0  # crashes in a row, without a completed rollout in between
    reason: str = ""  # of the last crash
    _completed: int = 0  # rollouts since the first crash
    _hits: dict[RolloutKey, _Hit] = field(default_factory=dict)
    _known: OrderedDict[str, None] = field(default_factory=OrderedDict)

    @property
    def is_over(self) -> bool:
        """Whether the servers do not stay up."""
        return self.fruitless >= FRUITLESS_CRASHES

    @property
    def is_blocking(self) -> bool:
        """Whether crashes keep others from completing, so that suspects have to run now."""
        return self.fruitless >= BLOCKING_CRASHES

    def why_it_ended(self) -> str:
        """A sentence about crashes that ended the run."""
        return f"{self.fruitless} crashes in a row without a completed rollout: {self.reason}"

    def is_suspect(self, key: RolloutKey) -> bool:
        """Whether a rollout has to run alone."""
        return key in self._hits and self._hits[key].is_suspect

    def note_completed(self, key: RolloutKey) -> None:
        """A rollout was completed."""
        if self._known:
            self._hits.pop(key, None)
            self._completed += 1
            self.fruitless = 0

    def judge(self, outcome: Failed) -> Failed:
        """Learn from an attempt that a crash ended; if the rollout ran alone, the failure becomes its own."""
        failure = outcome.failure
        hit = self._hits.setdefault(outcome.planned.key, _Hit(self._completed))
        ran_alone = hit.is_suspect
        hit.crashes += 1
        hit.in_call += failure.in_call
        self.reason = failure.message
        if failure.crash not in self._known:
            self._remember(failure.crash)
            self.fruitless += not (ran_alone and self._completed > hit.completed_before)
        if not ran_alone:
            return outcome
        text = f"it was at work in {hit.crashes} crashes, the last time alone: {failure.message}"
        own = Failure(kind=FailureClass.SERVER_CRASHED, message=text, transient=True)
        return replace(failed(outcome.planned, own, outcome.seconds, outcome.usage), steps=outcome.steps)

    def _remember(self, crash: str) -> None:
        self._known[crash] = None
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
