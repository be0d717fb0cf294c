"""The entry point of all console scripts: finds the command, runs it, and returns its exit code.

The program name comes first. ``ng_run …`` and ``nemo_gym_run …`` name a command; ``ng`` and ``gym`` take it from their
first words, either by name (``ng run``) or by its place in the tree (``ng env start``). Only mistakes that a user can
fix are caught; anything else is a bug and shows its traceback.
"""

import errno
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from nemo_gym.cli import console, manual
from nemo_gym.cli.command import PREFIXES, ROOTS, Command, HelpRequest, exit_code, to_overrides
from nemo_gym.cli.commands import COMMANDS, GROUPS, by_name
from nemo_gym.errors import ConfigError, ExitCode, UsageError, did_you_mean

HELP_WORDS: Final = frozenset(
    {
        "-h",
        "--help",
        *(f"{plus}{key}={yes}" for plus in ("", "+", "++") for key in ("h", "help") for yes in ("true", "True")),
    }
)


@dataclass(frozen=True, slots=True)
class Invocation:
    """A command and its overrides."""

    command: Command
    overrides: tuple[str, ...] = ()


def read_command_line(argv: Sequence[str]) -> Invocation | HelpRequest:
    """Read a whole command line, including the program name."""
    program = PurePath(argv[0]).name.removesuffix(".exe")
    words = list(argv[1:])
    for prefix in PREFIXES:
        if program.startswith(prefix):
            return _invoke(_named(program.removeprefix(prefix)), words)
    return _read_tree(words)


def _read_tree(words: list[str]) -> Invocation | HelpRequest:
    if not words:
        return HelpRequest(asked=False)
    first, rest = words[0], words[1:]
    if first in HELP_WORDS:
        return HelpRequest()
    if first == "--version":
        return _invoke(by_name()["version"], rest)
    if first and first in GROUPS:  # the empty group holds the commands at the root
        return _read_group(first, rest)
    return _invoke(_named(first.replace("-", "_")), rest)


def _read_group(group: str, words: list[str]) -> Invocation | HelpRequest:
    if not words or words[0] in HELP_WORDS:
        return HelpRequest(group=group, asked=bool(words))
    members = {command.path.partition(" ")[2]: command for command in COMMANDS if command.group == group}
    if words[0] in members:
        return _invoke(members[words[0]], words[1:])
    raise UsageError(
        f"unknown command {ROOTS[0]} {group} {words[0]}", hint=did_you_mean(words[0], members, available="Commands")
    )


def _named(name: str) -> Command:
    table = by_name()
    if name in table:
        return table[name]
    known = {*table, *filter(None, GROUPS)}
    raise UsageError(f"unknown command {name}", hint=did_you_mean(name, known, available="Commands"))


def _invoke(command: Command, words: list[str]) -> Invocation | HelpRequest:
    if HELP_WORDS.intersection(words):
        return HelpRequest(command)
    return Invocation(command, tuple(to_overrides(words, command.flags)))


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (by default that of this process, program name first) and return the exit code."""
    # Without this, the threads of numpy's OpenBLAS spin for a tenth of a second when a command starts.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    try:
        with console.logs():
            return _run(read_command_line(sys.argv if argv is None else argv))
    except ConfigError as error:
        console.error(str(error), hint=error.hint)
        return exit_code(error)
    except OSError as error:
        if error.errno not in _STORAGE:
            raise
        console.error(
            f"{error.filename or 'storage'}: {error.strerror}",
            hint="make room or correct the permissions, then run again",
        )
        return ExitCode.ERROR
    except KeyboardInterrupt:
        console.note("interrupted")
        return ExitCode.INTERRUPTED


# What only the user can change. Anything else that the operating system refuses is our bug.
_STORAGE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM})


def _run(request: Invocation | HelpRequest) -> int:
    if isinstance(request, Invocation):
        return request.command.load_function()(request.overrides)
    return manual.show(request)
