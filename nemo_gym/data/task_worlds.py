"""Decides what the world of a task folder is made of, or why the task can't run here. Nothing is started for that."""

import hashlib
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from nemo_gym.data.task_folders import DEFAULT_WORKDIR, TaskFolder, resolved
from nemo_gym.errors import ConfigError

Where = Literal["auto", "namespaces", "container"]
ENGINES: Final = ("docker", "podman")
# Images with nothing in them that a plain Debian system lacks. A version of Python must be that of this machine.
_PLAIN: Final = re.compile(
    r"(?:docker\.io/)?(?:library/)?(debian|ubuntu|python|buildpack-deps)(?::([\w.-]+))?(?:@\S+)?"
)
_VERSION: Final = re.compile(r"3\.\d+")
_PATIENCE_S: Final = 60


@dataclass(frozen=True, slots=True)
class TaskWorld:
    """What a task's world starts from: this machine's system, or an image, which may have to be built first."""

    level: Literal["namespaces", "container"]
    image: str | None
    builds: bool
    workdir: str


@dataclass(frozen=True, slots=True)
class Engine:
    """A container engine of this machine, and which images it has."""

    command: str

    def has(self, image: str) -> bool:
        """Whether an image can be used without a registry."""
        return _succeeds([self.command, "image", "inspect", "--format", "{{.Id}}", image])


def find_engine() -> Engine | None:
    """The first engine that replies."""
    found = (name for name in ENGINES if shutil.which(name) and _succeeds([name, "version"]))
    command = next(found, None)
    return None if command is None else Engine(command)


def plan_world(
    task: TaskFolder, *, where: Where, engine: Engine | None, image: str, environment: Mapping[str, str]
) -> TaskWorld | list[str]:
    """The world of a task, or the reasons why there can be none.

    ``image`` is for tasks without a Dockerfile, if they are to run in containers; ``environment`` fills in variables.
    """
    reasons = task.unsupported() + _unset(task, environment)
    if reasons:
        return reasons
    workdir = task.settings.environment.workdir or (task.recipe.workdir if task.recipe else None)
    workdir = DEFAULT_WORKDIR if workdir in (None, "/") else workdir
    obstacles = _obstacles(task)
    if not obstacles and where != "container":
        return TaskWorld("namespaces", None, builds=False, workdir=workdir)
    if where == "namespaces":
        return [f"{obstacle}, so it needs a container" for obstacle in obstacles]
    if engine is None:
        return [
            f"{each}, and there is no container engine here" for each in obstacles or ["it is to run in a container"]
        ]
    return _in_container(task, engine, image, workdir)


def _in_container(task: TaskFolder, engine: Engine, image: str, workdir: str) -> TaskWorld | list[str]:
    builds = task.image is None and task.recipe is not None and bool(task.recipe.obstacles)
    if builds:
        return TaskWorld("container", f"localhost/rollout-gym-task:{_digest(task)}", builds=True, workdir=workdir)
    needed = task.image or (task.recipe.base if task.recipe else image)
    if not engine.has(needed):
        return [f"{engine.command} does not have the image {needed} ({engine.command} pull {needed})"]
    return TaskWorld("container", needed, builds=False, workdir=workdir)


def _obstacles(task: TaskFolder) -> list[str]:
    """What keeps a task from running on this machine's own system."""
    if task.image is not None:
        return [f"it needs the image {task.image}"]
    if task.recipe is None:
        return []
    found = _PLAIN.fullmatch(task.recipe.base)
    if found is None:
        return [f"its image is made from {task.recipe.base or 'nothing'}", *task.recipe.obstacles]
    version = _VERSION.match(found.group(2) or "") if found.group(1) == "python" else None
    own = ".".join(platform.python_version_tuple()[:2])
    if version is not None and version.group() != own:
        return [f"it needs Python {version.group()}, and this is {own}", *task.recipe.obstacles]
    return list(task.recipe.obstacles)


def _unset(task: TaskFolder, environment: Mapping[str, str]) -> list[str]:
    settings = task.settings
    reasons = []
    for section in (settings.environment, settings.verifier, settings.solution):
        try:
            resolved(section.env, environment)
        except ConfigError as error:
            reasons.append(str(error))
    return reasons


def _digest(task: TaskFolder) -> str:
    """A name for the image that is built from a folder, which changes with its files."""
    found = hashlib.sha256()
    for path in sorted(each for each in task.environment_folder.rglob("*") if each.is_file()):
        found.update(str(path.relative_to(task.environment_folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:20]


def _succeeds(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, check=False, capture_output=True, timeout=_PATIENCE_S).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
