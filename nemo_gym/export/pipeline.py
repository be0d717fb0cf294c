"""An export from beginning to end: read, select, convert, write, report.

Rules about single rollouts need one pass and hardly any memory; rules about tasks need a second pass over the selected
rollouts. The same input, recipe and seed give the same bytes. An export whose output already exists is not repeated.
"""

import statistics
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nemo_gym.errors import ConfigError
from nemo_gym.export.atif import atif_rows
from nemo_gym.export.dataset import (
    MARK,
    TRAIN,
    VALIDATION,
    Output,
    check_output,
    check_place,
    open_output,
    output_paths,
)
from nemo_gym.export.dpo import choose_pairs, kto_rows, pair_row
from nemo_gym.export.receipt import Receipt, find_receipt, remove_drafts
from nemo_gym.export.recipe import TOKEN_FORMATS, Recipe
from nemo_gym.export.records import (
    FAILED,
    NO_REWARD,
    NOT_A_ROLLOUT,
    UNREADABLE,
    DroppedRollouts,
    Rollout,
    RolloutReader,
    find_rollout_files,
    read_at,
)
from nemo_gym.export.rl import group_advantages, rl_rows
from nemo_gym.export.select import Candidate, SampleSelection, is_validation
from nemo_gym.export.sft import Row, UnfitError, sft_rows, sharegpt_rows
from nemo_gym.export.tokens import token_rows
from nemo_gym.filters import parse_filter
from nemo_gym.filters.columns import record_fields

# Shows progress: takes a label and a total, and gives a function to be called with each advance.
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], object]]]
_CONVERT: Final[dict[str, Callable[[Rollout, Recipe], Iterator[Row]]]] = {
    "sft": sft_rows,
    "sft_tokens": token_rows,
    "sharegpt": sharegpt_rows,
    "kto": kto_rows,
    "rl": rl_rows,
    "atif": atif_rows,
}
_UNPAIRED: Final = "in no pair"
_HINTS: Final = {
    **dict.fromkeys(
        (UNREADABLE, NOT_A_ROLLOUT, FAILED, NO_REWARD), "+input takes rollout files, as ng_collect_rollouts writes them"
    ),
    _UNPAIRED: "a pair needs two rollouts of a task with different rewards: collect with +num_repeats, or loosen "
    "+min_margin and +max_length_ratio",
    "token ids": "collect with return_token_id_information: true on the model server, or choose a format of text",
    "log-probabilities": "collect with return_token_id_information: true on the model server",
}
# The columns that together hold the tokens of a row, under any of the names.
_IDS: Final = ("input_ids", "sequences", "prompts", "responses", "prompt_token_ids", "response_ids")


def no_progress(label: str, total: int) -> AbstractContextManager[Callable[[int], object]]:  # noqa: ARG001
    """Show nothing."""
    return nullcontext(lambda _: None)


