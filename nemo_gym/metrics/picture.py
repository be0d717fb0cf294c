"""The distribution of solve rates as a picture that any browser shows: SVG, drawn here, no library needed."""

from html import escape
from typing import Final

import numpy as np

from nemo_gym.metrics.difficulty import SolveRates

_WIDTH: Final = 640
_HEIGHT: Final = 320
_MARGIN: Final = 40
_TOP: Final = 50
_LABELS: Final = ("0", *(f"≤{i / 10:.1f}" for i in range(1, 10)), "<1", "1")


def solve_rate_svg(rates: SolveRates, title: str = "Solve rate per task") -> str:
    """Bars for tasks never solved, in ten ranges between, and always solved."""
    counts = solve_rate_counts(rates)
    most = max(*counts, 1)
    step = (_WIDTH - 2 * _MARGIN) / len(counts)
    full = _HEIGHT - _MARGIN - _TOP
    parts = []
    for i, (count, label) in enumerate(zip(counts, _LABELS, strict=True)):
        height = full * count / most
        left, bottom = _MARGIN + i * step, _HEIGHT - _MARGIN
        middle = left + step / 2
        parts.append(
            f'<rect x="{left + 3:.1f}" y="{bottom - height:.1f}" width="{step - 6:.1f}" height="{height:.1f}" '
            f'fill="{"#888" if i in {0, len(counts) - 1} else "#2a7ab0"}"/>'
            f'<text x="{middle:.1f}" y="{bottom - height - 5:.1f}">{count}</text>'
            f'<text x="{middle:.1f}" y="{bottom + 16:.1f}">{escape(label)}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'font-family="sans-serif" font-size="11" text-anchor="middle">'
        f'<rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="{_WIDTH / 2}" y="22" font-size="15">{escape(title)} ({len(rates.task)} tasks)</text>'
        f"{''.join(parts)}</svg>\n"
    )


def solve_rate_counts(rates: SolveRates) -> list[int]:
    """Tasks with rate 0, in (0, 0.1], (0.1, 0.2], … (0.9, 1), and 1."""
    inside = rates.rate[(rates.rate > 0) & (rates.rate < 1)]
    tenth = np.clip(np.ceil(inside * 10 - 1e-9).astype(np.int64) - 1, 0, 9)
    middle = np.bincount(tenth, minlength=10).tolist()
    return [int((rates.rate <= 0).sum()), *middle, int((rates.rate >= 1).sum())]
