"""Front door: makes whole tasks, as environment servers take them, from flat rows."""

from collections.abc import Mapping
from typing import Any, Final

from nemo_gym.schemas.episodes import is_materialized_task_row
from nemo_gym.schemas.record import Record, is_task_field

__all__ = ["materialize_task"]

_NAMES: Final = ("task_id", "problem_id", "instance_id")


def materialize_task(row: Mapping[str, Any], *, taskset: str, task_index: int | None = None) -> dict[str, Any]:
    """The task of a row: its id in the task set, and its fields without what only collectors write."""
    if is_materialized_task_row(row):
        raise ValueError("the row is a whole task already")
    name = next((str(row[key]) for key in _NAMES if row.get(key) is not None), None)
    if name is None:
        index = Record(row).task
        index = task_index if index is None else index
        if index is None or index < 0:
            raise ValueError(f"the row has none of {', '.join(_NAMES)}, so task_index must be a number from 0")
        name = str(index)
    task_input = {key: value for key, value in row.items() if is_task_field(key)}
    return {"task_id": {"taskset": taskset, "task_id": name}, "task_input": task_input}
