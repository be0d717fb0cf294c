"""How a copy of the supervisor becomes a program: it takes its pipes, is locked in, and then runs untrusted code."""

import atexit
import builtins
import fcntl
import gc
import os
import resource
import signal
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn, Protocol

from nemo_gym.sandbox.inside import kernel
from nemo_gym.sandbox.inside.limits import MIB, SandboxLimits

CANNOT_START: Final = 127
_SCRIPT: Final = "program.py"
_PIECE: Final = 1 << 16


class Confinement(Protocol):
    """A place that a process can be confined to."""

    def confine(self, limits: SandboxLimits) -> None:
        """Restrict the calling process to the box."""


@dataclass(frozen=True, slots=True)
class Pipes:
    """The supervisor's ends of a program's pipes."""

    stdin: int
    stdout: int
    stderr: int


@dataclass(frozen=True, slots=True)
class ProgramPlace:
    """Where a program runs, within which limits, and the one descriptor besides its pipes that it keeps."""

    box: Confinement
    limits: SandboxLimits
    folder: str
    keep: int | None = None


class UnconfinedError(Exception):
    """A process could not be confined, so it did not become a program."""


def fork_program(place: ProgramPlace, start: Callable[[], NoReturn]) -> tuple[int, Pipes]:
    """Fork a process that is locked in and then calls ``start``; returns its id and pipes once it is locked in."""
    pipes = [os.pipe() for _ in range(4)]
    pid = os.fork()
    if pid == 0:
        _become_program(pipes, place, start)
    (stdin, put), (out, stdout), (err, stderr), (report, status) = pipes
    # As long as the supervisor holds the program's ends, it never sees the end of the output.
    for descriptor in (stdin, stdout, stderr, status):
        os.close(descriptor)
    problem = b"".join(iter(lambda: os.read(report, _PIECE), b""))
    os.close(report)
    if problem == b"ok":
        return pid, Pipes(put, out, err)
    for descriptor in (put, out, err):
        os.close(descriptor)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise UnconfinedError(problem.decode("utf-8", "replace") or "the program's process ended early")


def _become_program(pipes: Sequence[tuple[int, int]], place: ProgramPlace, start: Callable[[], NoReturn]) -> NoReturn:
    try:
        (stdin, _), (_, stdout), (_, stderr), (_, status) = pipes
        # By way of higher numbers: a pipe may itself have one of the numbers 0 to 3, and would be overwritten.
        ends = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10) for descriptor in (stdin, stdout, stderr, status)]
        for number, descriptor in enumerate(ends):
            os.dup2(descriptor, number, inheritable=number < 3)
        os.closerange(4, 65536 if place.keep is None else place.keep)
        if place.keep is not None:
            os.closerange(place.keep + 1, 65536)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            _lock_in(place)
        except OSError as error:
            os.write(3, f"can't lock the program in: {error}".encode())
            os._exit(CANNOT_START)
        start()
    finally:
        os._exit(CANNOT_START)


def report_ready() -> None:
    """Tell the supervisor that nothing of ours can fail any more."""
    os.write(3, b"ok")
    os.close(3)


def _lock_in(place: ProgramPlace) -> None:
    limits = place.limits
    os.umask(0o022)
    os.chdir(place.folder)
    kernel.set_limit(resource.RLIMIT_CORE, 0)
    kernel.set_limit(resource.RLIMIT_MEMLOCK, 0)
    kernel.set_limit(resource.RLIMIT_MSGQUEUE, 0)
    kernel.set_limit(resource.RLIMIT_NOFILE, limits.open_files)
    kernel.set_limit(resource.RLIMIT_FSIZE, limits.file_mib * MIB)
    kernel.set_limit(resource.RLIMIT_AS, limits.memory_mib * MIB)
    kernel.set_limit(resource.RLIMIT_CPU, int(limits.cpu_s) + 1)
    place.box.confine(limits)  # last, because it also filters system calls


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
    sys.argv = [os.path.join(folder, _SCRIPT)]
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
