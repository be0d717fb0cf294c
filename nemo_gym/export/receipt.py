"""Receipts: what an export was made from, stored beside its output, so that repeating the export costs nothing.

A receipt is valid as long as recipe, inputs and output are unchanged, judged by size and modification time. It is
written once the output is in place. Without a valid receipt an export starts from the beginning. Drafts left by a
killed export are removed.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from shutil import rmtree
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from nemo_gym.export.dataset import output_paths
from nemo_gym.export.recipe import Recipe
from nemo_gym.export.records import find_rollout_files
from nemo_gym.io.files import replacing

_FORM: Final = 1  # increased whenever a change of the code makes the same recipe produce different rows


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
        return cls(
            recipe=_asked(recipe),
            inputs=_states(_read_files(recipe, inputs)),
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


def remove_drafts(recipe: Recipe) -> None:
    """Remove the drafts of processes that were killed while exporting to the same destination."""
    for path in output_paths(recipe).values():
        for draft in path.parent.glob(f"{path.name}.*.*"):
            process, ending = draft.name[len(path.name) + 1 :].split(".")[:2]
            if ending not in ("tmp", "old") or not process.isdigit() or _is_running(int(process)):
                continue
            if draft.is_dir():
                rmtree(draft, ignore_errors=True)
            else:
                draft.unlink(missing_ok=True)


def _asked(recipe: Recipe) -> dict[str, Any]:
    return recipe.model_dump(mode="json", exclude={"overwrite"}, exclude_defaults=True)


def _read_files(recipe: Recipe, inputs: Iterable[Path]) -> list[Path]:
    held_out = find_rollout_files(recipe.decontaminate, "decontaminate") if recipe.decontaminate else []
    return [*inputs, *held_out]


def _files(path: Path) -> list[Path]:
    return sorted((path / "data").iterdir()) if path.is_dir() else [path]


def _states(paths: Iterable[Path]) -> dict[str, tuple[int, int]]:
    return {str(path): ((state := path.stat()).st_size, state.st_mtime_ns) for path in paths}


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)  # signal 0 only checks whether the process exists
    except ProcessLookupError:
        return False
    except PermissionError:  # it exists and belongs to somebody else
        pass
    return True
