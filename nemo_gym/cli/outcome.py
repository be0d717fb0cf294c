"""How a command ends: the exit codes, and the error that means "you typed this wrong".

Exit codes are part of the interface, scripts branch on them:

    0    done
    1    a mistake in the configuration or its files, a check that did not hold, or a crash with its traceback
    2    a mistake in what was typed: unknown command, flag or parameter, missing or invalid value
    3    finished, but some rollouts failed; the failures are recorded
    130  interrupted; what was saved can be resumed
"""

from enum import IntEnum

from nemo_gym.errors import ConfigError


class Exit(IntEnum):
    """Exit code of a command."""

    OK = 0
    ERROR = 1
    USAGE = 2
    FAILURES = 3
    INTERRUPTED = 130


class UsageError(ConfigError):
    """What was typed can't be understood; the command did nothing."""


def exit_code(error: ConfigError) -> Exit:
    """Tell a slip on the command line from a mistake in the configuration."""
    return Exit.USAGE if isinstance(error, UsageError) else Exit.ERROR
