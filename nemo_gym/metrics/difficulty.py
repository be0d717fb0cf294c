"""How hard tasks are, measured by the share of their rollouts that solved them; for choosing what to train on.

A rollout solves its task if its reward reaches the threshold. Tasks that are always or never solved carry no signal for
training on differences between rollouts; the bands say how many there are of each. ``write_difficulty`` puts this
beside the rollouts: one line per task to filter a training set by, and a chart as SVG.
"""

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

import numpy as np

from nemo_gym.io.files import RunFiles, replacing
from nemo_gym.io.json import to_json
from nemo_gym.metrics.statistics import passing
from nemo_gym.metrics.table import Floats, Ints, RolloutTable
from nemo_gym.schemas.record import PASS_THRESHOLD, REWARD
from nemo_gym.schemas.rows import TASK_INDEX_KEY_NAME

# Upper bounds; "never" and "always" are exact, the others split what lies between.
_BANDS: Final = (("hard", 0.25), ("medium", 0.75), ("easy", 1.0))
BANDS: Final = ("never", "hard", "medium", "easy", "always")


@dataclass(frozen=True, slots=True)
class SolveRates:
    """The tasks that have rewards, with the share of rollouts that solved them."""

    task: Ints
    rate: Floats
    rollouts: Ints

    def bands(self) -> list[str]:
        return [difficulty_of(rate) for rate in self.rate.tolist()]

    def counts(self) -> dict[str, int]:
        """How many tasks each band has, from never to always solved."""
        bands = self.bands()
        return {band: bands.count(band) for band in BANDS}

    def mixed(self) -> list[int]:
        """The tasks that are sometimes solved: those with a signal."""
        return list(self.task[(self.rate > 0) & (self.rate < 1)].tolist())


def solve_rates(table: RolloutTable, threshold: float = PASS_THRESHOLD) -> SolveRates:
    """The solve rate of every task with at least one reward."""
    reward = table.top.get(REWARD)
    starts = table.task_starts()
    if reward is None or not len(starts):
        none = np.zeros(0, np.int64)
        return SolveRates(none, np.zeros(0), none)
    count, solved = passing(reward, starts, threshold)
    scored = count > 0
    return SolveRates(table.task[starts][scored], solved[scored] / count[scored], count[scored])


def difficulty_of(rate: float) -> str:
    """The difficulty of a task with this solve rate."""
    if rate <= 0:
        return "never"
    if rate >= 1:
        return "always"
    return next(name for name, upper in _BANDS if rate <= upper)


_WIDTH: Final = 640
_HEIGHT: Final = 320
_MARGIN: Final = 40
_TOP: Final = 50
_LABELS: Final = ("0", *(f"≤{i / 10:.1f}" for i in range(1, 10)), "<1", "1")


def solve_rate_svg(rates: SolveRates) -> str:
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
        f'<text x="{_WIDTH / 2}" y="22" font-size="15">Solve rate per task ({len(rates.task)} tasks)</text>'
        f"{''.join(parts)}</svg>\n"
    )


def solve_rate_counts(rates: SolveRates) -> list[int]:
    """Tasks with rate 0, in (0, 0.1], (0.1, 0.2], … (0.9, 1), and 1."""
    inside = rates.rate[(rates.rate > 0) & (rates.rate < 1)]
    # A little less, so that a rounding error does not move a rate of exactly three tenths into the next bar.
    tenth = np.clip(np.ceil(inside * 10 - 1e-9).astype(np.int64) - 1, 0, 9)
    middle = np.bincount(tenth, minlength=10).tolist()
    return [int((rates.rate <= 0).sum()), *middle, int((rates.rate >= 1).sum())]


def write_difficulty(base: Path, rates: SolveRates, *, threshold: float) -> RunFiles:
    """Write both files beside the rollouts, or beside whatever else ``base`` is."""
    files = RunFiles.of(base)
    columns = zip(rates.task.tolist(), rates.rate.tolist(), rates.rollouts.tolist(), rates.bands(), strict=True)
    with replacing(files.difficulty) as file:
        for task, rate, rollouts, band in columns:
            entry = {TASK_INDEX_KEY_NAME: task, "solve_rate": rate, "num_rollouts": rollouts, "difficulty": band}
            file.write(to_json(entry | {"pass_threshold": threshold}) + b"\n")
    with replacing(files.solve_rates) as file:
        file.write(solve_rate_svg(rates).encode())
    return files
