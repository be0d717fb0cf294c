"""Runs a Python program in the current interpreter as if the interpreter had been started with it."""

import atexit
import builtins
import gc
import os
import signal
import sys
import threading
import types
from collections.abc import Mapping
from typing import Final, NoReturn

NAME: Final = "program.py"
CANNOT_START: Final = 127


def write_files(folder: str, files: Mapping[str, bytes]) -> None:
    """Write files into the box; relative paths are below its folder."""
    for name, content in files.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)


def start_command(arguments: list[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process with another program."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and ignored signals stay ignored across exec
    try:
        os.execvpe(arguments[0], arguments, dict(environment))  # noqa: S606
    except OSError as error:
        os.write(2, f"{arguments[0]}: {error.strerror}\n".encode())
        os._exit(CANNOT_START)


def start_python(source: str, folder: str, environment: Mapping[str, str]) -> NoReturn:
    """Run the source as ``__main__``, and do what an interpreter does at its start and end."""
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [os.path.join(folder, NAME)]
    sys.path.insert(0, folder)
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False, buffering=1)  # noqa: SIM115
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=sys.argv[0], __builtins__=builtins)
    sys.modules["__main__"] = main
    gc.enable()
    code = 0
    try:
        exec(compile(source, sys.argv[0], "exec", dont_inherit=True), main.__dict__)
    except BaseException as error:  # noqa: BLE001 - whatever a program raises is its own affair
        code = _exit_code(error)
    os._exit(_leave(code))


def _exit_code(error: BaseException) -> int:
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        sys.stderr.write(f"{error.code}\n")
        return 1
    # The first frame is ours, and would not be in the traceback of a program that was started normally.
    error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ is not None else None
    sys.excepthook(type(error), error, error.__traceback__)
    return 1


def _leave(code: int) -> int:
    """End as an interpreter does: wait for threads, run exit handlers, flush the output."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
        atexit._run_exitfuncs()  # noqa: SLF001
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException as error:  # noqa: BLE001 - the program may have replaced any of these
        return _exit_code(error) or 120
    return code
