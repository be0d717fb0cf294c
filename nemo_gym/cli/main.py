"""The entry point of all console scripts.

It finds the command, runs it, and turns the way it ended into an exit code. Only mistakes a user can fix are caught;
anything else is a bug and shows its traceback.
"""

import sys
from collections.abc import Sequence

from nemo_gym.cli import console, invocation, manual
from nemo_gym.cli.outcome import Exit, exit_code
from nemo_gym.errors import ConfigError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line (that of this process unless given, program name first) and return the exit code."""
    try:
        with console.logs():
            return _run(invocation.read(sys.argv if argv is None else argv))
    except ConfigError as error:
        console.error(str(error), hint=error.hint)
        return exit_code(error)
    except KeyboardInterrupt:
        console.note("interrupted")
        return Exit.INTERRUPTED


def _run(request: invocation.Invocation | invocation.HelpRequest) -> int:
    if isinstance(request, invocation.Invocation):
        return request.command.load_function()(request.overrides)
    return manual.show(request)
