"""What a command is: its names, flags, summary and examples, and how it ends.

A :class:`Command` names its function and its parameter class instead of importing them, so that a command loads only
what it uses.

Exit codes are part of the interface, because scripts branch on them:

    0    success
    1    a mistake in the configuration or its files, a failed check, or a crash with its traceback
    2    a mistake on the command line: unknown command, flag or parameter, missing or invalid value
    3    finished, but some rollouts failed; the failures are recorded
    130  interrupted; what was saved can be resumed
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

from nemo_gym.cli.flags import Flag
from nemo_gym.errors import ConfigError, ExitCode, UsageError
from nemo_gym.io.process import garbage_collection_paused

if TYPE_CHECKING:
    from pydantic import BaseModel

# The environment used in the examples of help.
EXAMPLE: Final = "resources_servers/example_single_tool_call"
EXAMPLE_CONFIG: Final = f"{EXAMPLE}/configs/example_single_tool_call.yaml"
EXAMPLE_CONFIGS: Final = (
    f'"+config_paths=[{EXAMPLE_CONFIG},responses_api_models/openai_model/configs/openai_model.yaml]"'
)

PREFIXES: Final = ("ng_", "nemo_gym_")
ROOTS: Final = ("ng", "gym")


@dataclass(frozen=True, slots=True)
class Command:
    """One command: its names, what it does, and where its code and its parameters are defined."""

    name: str
    path: str
    function: str
    parameters: str | None
    summary: str
    examples: tuple[str, ...]
    flags: tuple[Flag, ...] = ()
    open_ended: bool = False  # takes any key of the configuration, not only the parameters listed

    @property
    def script(self) -> str:
        """The name of the console script that people type most."""
        return PREFIXES[0] + self.name

    @property
    def group(self) -> str:
        """The group in the ``ng`` tree; empty for the few commands at the root."""
        return self.path.rpartition(" ")[0]

    @property
    def spellings(self) -> tuple[str, ...]:
        """All names under which the command can be typed."""
        scripts = (prefix + self.name for prefix in PREFIXES)
        return tuple(dict.fromkeys((*scripts, f"{ROOTS[0]} {self.path}", f"{ROOTS[0]} {self.name}")))

    def load_function(self) -> Callable[[Sequence[str]], int]:
        """Import the function, which takes the overrides and returns the exit code."""
        return cast("Callable[[Sequence[str]], int]", _load(self.function))

    def load_parameters(self) -> "type[BaseModel] | None":
        """Import the class that describes the parameters."""
        return cast("type[BaseModel]", _load(self.parameters)) if self.parameters else None


def _load(reference: str) -> Any:
    module, _, name = reference.partition(":")
    with garbage_collection_paused():
        return getattr(import_module(module), name)


@dataclass(frozen=True, slots=True)
class HelpRequest:
    """A request for help about a command, a group (``env``) or, with an empty group, all commands."""

    command: Command | None = None
    group: str = ""
    asked: bool = True


def exit_code(error: ConfigError) -> ExitCode:
    """Distinguish a mistake on the command line from one in the configuration."""
    return ExitCode.USAGE if isinstance(error, UsageError) else ExitCode.ERROR