@dataclass
class ExportReport:
    """What was read, what was dropped, and what was written."""

    recipe: Recipe
    files: int
    drops: DroppedRollouts = field(default_factory=DroppedRollouts)
    lines: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    tasks: set[bytes] = field(default_factory=set)
    models: Counter[str] = field(default_factory=Counter)
    agents: Counter[str] = field(default_factory=Counter)
    rewards: "array[float]" = field(default_factory=lambda: array("d"))
    tokens: "array[float]" = field(default_factory=lambda: array("d"))
    lengths: "array[float]" = field(default_factory=lambda: array("d"))  # of rows, in tokens or bytes of JSON
    earlier: str = ""  # the report of an earlier export that produced the same output

    def add(self, rollout: Rollout) -> None:
        """Count a rollout that is part of the output."""
        self.tasks.add(rollout.task)
        self.models[rollout.model] += 1
        self.agents[rollout.agent or "unknown"] += 1
        self.rewards.append(rollout.reward)
        self.tokens.append(rollout.written_tokens)

    def add_row(self, row: Row, size: int) -> None:
        """Count a row of the output, which has this many bytes as JSON."""
        has_ids = self.recipe.rows in TOKEN_FORMATS
        self.lengths.append(sum(len(row[name]) for name in _IDS if name in row) if has_ids else size)

    def text(self) -> str:
        """The report as a few lines of text."""
        if self.earlier:
            return f"{self.earlier}\nnothing to do: recipe, input and output are unchanged"
        dropped = [
            f"  {count:>8,}  {rule} (first: {self.drops.examples[rule]})" for rule, count in self.drops.counts.items()
        ]
        return "\n".join(
            [
                f"read: {_count(self.lines, 'line')} of {_count(self.files, 'file')}",
                *(["dropped:"] if dropped else []),
                *dropped,
                *self.summary(),
            ]
        )

    def summary(self) -> list[str]:
        """What is in the output."""
        splits = ", ".join(f"{count:,} {split}" for split, count in self.rows.items())
        rows = _count(self.rows.total(), "row") + (f" ({splits})" if self.recipe.validation else "")
        unit = "tokens" if self.recipe.rows in TOKEN_FORMATS else "bytes"
        return [
            f"written: {rows} from {_count(len(self.rewards), 'rollout')} of {_count(len(self.tasks), 'task')}",
            f"model: {', '.join(self.models)}; agent: {', '.join(self.agents)}",
            f"reward: mean {statistics.fmean(self.rewards):.3f}, {min(self.rewards):g} to {max(self.rewards):g}",
            f"tokens written by the model: {sum(self.tokens):,.0f}; in a rollout: {_spread(self.tokens)}",
            f"{unit} in a row: {_spread(self.lengths)}",
        ]

    def paths(self) -> list[Path]:
        """The files or the folder that were written."""
        return list(output_paths(self.recipe).values())


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _spread(values: "array[float]") -> str:
    ranked = sorted(values)
    middle, most = ranked[len(ranked) // 2], ranked[int(len(ranked) * 0.99)]
    return f"{ranked[0]:,.0f} to {ranked[-1]:,.0f}, median {middle:,.0f}, 99 % up to {most:,.0f}"


def export_rollouts(recipe: Recipe, progress: Progress = no_progress, *, command: str = "") -> ExportReport:
    """Write what the recipe asks for; after an error, nothing is written at all."""
    paths = find_rollout_files(recipe.input)
    check_place(recipe, paths)
    if earlier := find_receipt(recipe, paths):
        return ExportReport(recipe, len(paths), rows=Counter(earlier.rows), earlier=earlier.report)
    remove_drafts(recipe)
    check_output(recipe)
    report = ExportReport(recipe, len(paths))
    reader = RolloutReader(paths, report.drops)
    selection = SampleSelection(recipe, report.drops)
    with open_output(recipe) as output:
        found: list[Candidate] = []
        with progress("reading", sum(path.stat().st_size for path in paths)) as reader.advance:
            if recipe.by_task:
                found = selection.chosen(reader)
            else:
                _write(selection.passing(reader), output, report)
        if found:
            with progress("writing", len(found)) as advance:
                (_write_pairs if recipe.rows == "dpo" else _write_found)(found, output, report, advance)
        report.lines, report.rows = reader.lines, output.rows
        if not report.rows.total():
            _check_filter(recipe, paths)
        _check(report)
        output.card = card(report, command)
    Receipt.of(recipe, paths, report.rows, report.text()).save(recipe)
    return report


def _write_found(
    found: list[Candidate], output: Output, report: ExportReport, advance: Callable[[int], object]
) -> None:
    advantages = group_advantages(found) if report.recipe.rows == "rl" else {}

    def read() -> Iterator[Rollout]:
        for rollout in read_at((candidate.path, candidate.line, candidate.start) for candidate in found):
            rollout.advantage = advantages.get((rollout.path, rollout.line), 0.0)
            advance(1)
            yield rollout

    _write(read(), output, report)


def _write(rollouts: Iterable[Rollout], output: Output, report: ExportReport) -> None:
    recipe = report.recipe
    convert = _CONVERT[recipe.rows]
    for rollout in rollouts:
        try:
            rows = list(convert(rollout, recipe))
        except UnfitError as error:
            report.drops.add(str(error), rollout.place)
            continue
        split = VALIDATION if is_validation(rollout, recipe) else TRAIN
        for row in rows:
            report.add_row(row, output.write(split, row))
        report.add(rollout)


def _write_pairs(
    found: list[Candidate], output: Output, report: ExportReport, advance: Callable[[int], object]
) -> None:
    pairs = choose_pairs(found, report.recipe)
    paired = {candidate.place for pair in pairs for candidate in pair}
    for candidate in found:
        if candidate.place not in paired:
            report.drops.add(_UNPAIRED, candidate.place)
    # Both rollouts of a pair come from the same iterator, one after the other.
    rollouts = read_at((candidate.path, candidate.line, candidate.start) for pair in pairs for candidate in pair)
    for chosen, rejected in zip(rollouts, rollouts, strict=True):
        advance(2)
        try:
            row = pair_row(chosen, rejected, report.recipe)
        except UnfitError as error:
            report.drops.add(str(error), chosen.place)
            continue
        report.add_row(row, output.write(VALIDATION if is_validation(chosen, report.recipe) else TRAIN, row))
        for rollout in (chosen, rejected):
            if rollout.place in paired:  # a rollout may be part of several pairs
                paired.remove(rollout.place)
                report.add(rollout)


def _check_filter(recipe: Recipe, paths: list[Path]) -> None:
    """Raise a specific error if a filter dropped everything because it names a field that no rollout has."""
    if parse_filter(recipe.filter):
        columns = {name for rollout in RolloutReader(paths) for name in record_fields(rollout.record)}
        parse_filter(recipe.filter, columns | {"file"})


def _check(report: ExportReport) -> None:
    """Refuse an export that makes no sense, before any file is moved into place."""
    if not report.rows.total():
        dropped = sorted(report.drops.counts.items(), key=lambda item: -item[1])
        rules = ", ".join(f"{count} by “{rule}” (first: {report.drops.examples[rule]})" for rule, count in dropped)
        hint = _HINTS.get(dropped[0][0], "loosen the first of these rules") if dropped else "the input has no rollouts"
        raise ConfigError(f"no rollout is left of {report.lines}; dropped: {rules or 'none'}", hint=hint)
    if len(report.models) > 1 and not report.recipe.mixed_models:
        models = ", ".join(f"{model} ({count})" for model, count in report.models.most_common())
        raise ConfigError(
            f"the rollouts are of {len(report.models)} models: {models}",
            hint="choose one with +model=<name>, or allow all of them with +mixed_models=true",
        )


def card(report: ExportReport, command: str) -> str:
    """The card of a dataset folder."""
    files = {split: f"data/{split}-*.parquet" for split, count in report.rows.items() if count}
    config = "".join(f"      - split: {split}\n        path: {pattern}\n" for split, pattern in files.items())
    facts = "\n".join(f"* {line}" for line in report.summary())
    rules = "".join(f"| {rule} | {count} |\n" for rule, count in report.drops.counts.items())
    dropped = f"\n## Left out\n\n| rule | rollouts |\n|---|---|\n{rules}" if rules else ""
    made = f" by\n\n```bash\n{command}\n```" if command else "."
    return (
        f"---\nlicense: {report.recipe.licence}\ntags: [rollouts, {report.recipe.rows}]\nconfigs:\n"
        f"  - config_name: default\n    data_files:\n{config}---\n\n# Rollouts as {report.recipe.rows}\n\n"
        f"{facts}\n{dropped}\n{MARK}{made}\n"
    )
