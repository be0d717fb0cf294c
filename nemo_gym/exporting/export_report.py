"""What an export did: counted while it runs, then printed, written on the card of a dataset, and stored as a receipt.

A receipt lies beside the output, so that repeating the export costs nothing. It is valid as long as recipe, inputs and
output are unchanged, judged by size and modification time. It is written once the output is in place.
"""

import statistics
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from nemo_gym.exporting.dataset import MARK, output_paths
from nemo_gym.exporting.recipe import TOKEN_FORMATS, Recipe
from nemo_gym.exporting.records import DroppedRollouts, ExportedRollout
from nemo_gym.exporting.sft import Row
from nemo_gym.io.files import named_files, replacing

_FORM: Final = 3  # increased whenever a change of the code makes the same recipe produce different rows
# The columns that together hold the tokens of a row, under any of the names.
_IDS: Final = ("input_ids", "sequences", "prompts", "responses", "prompt_token_ids", "response_ids")


@dataclass(repr=False)
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
    rewards: MutableSequence[float] = field(default_factory=lambda: array("d"))
    tokens: MutableSequence[float] = field(default_factory=lambda: array("d"))
    lengths: MutableSequence[float] = field(default_factory=lambda: array("d"))  # of rows, in tokens or bytes of JSON
    earlier: str = ""  # the report of an earlier export that produced the same output

    def add(self, rollout: ExportedRollout) -> None:
        """Count a rollout that is part of the output."""
        self.tasks.add(rollout.task)
        self.models[rollout.model] += 1
        self.agents[rollout.record.agent or "unknown"] += 1
        self.rewards.append(rollout.reward)
        self.tokens.append(rollout.written_tokens)

    def add_row(self, row: Row, size: int) -> None:
        """Count a row of the output, which has this many bytes as JSON."""
        if self.recipe.rows in TOKEN_FORMATS:
            size = sum(len(row[name]) for name in _IDS if name in row)
        self.lengths.append(size)

    def __repr__(self) -> str:
        return self.text()

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
                *self._default_rule(),
                *self.summary(),
            ]
        )

    def _default_rule(self) -> list[str]:
        if not self.recipe.only_solved:
            return []
        solved = f"{self.recipe.rows} takes solved rollouts, with a reward of {self.recipe.pass_threshold:g} or more"
        return [f"{solved} (+min_reward=0.5 lowers that, +min_reward=all takes every reward)"]

    def summary(self) -> list[str]:
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


def _spread(values: MutableSequence[float]) -> str:
    ranked = sorted(values)
    middle, most = ranked[len(ranked) // 2], ranked[int(len(ranked) * 0.99)]
    return f"{ranked[0]:,.0f} to {ranked[-1]:,.0f}, median {middle:,.0f}, 99 % up to {most:,.0f}"


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


class Receipt(BaseModel):
    """One finished export."""

    form: int = _FORM
    recipe: dict[str, Any]
    inputs: dict[str, tuple[int, int]]  # size and modification time
    outputs: dict[str, tuple[int, int]]
    rows: dict[str, int]
    report: str

    @classmethod
    def of(cls, recipe: Recipe, inputs: Iterable[Path], rows: Mapping[str, int], report: str) -> "Receipt":
        """The receipt of an export whose output is in place."""
        held_out = named_files(recipe.decontaminate, "decontaminate") if recipe.decontaminate else []
        return cls(
            recipe=recipe.model_dump(mode="json", exclude={"overwrite"}, exclude_defaults=True),
            inputs=_states([*inputs, *held_out]),
            outputs=_states(file for path in output_paths(recipe).values() for file in _files(path)),
            rows=dict(rows),
            report=report,
        )

    def save(self, recipe: Recipe) -> None:
        """Write the receipt beside the output."""
        with replacing(receipt_path(recipe)) as file:
            file.write(self.model_dump_json(indent=2).encode("utf-8", "replace") + b"\n")


def receipt_path(recipe: Recipe) -> Path:
    """The path of the receipt of an output."""
    path = Path(recipe.output)
    return path / "export.json" if recipe.stored_as == "hf" else path.with_name(f"{path.name}.export.json")


def find_receipt(recipe: Recipe, inputs: Sequence[Path]) -> Receipt | None:
    """The receipt of an earlier export whose output is still what this recipe would produce; None without one."""
    if recipe.overwrite or not all(path.exists() for path in output_paths(recipe).values()):
        return None
    try:
        found = Receipt.model_validate_json(receipt_path(recipe).read_bytes())
        return found if found == Receipt.of(recipe, inputs, found.rows, found.report) else None
    except (FileNotFoundError, ValidationError):
        return None


def _files(path: Path) -> list[Path]:
    return sorted((path / "data").iterdir()) if path.is_dir() else [path]


def _states(paths: Iterable[Path]) -> dict[str, tuple[int, int]]:
    return {str(path): ((state := path.stat()).st_size, state.st_mtime_ns) for path in paths}
