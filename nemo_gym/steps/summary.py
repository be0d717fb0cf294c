"""Adds up where the time of a run went, in one pass over its steps; ``bottleneck`` interprets the numbers.

All time is counted exactly once: a step's own time excludes the calls made inside it, and waiting is separate from
working. The time between the calls of a rollout is the agent's own. Start times come from the wall clock of the machine
that recorded them, so figures derived from them (how many ran at once) are only as good as that clock; durations are
not affected.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from nemo_gym.steps.record import COMPLETED, RolloutSteps, Step

_ENOUGH: Final = 12  # calls under load, the minimum for comparing their duration with that of calls without load
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Spread:
    """The distribution of some values."""

    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    most: float = 0.0
    least: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float] | Floats) -> "Spread":
        """The spread of some values; all zeros if there are none."""
        if not len(values):
            return cls()
        found = np.percentile(np.asarray(values, dtype=np.float64), (50, 95, 99, 100, 0))
        return cls(*(float(value) for value in found))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """The calls of one kind: to one server, or of one tool."""

    kind: str
    server: str = ""
    tool: str = ""
    count: int = 0
    failed: int = 0
    own_s: float = 0.0  # excluding waiting and the calls made inside
    waited: dict[str, float] = field(default_factory=dict)  # seconds by cause
    retries: dict[str, int] = field(default_factory=dict)  # number by status or error
    spread: Spread = Spread()
    tokens_out: int = 0
    peak: int = 0  # the most calls at once
    idle_s: float = 0.0  # median duration while few calls were running; 0: unknown
    busy_s: float = 0.0  # median duration while many calls were running
    alone: float = 0.0  # share of the calls' time in which no other call of this kind was running

    @property
    def name(self) -> str:
        """A name to display."""
        return self.tool or (self.kind if self.kind in ("seed", "verify") else f"{self.kind} {self.server}".strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSummary:
    """Where the time of a run went."""

    attempts: int = 0
    completed: int = 0
    failures: dict[str, int] = field(default_factory=dict)  # attempts by class
    failed_s: float = 0.0  # time of failed attempts
    seconds: float = 0.0  # time of all attempts
    other_s: float = 0.0  # the part of it between calls: the agent's own code
    wall_s: float = 0.0  # from the first start to the last end
    at_once: float = 0.0  # average number of concurrent attempts while more were waiting to start
    peak: int = 0
    spread: Spread = Spread()  # of the attempts
    steps: tuple[StepTimes, ...] = ()  # largest share first
    skipped: int = 0  # lines that could not be read

    @property
    def concurrency(self) -> float:
        """Average number of concurrent attempts, by Little's law."""
        return self.seconds / self.wall_s if self.wall_s else 0.0

    @property
    def waited_s(self) -> float:
        """Time spent waiting, for whatever reason."""
        return sum(sum(times.waited.values()) for times in self.steps)

    def shares(self) -> dict[str, float]:
        """Share of the time by activity; largest first, adding up to one."""
        parts = {"waiting": self.waited_s, "agent": self.other_s}
        for times in self.steps:
            name = times.tool or times.kind
            parts[name] = parts.get(name, 0.0) + times.own_s
        whole = sum(parts.values())
        ranked = sorted(parts.items(), key=lambda item: -item[1])
        return {name: part / whole for name, part in ranked if part > 0} if whole else {}


class _Keys(dict[tuple[str, str, str], int]):
    """Numbers the kinds of calls in the order in which they are first seen."""

    def __missing__(self, key: tuple[str, str, str]) -> int:
        self[key] = len(self)
        return self[key]


