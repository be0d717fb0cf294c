"""The process in which a solution runs. It knows the solution and what it is called with, never what is expected."""

import ctypes
import os
import select
import signal
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from resources_servers.python_code.plain import receive_anything, send_plain

MAX_REASON = 500
PR_SET_DUMPABLE = 4


@dataclass(frozen=True)
class Channel:
    """The judge's ends of the pipes."""

    answers: int
    questions: int


def start_solver() -> Channel:
    """Fork the solution's process. To be called before anything about the tests is known."""
    (questions, to_questions), (answers, to_answers) = os.pipe(), os.pipe()
    if os.fork() == 0:
        try:
            # The solution must not read the tests from standard input or write the verdict to standard output.
            nothing = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(nothing, descriptor)
            os.close(to_questions)
            os.close(answers)
            _solve(questions, to_answers)
        finally:
            os._exit(1)  # this process must never run the judge's code
    os.close(questions)
    os.close(to_answers)
    return Channel(answers, to_questions)


def hide_memory() -> None:
    """Keep processes of the same user from looking into this one."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "can't hide the memory of the judge")


def describe(error: BaseException) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:MAX_REASON].rstrip(": ")


def _solve(questions: int, answers: int) -> NoReturn:
    """Answer until the judge is gone. From the first ``load`` on, this process belongs to the solution."""
    function: Callable[..., Any] | None = None
    while True:
        kind, *question = receive_anything(questions)
        try:
            if kind == "load":
                function = _define(*question)
                answer: tuple[Any, ...] = ("loaded",)
            elif kind == "call":
                assert function is not None, "loaded first"
                answer = (
                    "returned",
                    function(*question[0], **question[1]),
                    [_changeable(each) for each in question[0]],
                )
            else:
                answer = ("ran", *_run_program(*question))
            send_plain(answers, *answer)
        except (Exception, SystemExit) as error:
            text = str(error) if isinstance(error, Exception) else "exits"
            send_plain(answers, "raised", type(error).__name__, text[:MAX_REASON])


def _changeable(argument: Any) -> Any:
    """An argument, if tests can see what a function does to it."""
    return argument if isinstance(argument, list | dict | set) else None


def _define(source: str, entry_point: str) -> Callable[..., Any]:
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    exec(compile(source, "solution.py", "exec"), module.__dict__)
    function: Callable[..., Any] | None = module.__dict__.get(entry_point)
    if not callable(function):
        raise NameError(f"{entry_point} is not defined")  # noqa: TRY004 - as Python would say it
    return function


def _run_program(source: str, stdin: str, seconds: float) -> tuple[int | None, str, str]:
    """Run the solution in a copy of this process: exit code (None if too slow), output, last line of errors."""
    hide_memory()  # the program could otherwise change this process, which reports how it ended
    with open("stdin", "wb") as file:
        file.write(stdin.encode())
    pid = os.fork()
    if pid == 0:
        try:
            _become_program(source)
        finally:
            os._exit(1)
    # A descriptor can be waited for with a time limit, unlike a process id.
    process = os.pidfd_open(pid)
    poller = select.poll()
    poller.register(process, select.POLLIN)
    in_time = bool(poller.poll(seconds * 1000))
    os.close(process)
    os.kill(pid, signal.SIGKILL)  # does nothing to a process that has ended and is not reaped yet
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    errors = _content("stderr").strip().splitlines() or [""]
    return code if in_time else None, _content("stdout"), errors[-1][:MAX_REASON]


def _become_program(source: str) -> NoReturn:
    """Run as ``__main__``, from a file to files."""
    writing = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for descriptor, (name, flags) in enumerate((("stdin", os.O_RDONLY), ("stdout", writing), ("stderr", writing))):
        os.dup2(os.open(name, flags, 0o600), descriptor)
    os.closerange(3, 256)  # the program must not talk to the judge
    sys.stdin = open(0, encoding="utf-8", errors="replace")
    sys.stdout = open(1, "w", encoding="utf-8", errors="replace")
    sys.stderr = open(2, "w", encoding="utf-8", errors="replace")
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    code = 0
    try:
        exec(compile(source, "solution.py", "exec"), module.__dict__)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        sys.stderr.write(describe(error) + "\n")
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


def _content(name: str) -> str:
    with open(name, "rb") as file:
        return file.read().decode("utf-8", "replace")
