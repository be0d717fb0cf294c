"""What we add to the interface's metrics for one agent: intervals, coverage, pass@k, tool use and difficulty.

The metrics file keeps exactly the keys that its readers expect, so all of this goes into a details file beside it, and
as plain text to the terminal: legible without colour and at any width. Coverage says how much of the plan the numbers
are about: planned, completed, failed and why. It is printed beside every mean.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from nemo_gym.errors import counted
from nemo_gym.io.files import replacing
from nemo_gym.io.json import to_json
from nemo_gym.metrics.aggregate import repeat_entries
from nemo_gym.metrics.difficulty import SolveRates, solve_rates
from nemo_gym.metrics.pass_at_k import attempts
from nemo_gym.metrics.statistics import LEVEL, RESAMPLES, SEED, Interval, mean_intervals, share_fields
from nemo_gym.metrics.table import Floats, RolloutTable, RowKeys, distinct
from nemo_gym.schemas.record import MASKED, PASS_THRESHOLD, REWARD
from nemo_gym.schemas.rows import AGENT_REF_KEY_NAME, Prices, RolloutKey
from nemo_gym.schemas.transcript_counts import TOOL_CALLS, TURNS

AVERAGE_NAMES: Final = {TOOL_CALLS: "avg_tool_calls", TURNS: "avg_turns"}


@dataclass(frozen=True, slots=True)
class Coverage:
    """Counts of rollouts. A rollout that failed and later succeeded is completed."""

    planned: int
    completed: int
    failed: Mapping[str, int] = field(default_factory=dict)  # by class of the last failure

    @property
    def pending(self) -> int:
        return max(0, self.planned - self.completed - sum(self.failed.values()))

    @property
    def percent(self) -> float:
        return 100.0 * self.completed / self.planned if self.planned else 100.0

    def as_dict(self) -> dict[str, Any]:
        return {
            "planned": self.planned,
            "completed": self.completed,
            "failed": dict(self.failed),
            "pending": self.pending,
            "completed_pct": self.percent,
        }

    def __str__(self) -> str:
        text = f"{self.completed} of {self.planned} rollouts completed ({self.percent:.1f} %)"
        if self.failed:
            classes = ", ".join(f"{name} {count}" for name, count in sorted(self.failed.items()))
            text += f", {sum(self.failed.values())} failed ({classes})"
        return f"{text}, {self.pending} not run" if self.pending else text


def coverage(
    planned: RowKeys, completed: RowKeys, failures: Iterable[tuple[RolloutKey, str]], masked: RowKeys | None = None
) -> Coverage:
    """Coverage of a plan; of several failures of a rollout the last one counts. Keys outside the plan do not.

    Rollouts that are ``masked`` are saved but were not measured, so they count as failures of that name.
    """
    planned, completed = distinct(planned), distinct(completed)
    both = len(planned.task) + len(completed.task) - len(distinct(_joined(planned, completed)).task)
    unmeasured = zip(masked.task.tolist(), masked.rollout.tolist(), strict=True) if masked is not None else ()
    ended = chain(failures, ((RolloutKey(*key), MASKED) for key in unmeasured))
    last = {key: cause for key, cause in ended if _has(planned, key) and not _has(completed, key)}
    return Coverage(len(planned.task), both, dict(sorted(Counter(last.values()).items())))


def _joined(a: RowKeys, b: RowKeys) -> RowKeys:
    return RowKeys(np.concatenate([a.task, b.task]), np.concatenate([a.rollout, b.rollout]))


def _has(keys: RowKeys, key: RolloutKey) -> bool:
    """Whether a key is among these, which are in order."""
    low, high = (int(np.searchsorted(keys.task, key.task, side)) for side in ("left", "right"))
    place = low + int(np.searchsorted(keys.rollout[low:high], key.rollout))
    return place < high and int(keys.rollout[place]) == key.rollout


def details(
    table: RolloutTable,
    *,
    coverage: Coverage | None = None,
    prices: Prices | None = None,
    usd: float | None = None,
) -> dict[str, Any]:
    """The details of one agent's rollouts, as written beside the metrics file.

    ``usd`` is what they cost, if that is known better than from the numbers of the table.
    """
    starts = table.task_starts()
    metrics = table.metrics()
    fields = {f"mean/{name}": column for name, column in metrics.items()}
    fields |= {AVERAGE_NAMES[name]: column for name, column in table.transcript.items()}
    shares = {f"mean/{name}" for name in share_fields(metrics)}
    intervals = mean_intervals(fields, starts, shares=shares)
    averages = {name: intervals[name].mean for name in AVERAGE_NAMES.values() if name in intervals}
    repeats = attempts(table, PASS_THRESHOLD)
    return {
        "rollouts": len(table),
        "tasks": len(starts),
        "coverage": coverage.as_dict() if coverage is not None else None,
        "confidence": {"level": LEVEL, "resamples": RESAMPLES, "seed": SEED},
        "intervals": {name: asdict(interval) for name, interval in intervals.items()},
        **averages,
        **({"cost": cost_of_rollouts(table, prices or Prices(input=0, output=0), usd)} if prices or usd else {}),
        "solve_threshold": PASS_THRESHOLD,
        "pass_at_k": {str(k): value for k, value in enumerate(repeats.pass_at_k, 1)},
        "reward_at_k": {str(k): value for k, value in enumerate(repeats.reward_at_k, 1)},
        "pass_at_k_tasks": repeats.tasks,
        "pass_at_k_tasks_left_out": repeats.left_out,
        "tasks_by_difficulty": solve_rates(table).counts(),
        "repeat_level_metrics": repeat_entries(table),
    }


def cost_of_rollouts(table: RolloutTable, prices: Prices, usd: float | None = None) -> dict[str, float]:
    """What the rollouts cost in USD; unless given, as if the endpoint had cached nothing."""
    if usd is None:
        used = table.metrics()
        per_token = {"input_tokens": prices.input / 1e6, "output_tokens": prices.output / 1e6}
        known = {name: used[name] for name in per_token if name in used}
        usd = sum(
            float(np.where(column.known, column.values, 0.0).sum()) * per_token[name] for name, column in known.items()
        )
    return {"usd": usd, "usd_per_rollout": usd / len(table) if len(table) else 0.0}


def write_details(path: Path, agents: Mapping[str, Mapping[str, Any]]) -> None:
    """Replace the file by the details of these agents, sorted by name."""
    entries = [{AGENT_REF_KEY_NAME: {"name": name}, **agents[name]} for name in sorted(agents)]
    with replacing(path) as file:
        file.write(to_json(entries, indent=True) + b"\n")


_BAR: Final = "#"


def text_histogram(values: Floats, *, bins: int = 10, width: int = 40) -> str:
    """How often values occur: one line per range, or per value if there are few different ones."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return "no values"
    distinct, counts = np.unique(finite, return_counts=True)
    if len(distinct) <= bins:
        return bars([f"{value:g}" for value in distinct.tolist()], counts.tolist(), width=width)
    counts, edges = np.histogram(finite, bins=bins)
    ranges = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    return bars([f"{low:.3g} to {high:.3g}" for low, high in ranges], counts.tolist(), width=width)