class _Totals:
    """Adds up steps a block at a time, as columns of numbers, which costs a tenth of a loop over objects."""

    def __init__(self) -> None:
        self.keys = _Keys()
        self.which: list[NDArray[np.int64]] = []
        self.starts: list[Floats] = []
        self.durations: list[Floats] = []
        self.own_s = np.zeros(0)
        self.failed = np.zeros(0)
        self.tokens_out = np.zeros(0)
        self.waited: dict[int, dict[str, float]] = {}
        self.retries: dict[int, Counter[str]] = {}
        self.other_s = 0.0

    def add(self, steps: list[Step], counts: list[int], began: Sequence[float], taken: Sequence[float]) -> None:
        """Add the steps of some attempts, given the number of steps, start and duration of each attempt."""
        rows = np.repeat(np.arange(len(counts)), counts)
        if not steps:
            self.other_s += float(np.sum(taken))
            return
        size = len(steps)
        which = np.fromiter(map(self.keys.__getitem__, map(_KEY, steps)), np.int64, size)
        begun, lengths, waits, answers, tokens = (np.fromiter(map(get, steps), np.float64, size) for get in _NUMBERS)
        parents = list(map(_PARENT, steps))
        # A parent is an index into the steps of its own attempt; ``place`` turns it into an index into the block.
        own, outermost = lengths - waits, lengths
        if parents.count(None) < len(parents):
            inner = np.array([parent is not None for parent in parents])
            firsts = np.cumsum(counts) - counts
            place = firsts[rows[inner]] + np.array([parent for parent in parents if parent is not None])
            np.subtract.at(own, place, lengths[inner])
            outermost = np.where(inner, 0.0, lengths)
        covered = np.bincount(rows, outermost, minlength=len(counts))
        self.other_s += float(np.maximum(0.0, np.array(taken) - covered).sum())
        kinds, failed = len(self.keys), (answers >= 400) | (answers == 0)
        self.own_s = _added(self.own_s, np.bincount(which, np.maximum(0.0, own), minlength=kinds))
        self.failed = _added(self.failed, np.bincount(which, failed.astype(np.float64), minlength=kinds))
        self.tokens_out = _added(self.tokens_out, np.bincount(which, tokens, minlength=kinds))
        for place_ in np.flatnonzero(waits):
            self._wait(int(which[place_]), steps[place_])
        self.which.append(which)
        self.starts.append(np.array(began)[rows] + begun)
        self.durations.append(lengths)

    def _wait(self, which: int, step: Step) -> None:
        causes = self.waited.setdefault(which, {})
        cause = step.waited_for or "call"
        causes[cause] = causes.get(cause, 0.0) + min(step.waited, step.duration)
        self.retries.setdefault(which, Counter()).update(retry.failed for retry in step.retries)

    def times(self, *, by_server: bool = False) -> tuple[StepTimes, ...]:
        """The times of each kind of call, or of all calls to each server; the largest share first."""
        if not self.which:
            return ()
        which = np.concatenate(self.which)
        starts: Floats = np.concatenate(self.starts)
        durations: Floats = np.concatenate(self.durations)
        groups: dict[tuple[str, str, str], list[int]] = {}
        for key, number in self.keys.items():
            groups.setdefault(("", key[1], "") if by_server else key, []).append(number)
        group_of = np.zeros(len(self.keys), np.int64)
        for group, numbers in enumerate(groups.values()):
            group_of[numbers] = group
        grouped = group_of[which]
        order = np.argsort(grouped, kind="stable")
        places = np.split(order, np.cumsum(np.bincount(grouped))[:-1])
        found = [
            self._times(key, numbers, starts[mine], durations[mine])
            for (key, numbers), mine in zip(groups.items(), places, strict=True)
        ]
        return tuple(sorted(found, key=lambda times: times.own_s + sum(times.waited.values()), reverse=True))

    def _times(self, key: tuple[str, str, str], numbers: list[int], starts: Floats, durations: Floats) -> StepTimes:
        waited: dict[str, float] = {}
        retries: Counter[str] = Counter()
        for number in numbers:
            retries.update(self.retries.get(number, {}))
            for cause, seconds in self.waited.get(number, {}).items():
                waited[cause] = waited.get(cause, 0.0) + seconds
        return StepTimes(
            kind=key[0],
            server=key[1],
            tool=key[2],
            count=len(starts),
            failed=int(self.failed[numbers].sum()),
            own_s=float(self.own_s[numbers].sum()),
            waited=waited,
            retries=dict(retries),
            spread=Spread.of(durations),
            tokens_out=int(self.tokens_out[numbers].sum()),
            **_pressure(starts, durations),
        )


_KEY: Final = attrgetter("kind", "server", "tool")
_NUMBERS: Final = tuple(map(attrgetter, ("start", "duration", "waited", "status", "tokens_out")))
_PARENT: Final = attrgetter("parent")
_BLOCK: Final = 2_000  # steps


def _added(before: Floats, more: NDArray[Any]) -> Floats:
    """The sum of two columns; the first may be shorter, because new kinds of calls appear during a run."""
    longer: Floats = np.pad(before, (0, len(more) - len(before))) + more
    return longer


