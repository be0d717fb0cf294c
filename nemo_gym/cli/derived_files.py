"""Commands that make a file from others: ``ng_materialize_prompts`` and ``ng_export``.

They need no servers and no configuration of servers, so nothing of that is imported here: it would take longer than
exporting thousands of rollouts.
"""

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tqdm import tqdm

from nemo_gym.cli import console
from nemo_gym.cli.command import path_overrides
from nemo_gym.cli.parameters import check_prompt, read_parameters
from nemo_gym.errors import ExitCode
from nemo_gym.export.pipeline import export_rollouts
from nemo_gym.export.recipe import Recipe
from nemo_gym.filters import parse_filter
from nemo_gym.prompt import MaterializePromptsConfig
from nemo_gym.prompt import materialize_prompts as materialize


def materialize_prompts(overrides: Sequence[str]) -> int:
    """Fill the template for every row and save the rows."""
    config = read_parameters(MaterializePromptsConfig, overrides)
    check_prompt(config.prompt_config)
    materialize(config.input_jsonl_fpath, config.prompt_config, config.output_jsonl_fpath)
    return ExitCode.OK


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
