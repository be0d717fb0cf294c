"""Adds up where the time of a run went, in one pass over its steps. A few numbers are kept for each step."""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from nemo_gym.steps.rollout_steps import COMPLETED, RolloutSteps, Step
from nemo_gym.steps.summary import Floats, Spread, StepTimes, TimeSummary, attempts_at_once, pressure


class _CallKind(NamedTuple):
    """Calls that are counted together: of one kind, to one server or of one tool."""

    kind: str
    server: str
    tool: str


class _Calls:
    """The numbers of all calls of one kind."""

    def __init__(self) -> None:
        self.starts, self.durations, self.waits = array("d"), array("d"), array("d")
        self.own_s = 0.0
        self.failed = self.tokens_out = 0
        self.waited: dict[str, float] = {}
        self.retries: Counter[str] = Counter()

    def add(self, step: Step, started_at: float, own_s: float) -> None:
        """Add a call, given the time of the calls inside it as well."""
        waited = min(step.waited, step.duration)
        self.starts.append(started_at + step.start)
        self.durations.append(step.duration)
        self.waits.append(waited)
        self.own_s += max(0.0, own_s - waited)
        self.failed += step.status >= 400 or not step.status
        self.tokens_out += step.tokens_out
        if waited:
            cause = step.waited_for or "call"
            self.waited[cause] = self.waited.get(cause, 0.0) + waited
        if step.retries:
            self.retries.update(retry.failed for retry in step.retries)

    def join(self, other: "_Calls") -> None:
        """Add calls of another kind."""
        self.starts += other.starts
        self.durations += other.durations
        self.waits += other.waits
        self.own_s += other.own_s
        self.failed += other.failed
        self.tokens_out += other.tokens_out
        for cause, seconds in other.waited.items():
            self.waited[cause] = self.waited.get(cause, 0.0) + seconds
        self.retries.update(other.retries)

    def times(self, key: _CallKind) -> StepTimes:
        starts, durations, waits = (_floats(column) for column in (self.starts, self.durations, self.waits))
        return StepTimes(
            **key._asdict(),
            count=len(starts),
            failed=self.failed,
            own_s=self.own_s,
            waited=dict(self.waited),
            retries=dict(self.retries),
            spread=Spread.of(durations),
            tokens_out=self.tokens_out,
            # Waiting on our side says nothing about the server, and usually comes first.
            **pressure(starts + waits, durations - waits),
        )


def _floats(column: Sequence[float]) -> Floats:
    return np.array(column, np.float64)


class TimeTotals:
    """Adds up the steps of a run."""

    def __init__(self) -> None:
        self._calls: dict[_CallKind, _Calls] = {}
        self._began, self._taken = array("d"), array("d")
        self._other_s = 0.0
        self._failures: Counter[str] = Counter()
        self._failed_s = 0.0

    def add(self, attempt: RolloutSteps) -> None:
        steps = attempt.steps
        own = [step.duration for step in steps]
        between = attempt.duration
        for step in steps:
            if step.parent is None:
                between -= step.duration
            else:
                own[step.parent] -= step.duration
        for step, seconds in zip(steps, own, strict=True):
            key = _CallKind(step.kind, step.server, step.tool)
            calls = self._calls.get(key)
            if calls is None:
                calls = self._calls[key] = _Calls()
            calls.add(step, attempt.started_at, seconds)
        self._began.append(attempt.started_at)
        self._taken.append(attempt.duration)
        self._other_s += max(0.0, between)
        if attempt.outcome != COMPLETED:
            self._failures[attempt.outcome] += 1
            self._failed_s += attempt.duration

    def summary(self, *, skipped: int = 0) -> TimeSummary:
        """The summary of the attempts added so far."""
        begun, taken = _floats(self._began), _floats(self._taken)
        return TimeSummary(
            attempts=len(begun),
            completed=len(begun) - self._failures.total(),
            failures=dict(self._failures),
            failed_s=self._failed_s,
            seconds=float(taken.sum()),
            other_s=self._other_s,
            spread=Spread.of(taken),
            steps=_ranked(self._calls),
            skipped=skipped,
            **attempts_at_once(begun, taken),
        )

    def servers(self) -> tuple[StepTimes, ...]:
        """The times of all calls to each server, regardless of their kind; the largest share first."""
        servers: dict[_CallKind, _Calls] = {}
        for key, calls in self._calls.items():
            servers.setdefault(_CallKind("", key.server, ""), _Calls()).join(calls)
        return _ranked(servers)


def _ranked(groups: dict[_CallKind, _Calls]) -> tuple[StepTimes, ...]:
    found = [calls.times(key) for key, calls in groups.items()]
    return tuple(sorted(found, key=lambda times: times.own_s + sum(times.waited.values()), reverse=True))


def summarise(records: Iterable[RolloutSteps]) -> TimeSummary:
    """Add up the steps of a run."""
    totals = TimeTotals()
    for record in records:
        totals.add(record)
    return totals.summary(skipped=getattr(records, "skipped", 0))
