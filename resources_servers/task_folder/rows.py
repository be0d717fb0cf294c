"""The rows of a folder of tasks, and the tasks in it that can't run here, each with the reason."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from nemo_gym.data.task_folders import TaskFolder, find_task_folders, read_task_folder
from nemo_gym.data.task_worlds import Where, find_engine, plan_world
from nemo_gym.errors import ConfigError
from resources_servers.workspace.tools import declarations

_SYSTEM: Final = (
    "You work on a Linux machine without a network, by tools that run commands and edit files. The task names the "
    "files and programs that matter; when it is done, say so in a sentence. Tests that you can't see then check it."
)


@dataclass(slots=True)
class FolderRows:
    """The rows of the tasks that can run, and why the others can't."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    refused: dict[str, list[str]] = field(default_factory=dict)


def rows_of(path: Path, *, where: Where, image: str, limit: int | None = None) -> FolderRows:
    """Read every task below a path, and decide what its world would be. Nothing is started."""
    found = FolderRows()
    engine = find_engine()
    for folder in find_task_folders(path)[: limit or None]:
        try:
            task = read_task_folder(folder)
        except ConfigError as error:
            found.refused[folder.name] = [str(error)]
            continue
        plan = plan_world(task, where=where, engine=engine, image=image, environment=os.environ)
        if isinstance(plan, list):
            found.refused[task.name] = plan
        else:
            found.rows.append(task_row(task))
    return found


def task_row(task: TaskFolder) -> dict[str, Any]:
    """A line of a task file. It names the folder; everything else is read from there when the rollout begins."""
    messages = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": task.instruction}]
    said = {key: task.settings.metadata[key] for key in ("difficulty", "category") if key in task.settings.metadata}
    return {
        "responses_create_params": {"input": messages, "tools": declarations()},
        "task_folder": str(task.folder),
        "task_name": task.name,
        **{str(key): value for key, value in said.items()},
    }
