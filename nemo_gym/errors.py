"""The exception tree of the project.

    Exception
    ├── ConfigError                        the user can fix it: what is wrong, where, and what to do
    │   ├── UsageError                     the command line is wrong; the command did nothing
    │   ├── ConfigPathNotFoundError        (FileNotFoundError)  a file that was named does not exist
    │   ├── MalformedConfigPathsError      (ValueError)         ``config_paths`` is not a list of strings
    │   ├── ConfigMissingValuesError       (ValueError)         values left as ``???``
    │   ├── ServerRefNotFoundError         (ValueError)         a reference to an undefined server
    │   ├── InheritPathNotFoundError       (ValueError)         ``_inherit_from`` / ``_copy`` of a missing key
    │   ├── DeleteKeyNotFoundError         (KeyError)           ``_delete_key`` of a missing key
    │   ├── NoServerInstancesError         (ValueError)         nothing to run
    │   ├── AlmostServerError              (ValueError)         meant to be a server, but not valid
    │   ├── AgentWithoutEnvironmentServerError   (ValueError)   an agent has none, although each must have one
    │   ├── AmbiguousAgentRenameError      (ValueError)         an agent that a server names was moved to several names
    │   ├── AmbiguousEnvironmentServerError  (ValueError)       two servers stand for one agent
    │   └── UnsupportedModelPairingError   (ValueError)         an environment does not take this kind of model server
    └── RolloutError                       one rollout failed: it is recorded as data, the others continue

Any other exception is a bug and ends the program. ``ExitCode`` lists the exit codes of commands.
"""

import difflib
from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit code of a command."""

    OK = 0
    ERROR = 1  # a mistake in the configuration
    USAGE = 2  # a mistake on the command line
    FAILURES = 3  # some rollouts failed, or something else did after others were saved
    INTERRUPTED = 130


class ConfigError(Exception):
    """A mistake in a command, file or setting. The command line prints it without a traceback."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint:  # so that tracebacks, and cells of a notebook, show it too
            self.add_note(f"\nhint: {hint}")

    def reword(self, hint: str) -> None:
        """Give the hint other words."""
        self.hint = hint
        self.__notes__ = [f"\nhint: {hint}"]

    def __str__(self) -> str:
        return self.message


class UnfinishedRunError(ConfigError):
    """An error that ended a run after it had saved rollouts."""


class UsageError(ConfigError):
    """The command line is wrong; the command did nothing."""


class ConfigPathNotFoundError(ConfigError, FileNotFoundError):
    """A file named by a command or configuration does not exist. The message lists where it was looked for."""


class MalformedConfigPathsError(UsageError, ValueError):
    """``config_paths`` is not a list of strings."""


class ConfigMissingValuesError(ConfigError, ValueError):
    """Required values are still ``???`` after all sources were merged."""


class ServerRefNotFoundError(ConfigError, ValueError):
    """A server reference names an instance that the configuration does not define."""


class InheritPathNotFoundError(ConfigError, ValueError):
    """The source of an ``_inherit_from`` or ``_copy`` does not exist."""


class DeleteKeyNotFoundError(ConfigError, KeyError):
    """A ``_delete_key`` names a key that is neither defined there nor inherited."""


class NoServerInstancesError(ConfigError, ValueError):
    """The configuration defines no server, so there is nothing to run."""


class AlmostServerError(ConfigError, ValueError):
    """A block is meant to be a server but is not valid."""


class AgentWithoutEnvironmentServerError(ConfigError, ValueError):
    """No environment server stands for an agent, although the configuration demands one for each."""


class AmbiguousAgentRenameError(ConfigError, ValueError):
    """An environment server refers to an agent that was moved to several new names."""


class AmbiguousEnvironmentServerError(ConfigError, ValueError):
    """Several environment servers stand for the agent of a rollout."""


class UnsupportedModelPairingError(ConfigError, ValueError):
    """An environment is used with a kind of model server that it does not take."""


class RolloutError(Exception):
    """One rollout failed. It is classified once, recorded, and never ends the run."""


def counted(number: int, noun: str) -> str:
    """A number of things, for messages: ``1 rollout``, ``2 rollouts``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Up to three known names that resemble the given one, the most similar first, or that have it as a part."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    return close or [one for one in names if name in one.split("_")][:3]


def did_you_mean(name: str, known: Iterable[str], *, available: str) -> str:
    """A sentence that names the most similar candidates or, if none is similar, all of them."""
    candidates = sorted(known)
    if near := nearest(name, candidates):
        return f"Did you mean: {' or '.join(map(repr, near))}?"
    return f"{available}: {', '.join(map(repr, candidates)) or '(none)'}"
