"""The entry point of all console scripts: finds the command, runs it, and returns its exit code.

The program name comes first. ``ng_run …`` and ``nemo_gym_run …`` name a command; ``ng`` and ``gym`` take it from their
first arguments, either by name (``ng run``) or by its place in the tree (``ng env start``). Only mistakes that a user
can fix are caught; anything else is a bug and shows its traceback.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final

from nemo_gym.cli import console, manual
from nemo_gym.cli.command import PREFIXES, ROOTS, Arguments, Command, HelpRequest, exit_code, read_arguments
from nemo_gym.cli.commands import COMMANDS, GROUPS, by_name
from nemo_gym.errors import ConfigError, ExitCode, UsageError, did_you_mean
from nemo_gym.io.files import STORAGE_ERRORS

HELP_WORDS: Final = frozenset(
    {
        "-h",
        "--help",
        *(f"{plus}{key}={yes}" for plus in ("", "+", "++") for key in ("h", "help") for yes in ("true", "True")),
    }
)


@dataclass(frozen=True, slots=True)
class Invocation:
    """A command and its arguments."""

    command: Command
    arguments: Arguments = field(default_factory=Arguments)


def read_command_line(argv: Sequence[str]) -> Invocation | HelpRequest:
    """Read a whole command line, including the program name."""
    program = PurePath(argv[0]).name.removesuffix(".exe")
    arguments = list(argv[1:])
    for prefix in PREFIXES:
        if program.startswith(prefix):
            return _invoke(_named(program.removeprefix(prefix)), arguments)
    return _read_tree(arguments)


def _read_tree(arguments: list[str]) -> Invocation | HelpRequest:
    if not arguments:
        return HelpRequest(requested=False)
    first, rest = arguments[0], arguments[1:]
    if first in HELP_WORDS:
        return HelpRequest()
    if first == "--version":
        return _invoke(by_name()["version"], rest)
    if first and first in GROUPS:  # the empty group holds the commands at the root
        return _read_group(first, rest)
    return _invoke(_named(first.replace("-", "_")), rest)


def _read_group(group: str, arguments: list[str]) -> Invocation | HelpRequest:
    if not arguments or arguments[0] in HELP_WORDS:
        return HelpRequest(group=group, requested=bool(arguments))
    members = {command.path.partition(" ")[2]: command for command in COMMANDS if command.group == group}
    if arguments[0] in members:
        return _invoke(members[arguments[0]], arguments[1:])
    raise UsageError(
        f"unknown command {ROOTS[0]} {group} {arguments[0]}",
        hint=did_you_mean(arguments[0], members, available="Commands"),
    )


def _named(name: str) -> Command:
    table = by_name()
    if name in table:
        return table[name]
    known = {*table, *filter(None, GROUPS)}
    raise UsageError(f"unknown command {name}", hint=did_you_mean(name, known, available="Commands"))


def _invoke(command: Command, arguments: list[str]) -> Invocation | HelpRequest:
    if HELP_WORDS.intersection(arguments):
        return HelpRequest(command)
    return Invocation(command, read_arguments(arguments, command.flags))


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
        if error.errno not in STORAGE_ERRORS:
            raise
        console.error(
            f"{error.filename or 'storage'}: {error.strerror}",
            hint="make room or correct the permissions, then run again",
        )
        return ExitCode.ERROR
    except KeyboardInterrupt:
        console.note("interrupted")
        return ExitCode.INTERRUPTED


def _run(request: Invocation | HelpRequest) -> int:
    if isinstance(request, Invocation):
        return request.command.load_function()(request.arguments)
    return manual.show(request)
