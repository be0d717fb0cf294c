"""Tasks in folders, in the format of Harbor: an instruction, ``task.toml``, an environment, tests and a solution.

A folder is read completely before anything runs: what it asks for and what can't be given are values.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from nemo_gym.data.dockerfiles import ImageRecipe, read_dockerfile
from nemo_gym.errors import ConfigError

_VARIABLE: Final = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_SIZES: Final = {"K": 1 / 1024, "M": 1, "G": 1024}
_COMPOSE: Final = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
_CANARY: Final = re.compile(r"\A(?:\s*(?:<!--|#)[^\n]*canary[^\n]*\n)+", re.IGNORECASE)
DEFAULT_WORKDIR: Final = "/app"


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True)


class AgentSection(_Section):
    """``[agent]``."""

    timeout_sec: float | None = Field(default=None, gt=0)
    user: str | int | None = None
    network_mode: str | None = None
    allowed_hosts: list[str] | None = None


class HealthcheckSection(_Section):
    """``[environment.healthcheck]``: a command that must succeed before the agent begins."""

    command: str
    interval_sec: float = 5.0
    timeout_sec: float = 30.0
    start_period_sec: float = 0.0
    start_interval_sec: float = 5.0
    retries: int = 3


class EnvironmentSection(_Section):
    """``[environment]``."""

    build_timeout_sec: float = 600.0
    docker_image: str | None = None
    os: str = "linux"
    cpus: float | None = Field(default=None, gt=0)
    memory_mb: int | None = Field(default=None, gt=0)
    storage_mb: int | None = Field(default=None, gt=0)
    gpus: int | None = None
    tpu: dict[str, Any] | None = None
    mcp_servers: list[dict[str, Any]] = []
    env: dict[str, str] = {}
    skills_dir: str | None = None
    healthcheck: HealthcheckSection | None = None
    workdir: str | None = None
    network_mode: Literal["no-network", "public", "allowlist"] | None = None
    allow_internet: bool | None = None
    allowed_hosts: list[str] | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_older_names(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for old, new in (("memory", "memory_mb"), ("storage", "storage_mb")):
                text = str(data.get(old, "")).strip().upper()
                if text and new not in data:
                    data = {**data, new: int(float(text[:-1]) * _SIZES[text[-1]])}
        return data

    @field_validator("os")
    @classmethod
    def _in_small_letters(cls, value: str) -> str:
        return value.lower()


class VerifierSection(_Section):
    """``[verifier]``."""

    timeout_sec: float = Field(default=600.0, gt=0)
    env: dict[str, str] = {}
    user: str | int | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: dict[str, Any] | None = None
    collect: list[dict[str, Any]] = []
    network_mode: str | None = None
    allowed_hosts: list[str] | None = None


class SolutionSection(_Section):
    """``[solution]``."""

    env: dict[str, str] = {}


class TaskSection(_Section):
    """``[task]``."""

    name: str | None = None


class TaskToml(_Section):
    """``task.toml``. What is not named here is kept out: it has no effect on a rollout."""

    schema_version: str = "1.4"
    task: TaskSection = TaskSection()
    metadata: dict[str, Any] = {}
    agent: AgentSection = AgentSection()
    verifier: VerifierSection = VerifierSection()
    environment: EnvironmentSection = EnvironmentSection()
    solution: SolutionSection = SolutionSection()
    steps: list[dict[str, Any]] = []

    @model_validator(mode="before")
    @classmethod
    def _read_older_names(cls, data: Any) -> Any:
        return (
            {"schema_version": str(data["version"]), **data} if isinstance(data, dict) and "version" in data else data
        )


class TaskFolder(BaseModel):
    """One task: its folder and everything that was read from it."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    folder: Path
    settings: TaskToml
    instruction: str
    recipe: ImageRecipe | None

    @property
    def name(self) -> str:
        """The name of the task, or that of its folder."""
        return self.settings.task.name or self.folder.name

    @property
    def image(self) -> str | None:
        """The image that it asks for by name."""
        return self.settings.environment.docker_image

    @property
    def environment_folder(self) -> Path:
        """What a Dockerfile copies from."""
        return self.folder / "environment"

    @property
    def tests_folder(self) -> Path:
        """What arrives at ``/tests`` after the agent has ended."""
        return self.folder / "tests"

    @property
    def solution_folder(self) -> Path:
        """What arrives at ``/solution`` for the oracle."""
        return self.folder / "solution"

    def unsupported(self) -> list[str]:
        """What the task asks for that rollouts here don't have."""
        asked, verifier, agent = self.settings.environment, self.settings.verifier, self.settings.agent
        is_separate = verifier.environment_mode == "separate" or verifier.environment is not None
        hosts = (asked.allowed_hosts, verifier.allowed_hosts, agent.allowed_hosts)
        modes = {asked.network_mode, verifier.network_mode, agent.network_mode}
        reasons = {
            "several steps in one task ([[steps]]) are not supported": bool(self.settings.steps),
            "a separate environment for the verifier is not supported": is_separate,
            "[[verifier.collect]] is not supported": bool(verifier.collect),
            "an allow-list of hosts is not supported: there is no network": "allowlist" in modes or any(hosts),
            "it asks for the public network, and there is none": "public" in modes or asked.allow_internet is True,
            f"it asks for {asked.os}": asked.os != "linux",
            "it asks for GPUs": bool(asked.gpus),
            "it asks for TPUs": asked.tpu is not None,
            "MCP servers of a task are not supported": bool(asked.mcp_servers),
            "a folder of skills is not supported": asked.skills_dir is not None,
            "an earlier trajectory to continue is not supported": (self.folder / "trajectory.json").exists(),
            "several services (docker-compose) are not supported": any(
                (self.environment_folder / name).exists() for name in _COMPOSE
            ),
        }
        return [reason for reason, holds in reasons.items() if holds]


