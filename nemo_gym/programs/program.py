"""What a program is: its command, its environment and its files, with the values of an attempt filled in.

Settings are templates. ``{base_url}`` (ends in ``/v1``), ``{root_url}`` (the same without), ``{api_key}``, ``{model}``,
``{prompt}``, ``{mcp_url}``, ``{deadline}`` (seconds since 1970), ``{home}`` and ``{workspace}`` are replaced; any other
brace is text, so JSON and TOML need no escapes. What stands under ``with_tools`` is added if the environment offers
tools by MCP. ``program: codex`` takes the settings of a ready-made program; settings beside it win.
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from nemo_gym.config.locate import find_readable
from nemo_gym.errors import ConfigError, did_you_mean

READY_MADE: Final = Path(__file__).parent / "ready_made"
DEFAULT_TIMEOUT_S: Final = 1800.0
DEFAULT_GRACE_S: Final = 5.0
VALUES: Final = (*("base_url", "root_url", "api_key", "model", "prompt", "mcp_url", "deadline", "home", "workspace"),)
_VALUE: Final = re.compile(r"\{(" + "|".join(VALUES) + r")\}")
_FINAL_ANSWER: Final = re.compile(r"text|stdout|file:.+|json:(/.*)?")
_FUNCTION: Final = re.compile(r".+\.py:\w+")
_PACKAGE: Final = re.compile(r"(npm:(@[\w.-]+/)?[\w.-]+@[\w.-]+|pip:[\w.-]+(\[[\w,-]+\])?==[\w.!+-]+)")


class Additions(BaseModel):
    """What a program needs to use tools by MCP, added to its settings."""

    model_config = ConfigDict(extra="forbid")

    command: list[str] = []
    env: dict[str, str] = {}
    files: dict[str, str] = {}


class Program(BaseModel):
    """The settings of a program."""

    program: str | None = None  # a ready-made one, or a YAML file with these settings
    install: list[str] = []  # packages with their versions: npm:NAME@VERSION, pip:NAME==VERSION
    command: list[str] = []
    env: dict[str, str] = {}
    files: dict[str, str] = {}  # by path: in the workspace, or in the home if it begins with ~/
    with_tools: Additions = Additions()
    timeout_s: float = Field(default=DEFAULT_TIMEOUT_S, gt=0)
    grace_s: float = Field(default=DEFAULT_GRACE_S, ge=0)  # between the request to stop and the end
    memory_mb: int | None = Field(default=4096, gt=0)  # of all its processes together
    final_answer: str = "text"  # of the main chain; or stdout, file:PATH, json:POINTER into what stdout holds
    where: Literal["host", "sandbox"] = "host"
    verify_unfinished: bool = False  # score what is there when time or memory is over

    @model_validator(mode="before")
    @classmethod
    def _with_ready_made(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not given.get("program"):
            return given
        return merged(ready_made(given["program"]), given)

    @field_validator("final_answer")
    @classmethod
    def _is_known(cls, given: str) -> str:
        if not _FINAL_ANSWER.fullmatch(given):
            raise ValueError("must be text, stdout, file:PATH or json:/POINTER")
        return given

    @field_validator("install")
    @classmethod
    def _are_pinned(cls, given: list[str]) -> list[str]:
        if wrong := [each for each in given if not _PACKAGE.fullmatch(each)]:
            raise ValueError(f"{wrong[0]} must name a package and its version: npm:NAME@1.2.3 or pip:NAME==1.2.3")
        return given

    @field_validator("files")
    @classmethod
    def _stay_inside(cls, given: dict[str, str]) -> dict[str, str]:
        for path in given:
            if Path(path.removeprefix("~/")).is_absolute() or ".." in Path(path).parts:
                raise ValueError(f"{path} must lie in the workspace (notes.txt) or in the home (~/.config/x.json)")
        return given

    def filled(self, values: Mapping[str, str]) -> "FilledProgram":
        """The command, environment and files of one attempt; tools are used if there is a ``mcp_url``."""
        more = self.with_tools if values.get("mcp_url") else Additions()
        return FilledProgram(
            command=[fill(part, values) for part in (*self.command, *more.command)],
            environment={name: fill(text, values) for name, text in {**self.env, **more.env}.items()},
            files={fill(path, values): fill(text, values) for path, text in {**self.files, **more.files}.items()},
        )

    @property
    def title(self) -> str:
        """What to call it."""
        return Path(self.program).stem if self.program else Path(self.command[0]).name if self.command else "program"

    @model_validator(mode="after")
    def _uses_tools_only_if_there_are(self) -> Self:
        texts = (*self.command, *self.env.values(), *self.files.values())
        if any("{mcp_url}" in text for text in texts):
            raise ValueError("{mcp_url} belongs under with_tools, because not every environment offers tools by MCP")
        return self


class FilledProgram(BaseModel):
    """A program with the values of an attempt."""

    command: list[str]
    environment: dict[str, str]
    files: dict[str, str]


def fill(template: str, values: Mapping[str, str]) -> str:
    """The text with the values of an attempt; a value that holds braces itself is not filled in again."""
    return _VALUE.sub(lambda found: values.get(found[1], found[0]), template)


def is_function_place(text: str) -> bool:
    """Whether this names a function in a file: ``my_agent.py:solve``."""
    return _FUNCTION.fullmatch(text) is not None


def ready_made_programs() -> list[str]:
    """The names of all ready-made programs."""
    return sorted(path.stem for path in READY_MADE.glob("*.yaml"))


def ready_made(name: str) -> dict[str, Any]:
    """The settings of a ready-made program, or those in a file of the user's own."""
    path = find_readable(name) if name.endswith((".yaml", ".yml")) else READY_MADE / f"{name}.yaml"
    if path is None or not path.is_file():
        known = did_you_mean(name, ready_made_programs(), available="Programs")
        raise ConfigError(f"there is no program {name!r}", hint=f"{known} Or set command: and what it needs yourself.")
    return dict(_settings_in(path))


@cache
def _settings_in(path: Path) -> Mapping[str, Any]:
    settings = yaml.safe_load(path.read_text("utf-8"))
    if not isinstance(settings, dict):
        raise ConfigError(f"{path} has no settings", hint="write command: and what the program needs, as YAML")
    return settings


def merged(base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with others on top; environments and files are joined, everything else is replaced."""
    result = {**base, **given}
    for name in ("env", "files"):
        result[name] = {**(base.get(name) or {}), **(given.get(name) or {})}
    return result
