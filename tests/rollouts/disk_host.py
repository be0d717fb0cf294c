"""Runs a command again and again in processes that may write only so many bytes to a file; started by a test.

    disk_host.py WORD …

Each line on stdin is a number of bytes. The command runs in a fork under that limit, which the kernel keeps: a write
across it is short, one beyond it fails. The answer on stdout is a line of JSON with the exit code and what was said.
"""

import importlib
import json
import os
import resource
import sys
import traceback

from nemo_gym.cli.main import main

# What every round would import.
NEEDED = (
    "nemo_gym.cli.collection",
    "nemo_gym.rollouts.run_metrics",
    "nemo_gym.servers.gym",
    "resources_servers.example_single_tool_call.app",
    "responses_api_agents.simple_agent.app",
    "responses_api_models.openai_model.app",
)


def run(words: list[str], room: int, output: int) -> int:
    os.dup2(output, 1)
    os.dup2(output, 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
    return main(words)


def one_round(words: list[str], room: int) -> dict[str, object]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            code = run(words, room, writing)
        finally:
            if sys.exc_info()[0]:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, errors="replace") as said:
        text = said.read()
    return {"code": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "said": text}


def serve() -> None:
    for module in NEEDED:
        importlib.import_module(module)
    for line in sys.stdin:
        answer = one_round(sys.argv[1:], int(line))
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
