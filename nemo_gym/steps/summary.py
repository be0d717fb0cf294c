"""Where the time of a run went; ``totals`` adds it up, and ``bottleneck`` interprets the numbers.

All time is counted exactly once: a step's own time excludes the calls made inside it, and waiting is separate from
working. The time between the calls of a rollout is the agent's own. Start times come from the wall clock of the machine
that recorded them, so figures derived from them (how many ran at once) are only as good as that clock; durations are
not affected.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from nemo_gym.steps.facts import ProcessFacts, RunFacts

_ENOUGH: Final = 12  # calls under load, the minimum for comparing their duration with that of calls without load
_BREAK_S: Final = 60.0  # a run in which nothing ran for so long was interrupted, and resumed later
_MOST_GROUPS: Final = 200  # kinds of steps, or servers, that are shown
_MOST_CAUSES: Final = 10  # of retries
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


def call_name(kind: str, server: str, tool: str) -> str:
    """The name of a call: the tool, the server of a model, or else the kind of call."""
    return tool or (kind if kind in ("seed", "verify") else f"{kind} {server}".strip())


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
    idle_s: float = 0.0  # usual duration without waiting while few calls were running; 0: unknown
    busy_s: float = 0.0  # the same while many calls were running
    calm: int = 0  # calls during which few others were running, when they began and when they ended
    alone: float = 0.0  # share of the calls' time in which no other call of this kind was running

    @property
    def name(self) -> str:
        return call_name(self.kind, self.server, self.tool)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSummary:
    """Where the time of a run went."""

    attempts: int = 0
    completed: int = 0
    failures: dict[str, int] = field(default_factory=dict)  # attempts by class
    failed_s: float = 0.0  # time of failed attempts
    seconds: float = 0.0  # time of all attempts
    other_s: float = 0.0  # the part of it between calls: the agent's own code
    wall_s: float = 0.0  # from the first start to the last end, without breaks
    break_s: float = 0.0  # how long the run was interrupted: nothing ran
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


# ---- what is shown ---------------------------------------------------------------------------------------------------
def shown_times(
    summary: TimeSummary, facts: RunFacts | None = None, servers: Sequence[StepTimes] = ()
) -> dict[str, Any]:
    """The numbers of a run as plain data, for every screen and page that shows them."""
    return {
        "attempts": summary.attempts,
        "completed": summary.completed,
        "failures": summary.failures,
        "failed_s": summary.failed_s,
        "seconds": summary.seconds,
        "waited_s": summary.waited_s,
        "waiting": summary.shares().get("waiting", 0.0),
        "wall_s": summary.wall_s,
        "break_s": summary.break_s,
        "at_once": summary.at_once,
        "peak": summary.peak,
        "rate": summary.attempts / summary.wall_s if summary.wall_s else None,
        "limit": facts.limit if facts is not None else 0,
        "usage": list(_usage(facts)) if facts is not None else [],
        "blocked_s": facts.blocked_s if facts is not None else None,
        "blocked": facts.blocked_s / facts.wall_s if facts is not None and facts.wall_s else None,
        "spread": asdict(summary.spread),
        "shares": _shown_shares(summary),
        "steps": [_shown_step(times) for times in summary.steps[:_MOST_GROUPS]],
        "servers": [_shown_step(times) for times in servers[:_MOST_GROUPS]],
    }


def _usage(facts: RunFacts) -> Iterator[str]:
    if facts.processes:
        yield _used(facts, facts.processes, f" of {facts.cores} processors")
    if facts.servers:
        yield f"ng_run: {_used(facts, facts.servers, ' processors')}"


def _used(facts: RunFacts, processes: Sequence[ProcessFacts], of: str) -> str:
    number = "1 process" if len(processes) == 1 else f"{len(processes)} processes"
    cpu = facts.share(sum(process.cpu_s for process in processes))
    busiest = facts.share(max(process.ready_s for process in processes))
    return f"{cpu:.2f}{of} in use by {number}; the busiest had something to compute {min(busiest, 1):.0%} of the time"


def _shown_shares(summary: TimeSummary) -> list[dict[str, Any]]:
    kinds = {times.tool or times.kind: times.kind for times in summary.steps}
    own = {"waiting": "waiting", "agent": "agent"}
    return [
        {"name": name, "kind": own.get(name) or kinds.get(name, "call"), "share": share}
        for name, share in list(summary.shares().items())[:_MOST_GROUPS]
    ]


def _shown_step(times: StepTimes) -> dict[str, Any]:
    return {
        "kind": times.kind,
        "server": times.server,
        "tool": times.tool,
        "count": times.count,
        "failed": times.failed,
        "retries": dict(sorted(times.retries.items(), key=lambda item: -item[1])[:_MOST_CAUSES]),
        "own_s": times.own_s,
        "waited_s": sum(times.waited.values()),
        "waited": times.waited,
        "tokens_out": times.tokens_out,
        "tokens_per_s": times.tokens_out / times.own_s if times.own_s and times.tokens_out else None,
        "peak": times.peak,
        **asdict(times.spread),
    }


# ---- how many at once ------------------------------------------------------------------------------------------------
def pressure(starts: Floats, durations: Floats) -> dict[str, Any]:
    """Whether calls take longer when more of them run at once, and whether they overlap at all."""
    order = np.argsort(starts, kind="stable")
    begun, taken = starts[order], durations[order]
    ends = np.sort(begun + taken)
    over = np.searchsorted(ends, begun, side="right")  # calls that had ended at each start
    before = np.arange(len(begun)) - over  # those still running
    peak = int(before.max()) + 1
    facts: dict[str, Any] = {"peak": peak, "alone": _alone(begun, ends, over)}
    # Calls in between are left out, so that the two figures differ clearly if load matters at all.
    few, many, level = before < peak / 4, before >= peak / 2, 0.5
    stops = begun[few] + taken[few]
    after = np.searchsorted(begun, stops, side="right") - np.searchsorted(ends, stops, side="right")
    facts["calm"] = int((after < peak / 4).sum())
    together = over == 0
    if together.sum() > peak / 2:
        # Calls that begin together reach the server in an order that nobody knows. The quickest quarter of them was
        # served first; it is compared with the quickest quarter of the later calls, because completions differ in
        # length.
        few, many, level = together, many & ~together, 0.25
    if peak >= 4 and few.sum() >= 2 and many.sum() >= _ENOUGH:
        facts["idle_s"], facts["busy_s"] = (float(np.quantile(taken[which], level)) for which in (few, many))
    return facts


def _alone(begun: Floats, ends: Floats, over: NDArray[np.int64]) -> float:
    """Share of the calls' time in which exactly one of them runs, given the sorted starts and ends."""
    whole = float(ends.sum() - begun.sum())
    if whole <= 0:
        return 0.0
    numbers = np.arange(len(begun))
    later_start, later_end = np.append(begun, np.inf), np.append(ends, np.inf)
    # One call is running after a start if none was before it, and after an end if as many but one have started.
    first = np.flatnonzero(numbers == over)
    started = np.searchsorted(begun, ends, side="right")
    last = np.flatnonzero(started - numbers == 2)
    alone = np.minimum(later_start[first + 1], later_end[over[first]]) - begun[first]
    again = np.minimum(later_start[started[last]], later_end[last + 1]) - ends[last]
    return float(alone.sum() + again.sum()) / whole


def attempts_at_once(starts: Floats, durations: Floats) -> dict[str, Any]:
    """How many attempts ran at once: the peak, and the average while more were waiting to start."""
    if not len(starts):
        return {}
    begun, ends = np.sort(starts), np.sort(starts + durations)
    level = np.arange(1, len(begun) + 1) - np.searchsorted(ends, begun, side="right")
    peak = int(level.max())
    last_ends = np.maximum.accumulate((starts + durations)[np.argsort(starts, kind="stable")])
    breaks = np.where(begun[1:] - last_ends[:-1] >= _BREAK_S, begun[1:] - last_ends[:-1], 0.0)
    wall_s = float(ends[-1] - begun[0] - breaks.sum())
    mean = float(durations.sum()) / wall_s if wall_s else 0.0
    first, last = begun[min(peak, len(begun)) - 1], begun[-1]  # excludes the initial ramp-up and the final drain
    inside = np.clip(starts + durations, first, last) - np.clip(starts, first, last)
    seconds = float(last - first - breaks[begun[1:] > first].sum())
    full = float(inside.sum()) / seconds if seconds > 0 else mean
    return {"wall_s": wall_s, "break_s": float(breaks.sum()), "at_once": full, "peak": peak}
