"""Runs commands in forks of a process that has imported the program already: as in processes of their own, at once.

A line of JSON on stdin is a request, a number on stdout the answer:

    {"start": [word, …], "folder": path, "environment": {…}, "output": path}    the id of the process
    {"wait": id}                                                                 its exit code
"""

import ast
import asyncio
import contextlib
import importlib
import inspect
import json
import os
import runpy
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


def start(words: list[str], folder: str, environment: dict[str, str], output: str) -> int:
    child = os.fork()
    if child:
        return child
    code: Any = 1
    try:
        os.setsid()
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sink = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        code = run(words)
    except SystemExit as end:
        code = end.code
    finally:
        if sys.exc_info()[0]:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


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


def serve() -> None:
    for command in COMMANDS:
        command.load_function()
    for module in NEEDED:
        importlib.import_module(module)
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        else:
            warm_up(request["start"])
            answer = start(request["start"], request["folder"], request["environment"], request["output"])
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
