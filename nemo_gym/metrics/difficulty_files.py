"""How hard each task is, as files: one line per task to filter a training set by, and a picture for the eye."""

from pathlib import Path
from typing import NamedTuple

from nemo_gym.metrics.difficulty import SolveRates
from nemo_gym.metrics.files import replacing
from nemo_gym.metrics.json_text import to_json
from nemo_gym.metrics.picture import solve_rate_svg
from nemo_gym.schemas.rows import TASK_INDEX_KEY_NAME


class DifficultyFiles(NamedTuple):
    """Where they are."""

    tasks: Path
    picture: Path

    @classmethod
    def of(cls, rollouts: Path) -> "DifficultyFiles":
        """Next to the rollouts, or whatever else they are named after."""
        return cls(
            rollouts.with_name(f"{rollouts.stem}_difficulty.jsonl"),
            rollouts.with_name(f"{rollouts.stem}_solve_rates.svg"),
        )


def write_difficulty(base: Path, rates: SolveRates, *, threshold: float) -> DifficultyFiles:
    """Write both files."""
    files = DifficultyFiles.of(base)
    columns = zip(rates.task.tolist(), rates.rate.tolist(), rates.rollouts.tolist(), rates.bands(), strict=True)
    with replacing(files.tasks) as file:
        for task, rate, rollouts, band in columns:
            entry = {TASK_INDEX_KEY_NAME: task, "solve_rate": rate, "num_rollouts": rollouts, "difficulty": band}
            file.write(to_json(entry | {"pass_threshold": threshold}) + b"\n")
    with replacing(files.picture) as file:
        file.write(solve_rate_svg(rates).encode())
    return files