def find_task_folders(path: Path) -> list[Path]:
    """The folders of tasks: the path itself, or those below it, however deep; in the order of their paths."""
    if (path / "task.toml").is_file():
        return [path.resolve()]
    if not path.is_dir():
        raise ConfigError(f"{path}: no such folder", hint="name a folder of tasks, each with a task.toml")
    found = sorted(each.parent.resolve() for each in path.rglob("task.toml"))
    if not found:
        raise ConfigError(f"{path}: no task.toml in it or below", hint="name a folder of tasks in Harbor's format")
    return [each for each in found if not any(other in each.parents for other in found)]


def is_folder_of_tasks(path: Path) -> bool:
    """Whether a path is a folder with tasks, as opposed to a file of rows."""
    return path.is_dir() and next(path.rglob("task.toml"), None) is not None


def read_task_folder(folder: Path) -> TaskFolder:
    """A task; raises ``ConfigError`` if its files are not those of one."""
    try:
        settings = TaskToml.model_validate(tomllib.loads((folder / "task.toml").read_text("utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError) as error:
        raise ConfigError(f"{folder / 'task.toml'}: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{folder / 'task.toml'}: {place}: {first['msg']}") from None
    try:
        instruction = "" if settings.steps else (folder / "instruction.md").read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{folder / 'instruction.md'}: {error}") from None
    if not settings.steps and not (folder / "tests" / "test.sh").is_file():
        raise ConfigError(f"{folder}: there is no tests/test.sh")
    dockerfile = folder / "environment" / "Dockerfile"
    recipe = read_dockerfile(dockerfile) if dockerfile.is_file() else None
    without_canary = _CANARY.sub("", instruction).strip()
    return TaskFolder(folder=folder, settings=settings, instruction=without_canary, recipe=recipe)


def read_task_folders(path: Path) -> Iterator[TaskFolder | ConfigError]:
    """The tasks at a path, each read or with the error that says why it can't be."""
    for folder in find_task_folders(path):
        try:
            yield read_task_folder(folder)
        except ConfigError as error:
            yield error


def resolved(variables: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Variables with ``${NAME}`` and ``${NAME:-default}`` filled in; ``ConfigError`` if one has no value."""

    def value(found: re.Match[str]) -> str:
        name, default = found.groups()
        if name not in environment and default is None:
            raise ConfigError(f"the variable {name} is not set", hint=f"export {name}=…")
        return environment.get(name) or default or ""

    return {name: _VARIABLE.sub(value, text) for name, text in variables.items()}