def bars(labels: Sequence[str], counts: Sequence[int], *, width: int = 40) -> str:
    """One bar per label; the longest has the given width, and what is not zero shows at least one mark."""
    total, most = sum(counts), max(counts, default=0)
    room = max(map(len, labels), default=0)
    digits = len(f"{most}")
    lines = []
    for label, count in zip(labels, counts, strict=True):
        length = max(1, round(width * count / most)) if count else 0
        share = 100.0 * count / total if total else 0.0
        lines.append(f"{label:>{room}}  {count:>{digits}}  {share:5.1f} %  {_BAR * length}".rstrip())
    return "\n".join(lines)


def solve_rate_table(rates: SolveRates) -> str:
    """How many tasks are never, rarely, often and always solved."""
    counts = rates.counts()
    return bars(list(counts), list(counts.values())) if len(rates.task) else "no rewards"


def interval_table(intervals: Mapping[str, Interval]) -> str:
    """Each mean with its 95 % interval."""
    room = max(map(len, intervals), default=0)
    return "\n".join(
        f"{name:<{room}}  {value.mean:>10.4g}  [{value.low:.4g}, {value.high:.4g}]" for name, value in intervals.items()
    )


_SHOWN: Final = 12  # means; the file has them all
_REWARD: Final = f"mean/{REWARD}"


@dataclass(frozen=True, slots=True)
class Report:
    """Coverage, intervals, rewards and difficulty of one agent's rollouts."""

    agent: str
    coverage: Coverage | None  # None if it is not known what was planned
    details: dict[str, Any]
    rewards: Floats
    rates: SolveRates

    @classmethod
    def of(
        cls,
        agent: str,
        table: RolloutTable,
        coverage: Coverage | None = None,
        prices: Prices | None = None,
        usd: float | None = None,
    ) -> "Report":
        reward = table.top.get(REWARD)
        rewards = reward.values[reward.known] if reward is not None else table.task[:0].astype(float)
        found = details(table, coverage=coverage, prices=prices, usd=usd)
        return cls(agent, coverage, found, rewards, solve_rates(table))

    def text(self, key_metrics: Mapping[str, Any] = MappingProxyType({})) -> str:
        """The report for a terminal. Coverage comes first, because without it a mean over survivors misleads.

        Of ``key_metrics`` those are shown that are no means, because an environment chose them.
        """
        known = self.coverage if self.coverage is not None else counted(self.details["rollouts"], "rollout")
        parts = [f"{self.agent}: {known}"]
        if self.details["intervals"]:
            parts += ["means, each with its 95 % interval:", self._means()]
        if chosen := self._chosen(key_metrics):
            parts += ["key metrics of the environment:", *chosen]
        if len(self.rewards):
            parts += ["rewards:", text_histogram(self.rewards)]
            parts += [
                f"tasks ({len(self.rates.task)}) by how often they were solved, with reward {PASS_THRESHOLD:g} or more:"
            ]
            parts += [solve_rate_table(self.rates)]
        return "\n".join(parts)

    def _means(self) -> str:
        """The means that say something, the reward first; a field that is the same in every rollout is left out."""
        intervals = {name: Interval(**interval) for name, interval in self.details["intervals"].items()}
        ranked = sorted(intervals, key=lambda name: name != _REWARD)  # the others stay in their order
        varied = {name: intervals[name] for name in ranked if name == _REWARD or not intervals[name].is_constant}
        shown = dict(list(varied.items())[:_SHOWN])
        left = len(intervals) - len(shown)
        return interval_table(shown) + (f"\n({left} more in the details file)" if left else "")

    def _chosen(self, key_metrics: Mapping[str, Any]) -> list[str]:
        chosen = {name: value for name, value in key_metrics.items() if not name.startswith("mean/")}
        room = max(map(len, chosen), default=0)
        texts = {name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in chosen.items()}
        return [f"{name:<{room}}  {text:>10}" for name, text in texts.items()]
