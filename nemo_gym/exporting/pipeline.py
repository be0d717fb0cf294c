"""An export from beginning to end: read, select, convert, write, report.

Rules about single rollouts need one pass and hardly any memory; rules about tasks need a second pass over the selected
rollouts. The same input, recipe and seed give the same bytes. An export whose output already exists is not repeated.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

from nemo_gym.errors import ConfigError
from nemo_gym.exporting.atif import atif_rows
from nemo_gym.exporting.dataset import (
    TRAIN,
    VALIDATION,
    Output,
    check_place,
    open_output,
    refuse_overwriting,
    remove_drafts,
)
from nemo_gym.exporting.dpo import choose_pairs, kto_rows, pair_row
from nemo_gym.exporting.export_report import ExportReport, Receipt, card, find_receipt
from nemo_gym.exporting.recipe import Recipe
from nemo_gym.exporting.records import (
    FAILED,
    NO_REWARD,
    NOT_A_ROLLOUT,
    UNREADABLE,
    ExportedRollout,
    RolloutReader,
    read_at,
)
from nemo_gym.exporting.select import Candidate, SampleSelection, is_validation
from nemo_gym.exporting.sft import Row, UnfitError, sft_rows, sharegpt_rows
from nemo_gym.exporting.tokens import group_advantages, rl_rows, saved_rows, token_rows
from nemo_gym.filters import parse_filter
from nemo_gym.filters.columns import MARKED, record_fields
from nemo_gym.io.compressed import text_bytes
from nemo_gym.io.files import named_files

# Shows progress: takes a label and a total, and gives a function to be called with each advance.
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], object]]]
_CONVERT: Final[dict[str, Callable[[ExportedRollout, Recipe], Iterator[Row]]]] = {
    "sft": sft_rows,
    "sft_tokens": token_rows,
    "sharegpt": sharegpt_rows,
    "kto": kto_rows,
    "rl": rl_rows,
    "atif": atif_rows,
    "rollouts": saved_rows,
}
_UNPAIRED: Final = "in no pair"
_TOO_LOW: Final = "set a lower +min_reward, or take every reward with +min_reward=all"
_HINTS: Final = {
    **dict.fromkeys(
        (UNREADABLE, NOT_A_ROLLOUT, FAILED, NO_REWARD), "+input takes rollout files, as ng_collect_rollouts writes them"
    ),
    _UNPAIRED: "a pair needs two rollouts of a task with different rewards: collect with +num_repeats, or loosen "
    "+min_margin and +max_length_ratio",
    "token ids": "collect with return_token_id_information: true on the model server, or choose a format of text",
    "log-probabilities": "collect with return_token_id_information: true on the model server",
}


def no_progress(label: str, total: int) -> AbstractContextManager[Callable[[int], object]]:  # noqa: ARG001
    """Show nothing."""
    return nullcontext(lambda _: None)


def export_rollouts(recipe: Recipe, progress: Progress = no_progress, *, command: str = "") -> ExportReport:
    """Write what the recipe asks for; after an error, nothing is written at all."""
    paths = named_files(recipe.input, "input")
    check_place(recipe, paths)
    if earlier := find_receipt(recipe, paths):
        return ExportReport(recipe, len(paths), rows=Counter(earlier.rows), earlier=earlier.report)
    remove_drafts(recipe)
    refuse_overwriting(recipe)
    report = ExportReport(recipe, len(paths))
    reader = RolloutReader(paths, report.drops)
    selection = SampleSelection(recipe, report.drops)
    with open_output(recipe) as output:
        found: list[Candidate] = []
        with progress("reading", sum(map(text_bytes, paths))) as reader.advance:
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

    def read() -> Iterator[ExportedRollout]:
        for rollout in read_at((candidate.path, candidate.line, candidate.start) for candidate in found):
            rollout.advantage = advantages.get((rollout.path, rollout.line), 0.0)
            advance(1)
            yield rollout

    _write(read(), output, report)


def _write(rollouts: Iterable[ExportedRollout], output: Output, report: ExportReport) -> None:
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
        parse_filter(recipe.filter, columns | {"file", *MARKED})


def _check(report: ExportReport) -> None:
    """Refuse an export that makes no sense, before any file is moved into place."""
    if not report.lines:
        raise ConfigError("no rollout is left, because the input is empty", hint="the input has no rollouts")
    if not report.rows.total():
        dropped = sorted(report.drops.counts.items(), key=lambda item: -item[1])
        rules = ", ".join(f"{count} by “{rule}” (first: {report.drops.examples[rule]})" for rule, count in dropped)
        rule = dropped[0][0]
        hint = _TOO_LOW if rule.startswith("min_reward=") else _HINTS.get(rule, "loosen the first of these rules")
        raise ConfigError(f"no rollout is left of {report.lines}; dropped: {rules}", hint=hint)
    if len(report.models) > 1 and not report.recipe.mixed_models:
        models = ", ".join(f"{model} ({count})" for model, count in report.models.most_common())
        raise ConfigError(
            f"the rollouts are of {len(report.models)} models: {models}",
            hint="choose one with +model=<name>, or allow all of them with +mixed_models=true",
        )
