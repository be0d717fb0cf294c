"""What a command is: its names, its one line of summary, its examples, and where its code and parameters live.

Functions and parameter classes are named, not imported, so that a command pays only for what it uses.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

from nemo_gym.cli.flags import Flag
from nemo_gym.servers.startup import garbage_collection_paused

if TYPE_CHECKING:
    from pydantic import BaseModel

PREFIXES: Final = ("ng_", "nemo_gym_")
ROOTS: Final = ("ng", "gym")


@dataclass(frozen=True, slots=True)
class Command:
    """One command: what it is called, what it does, and where its code and its parameters live."""

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
        """The branch of the tree that it is on; empty for the few that hang on the root."""
        return self.path.rpartition(" ")[0]

    @property
    def spellings(self) -> tuple[str, ...]:
        """Everything that can be typed for it."""
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
