"""Draws an SVG chart of two runs over the same tasks: mean rewards with intervals, and the change of every task.

The SVG is written directly, so no plotting library is needed. Only tasks that both runs have are shown.
"""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

import numpy as np

from nemo_gym.metrics.compare import RunComparison
from nemo_gym.metrics.statistics import bootstrap_means
from nemo_gym.metrics.table import Floats

WIDTH: Final = 860
HEIGHT: Final = 330
TOP: Final = 64
BOTTOM: Final = HEIGHT - 50
BARS: Final = range(60, 250)
TASKS: Final = range(310, WIDTH - 20)
BEFORE: Final = "#9aa3ad"
AFTER: Final = "#2a7ab0"
WORSE: Final = "#c2553d"


def before_and_after_svg(found: RunComparison, *, title: str) -> str:
    """Two bars with intervals, and a line from before to after for each task, sorted by the reward before."""
    first, second = found.pairs.mean_a, found.pairs.mean_b
    low, high = found.interval or (float("nan"), float("nan"))
    summary = f"{found.difference:+.3f} [{low:+.3f}, {high:+.3f}], {found.tasks} tasks"
    parts = [
        _text(WIDTH / 2, 24, f"{title}: {summary}", size=15),
        *_scale(BARS),
        *_bar(BARS.start + 50, "before", first, BEFORE),
        *_bar(BARS.start + 140, "after", second, AFTER),
        *_scale(TASKS),
        *_changes(first, second),
        _text((TASKS.start + TASKS.stop) / 2, HEIGHT - 12, "tasks, by their reward before (grey) and after"),
        _text((TASKS.start + TASKS.stop) / 2, TOP - 16, _tally(second - first)),
        _text((BARS.start + BARS.stop) / 2, TOP - 16, "mean reward, 95 %"),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}: {escape(summary)}" font-family="sans-serif" font-size="12" text-anchor="middle">'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def _tally(change: Floats) -> str:
    better, worse = int((change > 0).sum()), int((change < 0).sum())
    return f"{better} tasks better, {worse} worse, {len(change) - better - worse} the same"


def _height(reward: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * min(max(reward, 0.0), 1.0)


def _scale(columns: range) -> Iterator[str]:
    for tenth in (0, 25, 50, 75, 100):
        y = _height(tenth / 100)
        yield f'<line x1="{columns.start}" x2="{columns.stop}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e3e6e9"/>'
        yield _text(columns.start - 18, y + 4, f"{tenth / 100:g}")


def _bar(x: float, name: str, means: Floats, colour: str) -> Iterator[str]:
    mean = float(means.mean())
    low, high = bootstrap_means(means[:, None], np.ones((len(means), 1)))[:, 0].tolist()
    top = _height(mean)
    yield f'<rect x="{x - 30}" y="{top:.1f}" width="60" height="{BOTTOM - top:.1f}" fill="{colour}"/>'
    if low == low:  # noqa: PLR0124 - a single task has no interval
        yield f'<path d="M{x} {_height(low):.1f}V{_height(high):.1f}" stroke="#222" stroke-width="2"/>'
    yield _text(x, BOTTOM + 18, f"{name} {mean:.2f}")


def _changes(first: Floats, second: Floats) -> Iterator[str]:
    order = np.lexsort((second, first))
    step = (len(TASKS) - 10) / max(len(order), 1)
    for place, task in enumerate(order):
        x = TASKS.start + 5 + (place + 0.5) * step
        yield from _change(x, (float(first[task]), float(second[task])))


def _change(x: float, rewards: Sequence[float]) -> Iterator[str]:
    old, new = map(_height, rewards)
    colour = WORSE if new > old else AFTER
    if old != new:
        yield f'<path d="M{x:.1f} {old:.1f}V{new:.1f}" stroke="{colour}" stroke-width="2" opacity="0.5"/>'
    yield f'<circle cx="{x:.1f}" cy="{old:.1f}" r="2.5" fill="{BEFORE}"/>'
    yield f'<circle cx="{x:.1f}" cy="{new:.1f}" r="2.5" fill="{colour}"/>'


def _text(x: float, y: float, text: str, *, size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}">{escape(text)}</text>'
