"""Numbers as plain text for a terminal. Pure: values in, a string out, legible without colour and at any width."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from nemo_gym.metrics.compare import Comparison
from nemo_gym.metrics.difficulty import SolveRates
from nemo_gym.metrics.intervals import Interval
from nemo_gym.metrics.table import Floats

_BAR: Final = "#"
_FLIPPED_SHOWN: Final = 10


def histogram(values: Floats, *, bins: int = 10, width: int = 40) -> str:
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


def solve_rate_table(rates: SolveRates, *, width: int = 40) -> str:
    """How many tasks are never, rarely, often and always solved."""
    counts = rates.counts()
    return bars(list(counts), list(counts.values()), width=width) if len(rates.task) else "no rewards"


def interval_table(intervals: Mapping[str, Interval]) -> str:
    """Each mean with its 95 % interval."""
    room = max(map(len, intervals), default=0)
    return "\n".join(
        f"{name:<{room}}  {value.mean:>10.4g}  [{value.low:.4g}, {value.high:.4g}]" for name, value in intervals.items()
    )


def comparison_text(comparison: Comparison) -> str:
    """The outcome of a comparison in a few lines."""
    c = comparison
    if not c.tasks:
        return f"no task has a {c.field} in both runs"
    interval = f"95 % interval [{c.interval[0]:+.4g}, {c.interval[1]:+.4g}]" if c.interval else "too few tasks to say"
    verdict = "significant" if c.significant else "could be chance"
    lines = [
        f"{c.tasks} tasks in both runs ({c.only_a} only in a, {c.only_b} only in b)",
        f"{c.field}: a {c.mean_a:.4g}, b {c.mean_b:.4g}, difference {c.difference:+.4g}, {interval}: {verdict}",
        f"newly solved: {len(c.gained)}{_some(c.gained)}",
        f"no longer solved: {len(c.lost)}{_some(c.lost)}",
    ]
    return "\n".join(lines)


def _some(tasks: Sequence[int]) -> str:
    if not tasks:
        return ""
    more = ", …" if len(tasks) > _FLIPPED_SHOWN else ""
    return f" (tasks {', '.join(map(str, tasks[:_FLIPPED_SHOWN]))}{more})"
