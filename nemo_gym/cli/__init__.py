"""The command line: one table of commands, one entry point, and the only code that prints.

What programs import from here (``RunHelper``, ``RunConfig``, the commands as functions) is loaded on first use. No
module of this package may have the same name as a command, because it would hide the command.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

_NAMES: Final = {
    "RunHelper": "nemo_gym.cli.hosting",
    "RunConfig": "nemo_gym.cli.parameters",
    "TestConfig": "nemo_gym.cli.parameters",
    "GlobalConfigDictParserConfig": "nemo_gym.global_config",
}


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(import_module(_NAMES[name]), name)
    # Modules of this package must not be returned: the import system asks here first, then imports them itself.
    is_module = find_spec(f"{__name__}.{name}") is not None
    commands = {} if is_module else import_module("nemo_gym.cli.commands").by_name()
    if name in commands:
        return _as_function(name, commands[name].summary)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _as_function(name: str, summary: str) -> Callable[[], None]:
    def command() -> None:
        _run_command(name)

    command.__name__ = command.__qualname__ = name
    command.__doc__ = f"{summary} Takes the arguments of this process, and exits with the code of an error."
    return command


def start_program() -> int:
    """Run the command line of this process. Console scripts call this, because Ctrl-C may come while modules load."""
    try:
        code: int = import_module("nemo_gym.cli.main").main()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    return code


def _run_command(name: str) -> None:
    """Run a command with the arguments of this process; exit with its code unless it succeeded."""
    code: int = import_module("nemo_gym.cli.main").main([f"ng_{name}", *sys.argv[1:]])
    if code:
        sys.exit(code)
