"""Runs commands in forks of a process that has imported the program already, which saves each of them a second.

Started by ``forked_commands.py``. A line of JSON on stdin is a request, one on stdout the answer:

    {"start": [word, …], "folder": path, "environment": {…}, "stdout": path, "stderr": path, "file_bytes": number}
                      the id of the process, which is the leader of its own session
    {"wait": id}      its exit code, once it has ended
    {"poll": id}      its exit code, or null while it runs
"""

import ast
import asyncio
import contextlib
import gc
import importlib
import inspect
import json
import os
import resource
import runpy
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from nemo_gym.cli.commands import COMMANDS
from nemo_gym.cli.main import main

# What commands import when they need it, and almost all of them do.
NEEDED = ("nemo_gym.servers.gym", "responses_api_agents.simple_agent.app", "responses_api_models.openai_model.app")
# What takes seconds to import, and only commands need that name it.
HEAVY = ("reasoning_gym",)


def start(request: dict[str, Any]) -> int:
    child = os.fork()
    if child:
        return child
    code: Any = 1
    try:
        os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        redirect(request)
        code = run(request["start"])
    except SystemExit as end:
        code = end.code
    finally:
        if sys.exc_info()[0]:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        # Not sys.exit: what the server itself would do at its end is no business of its children.
        os._exit(code if isinstance(code, int) else int(code is not None))


def redirect(request: dict[str, Any]) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    if request["file_bytes"] is not None:
        # The kernel keeps this limit: a write across it is short, one beyond it fails.
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_bytes"], request["file_bytes"]))


def run(words: list[str]) -> int:
    match words:
        case ["bash", *_]:
            os.execvp(words[0], words)
        case ["python", "-m", module, *rest]:
            sys.argv = [module, *rest]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["python", file, *rest]:
            sys.argv = [file, *rest]
            run_file(file)
        case _:
            return int(main(words))
    return 0


def run_file(file: str) -> None:
    """A program, in which `await` may stand outside of functions, as snippets have it."""
    sys.path.insert(0, str(Path(file).parent.resolve()))
    code = compile(Path(file).read_text("utf-8"), file, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, {"__name__": "__main__", "__file__": file})
    if inspect.iscoroutine(result):
        asyncio.run(result)


def warm_up(words: list[str]) -> None:
    for module in HEAVY:
        if any(module in word for word in words):
            with contextlib.suppress(ImportError):
                importlib.import_module(module)


def answer(request: dict[str, Any]) -> int | None:
    if "start" in request:
        warm_up(request["start"])
        return start(request)
    process = request.get("wait") or request["poll"]
    ended, status = os.waitpid(process, 0 if "wait" in request else os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def serve() -> None:
    for command in COMMANDS:
        command.load_function()
    for module in NEEDED:
        importlib.import_module(module)
    gc.freeze()  # otherwise every fork would look through all modules at its first collections
    for line in sys.stdin:
        sys.stdout.write(f"{json.dumps(answer(json.loads(line)))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
