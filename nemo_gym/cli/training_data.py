"""``ng_export``: rollouts as training data.

A module of its own, because it needs neither servers nor their configuration: importing those would take longer than
exporting ten thousand rollouts.
"""

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tqdm import tqdm

from nemo_gym.cli import console
from nemo_gym.cli.flags import path_overrides
from nemo_gym.cli.parameters import read_parameters
from nemo_gym.errors import ExitCode
from nemo_gym.export.pipeline import export_rollouts
from nemo_gym.export.recipe import Recipe
from nemo_gym.filters import parse_filter


def export(overrides: Sequence[str]) -> int:
    """Select rollouts, write them in the requested format, and report."""
    recipe = read_parameters(Recipe, path_overrides(overrides, "input", as_list=True))
    parse_filter(recipe.filter)  # a mistake is reported before anything is read
    report = export_rollouts(recipe, _bar, command=shlex.join(["ng_export", *overrides]))
    console.note(report.text())
    for path in report.paths():
        console.emit(str(path))
    return ExitCode.OK


@contextmanager
def _bar(label: str, total: int) -> Iterator[Callable[[int], object]]:
    """A progress bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    in_bytes = label == "reading"
    with tqdm(total=total, desc=label, unit="B" if in_bytes else "", unit_scale=in_bytes, file=sys.stderr) as bar:
        yield bar.update
