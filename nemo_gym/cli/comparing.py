"""``ng_compare``: two runs over the same tasks, and which of them is better."""

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, Field

from nemo_gym.cli import console
from nemo_gym.cli.outcome import Exit
from nemo_gym.cli.settings import read_parameters
from nemo_gym.errors import ConfigPathNotFoundError
from nemo_gym.metrics.compare import compare as compare_tables
from nemo_gym.metrics.coverage import coverage
from nemo_gym.metrics.difficulty import SOLVED
from nemo_gym.metrics.fields import REWARD
from nemo_gym.metrics.json_text import to_json
from nemo_gym.metrics.render import comparison_text
from nemo_gym.metrics.table import RolloutTable
from nemo_gym.rollouts.planned_keys import PlannedKeys
from nemo_gym.rollouts.store.shards import Shards


class CompareConfig(BaseModel):
    """Parameters of ``ng_compare``."""

    a: str = Field(description="Rollouts of the first run.")
    b: str = Field(description="Rollouts of the second run.")
    field: str = Field(default=REWARD, description="The metric to compare.")
    pass_threshold: float = Field(default=SOLVED, description="Value from which on a rollout solves its task.")
    json_: bool = Field(default=False, alias="json", description="Print a JSON object instead of text.")


def compare(overrides: Sequence[str]) -> int:
    """Pair the tasks of two runs and say by how much they differ."""
    config = read_parameters(CompareConfig, overrides)
    a, b = (_read(name, Path(path)) for name, path in (("a", config.a), ("b", config.b)))
    found = compare_tables(a, b, field=config.field, threshold=config.pass_threshold)
    console.emit(json.dumps(json.loads(to_json(found.as_dict())), indent=4) if config.json_ else comparison_text(found))
    return Exit.OK


def _read(name: str, path: Path) -> RolloutTable:
    if not path.is_file():
        raise ConfigPathNotFoundError(f"{path}: no such file", hint=f"correct +{name}=<rollout file>")
    table = Shards([path], strict=False).table()
    planned = PlannedKeys.of([path])
    known = (
        coverage(planned.plan.keys(), table.key_columns(), planned.failures) if planned else f"{len(table)} rollouts"
    )
    console.note(f"{name}: {path}, {known}")
    return table
