"""Folders of tasks in place of an environment: ``+tasks=path/to/tasks``, and ``collect(tasks="path/to/tasks")``.

Two agents need no model: ``oracle`` plays each task's own solution, ``nothing`` does nothing.
"""

import logging
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from omegaconf import DictConfig

from nemo_gym.api.choices import Choice, write_tasks
from nemo_gym.config.keys import RESOURCES_SERVERS
from nemo_gym.config.locate import find_readable
from nemo_gym.data.task_folders import is_folder_of_tasks
from nemo_gym.errors import ConfigError

logger = logging.getLogger(__name__)

WITHOUT_MODEL: Final = ("oracle", "nothing")
DEFAULT_AGENT: Final = "task_folder_simple_agent"
_SERVER: Final = "task_folder"
_CONFIGS: Final = f"{RESOURCES_SERVERS}/{_SERVER}/configs"


def names_task_folders(tasks: str | Path) -> bool:
    """Whether tasks are a folder of tasks, as opposed to a file, rows, or the name of a dataset."""
    found = find_readable(tasks)
    return found is not None and is_folder_of_tasks(found)


def choose_task_folders(agent: Any) -> Choice:
    """The configuration that runs folders of tasks with an agent."""
    needs_model = agent not in WITHOUT_MODEL
    return Choice([f"{_CONFIGS}/{_SERVER if needs_model else f'{_SERVER}_server'}.yaml"])


def task_folder_rows(path: str | Path, config: DictConfig, *, folder: Path, limit: int | None = None) -> Path:
    """A task file for the tasks below a path. What can't run is said for each of them, and left out."""
    settings = config[_SERVER][RESOURCES_SERVERS][_SERVER]
    # The environment writes its own rows; like every server, it is found by the name of its folder.
    rows_of = import_module(f"{RESOURCES_SERVERS}.{_SERVER}.rows").rows_of
    where, image = settings.get("sandbox_isolation", "auto"), settings.get("sandbox_image", "debian:stable-slim")
    found = rows_of(find_readable(path) or Path(path), where=where, image=image, limit=limit)
    lines = [f"  {name}: {'; '.join(reasons)}" for name, reasons in found.refused.items()]
    if not found.rows:
        raise ConfigError("none of the tasks can run here:\n" + "\n".join(lines), hint="docs/task_folders.md")
    if lines:
        total = len(lines) + len(found.rows)
        logger.warning("%d of %d tasks can't run here and are left out:\n%s", len(lines), total, "\n".join(lines))
    return write_tasks(found.rows, folder)