class TimeTotals:
    """Adds up the steps of a run, one attempt after the other, keeping a few numbers for each step."""

    def __init__(self) -> None:
        self._totals = _Totals()
        self._starts, self._durations = array("d"), array("d")
        self._failures: Counter[str] = Counter()
        self._failed_s = 0.0
        self._steps: list[Step] = []  # waiting to be added as a block
        self._counts: list[int] = []

    def add(self, record: RolloutSteps) -> None:
        """Add one attempt."""
        self._starts.append(record.started_at)
        self._durations.append(record.duration)
        if record.outcome != COMPLETED:
            self._failures[record.outcome] += 1
            self._failed_s += record.duration
        self._steps += record.steps
        self._counts.append(len(record.steps))
        if len(self._steps) >= _BLOCK:
            self._add_block()

    def _add_block(self) -> None:
        if self._counts:
            last = -len(self._counts)
            self._totals.add(self._steps, self._counts, self._starts[last:], self._durations[last:])
            self._steps, self._counts = [], []

    def summary(self, *, skipped: int = 0) -> TimeSummary:
        """The summary of the attempts added so far."""
        self._add_block()
        begun, taken = np.frombuffer(self._starts), np.frombuffer(self._durations)
        return TimeSummary(
            attempts=len(begun),
            completed=len(begun) - self._failures.total(),
            failures=dict(self._failures),
            failed_s=self._failed_s,
            seconds=float(taken.sum()),
            other_s=self._totals.other_s,
            spread=Spread.of(taken),
            steps=self._totals.times(),
            skipped=skipped,
            **_at_once(begun, taken),
        )

    def servers(self) -> tuple[StepTimes, ...]:
        """The times of all calls to each server, regardless of their kind; the largest share first."""
        self._add_block()
        return self._totals.times(by_server=True)


def summarise(records: Iterable[RolloutSteps]) -> TimeSummary:
    """Add up the steps of a run."""
    totals = TimeTotals()
    for record in records:
        totals.add(record)
    return totals.summary(skipped=getattr(records, "skipped", 0))


# ---- how many at once ------------------------------------------------------------------------------------------------
def _pressure(starts: Floats, durations: Floats) -> dict[str, Any]:
    """Whether calls take longer when more of them run at once, and whether they overlap at all."""
    order = np.argsort(starts, kind="stable")
    begun, taken = starts[order], durations[order]
    ends = np.sort(begun + taken)
    before = np.arange(len(begun)) - np.searchsorted(ends, begun, side="right")  # still running at each start
    peak = int(before.max()) + 1
    facts: dict[str, Any] = {"peak": peak, "alone": _alone(begun, begun + taken)}
    # Calls in between are left out, so that the two medians differ clearly if load matters at all.
    few, many = before < peak / 4, before >= peak / 2
    if peak >= 4 and few.sum() >= 2 and many.sum() >= _ENOUGH:
        facts["idle_s"], facts["busy_s"] = float(np.median(taken[few])), float(np.median(taken[many]))
    return facts


def _alone(begun: Floats, ends: Floats) -> float:
    """Share of the calls' time in which exactly one of them runs; the calls are sorted by their start."""
    whole = float((ends - begun).sum())
    if not whole:
        return 0.0
    # A sweep over all starts and ends: the level is the number of calls that are running after each of them.
    moments = np.concatenate((begun, ends))
    order = np.argsort(moments, kind="stable")
    level = np.cumsum(np.where(order < len(begun), 1, -1))
    lengths = np.diff(moments[order])
    return float(lengths[level[:-1] == 1].sum()) / whole


def _at_once(starts: Floats, durations: Floats) -> dict[str, Any]:
    """How many attempts ran at once: the peak, and the average while more were waiting to start."""
    if not len(starts):
        return {}
    begun, ends = np.sort(starts), np.sort(starts + durations)
    level = np.arange(1, len(begun) + 1) - np.searchsorted(ends, begun, side="right")
    peak = int(level.max())
    wall_s = float(ends[-1] - begun[0])
    mean = float(durations.sum()) / wall_s if wall_s else 0.0
    first, last = begun[min(peak, len(begun)) - 1], begun[-1]  # excludes the initial ramp-up and the final drain
    inside = np.clip(starts + durations, first, last) - np.clip(starts, first, last)
    full = float(inside.sum() / (last - first)) if last > first else mean
    return {"wall_s": wall_s, "at_once": full, "peak": peak}
