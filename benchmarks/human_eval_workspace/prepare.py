"""Writes HumanEval's 164 problems as files of a workspace: the agent completes one, and hidden tests import it."""

from pathlib import Path
from typing import Any, Final

from benchmarks.human_eval.prepare import read_problems
from nemo_gym.data.hub import write_rows
from resources_servers.workspace.tools import declarations

OUTPUT: Final = Path(__file__).absolute().parent / "data" / "human_eval_workspace_benchmark.jsonl"
QUESTION: Final = "Complete the function {name} in solution.py. Try it out before you say that you are done."
# The tests of the problem call ``check`` with the function.
TESTS: Final = (
    "from solution import *\nfrom solution import {name}\n\n{test}\n\n\ndef test_solution():\n    check({name})\n"
)


def prepare() -> Path:
    """Write the rows and say where they are."""
    return write_rows(map(workspace_row, read_problems()), OUTPUT)


def workspace_row(problem: dict[str, Any]) -> dict[str, Any]:
    """A problem as a row of the workspace; the file ends where the model of the one-shot form would begin."""
    name = problem["entry_point"]
    question = QUESTION.format(name=name)
    return {
        "responses_create_params": {"input": [{"role": "user", "content": question}], "tools": declarations()},
        "task_id": problem["task_id"],
        "question": question,
        "world": {"files": {"solution.py": problem["prompt"] + "    raise NotImplementedError\n"}},
        "tests": {"kind": "python", "files": {"test_hidden.py": TESTS.format(name=name, test=problem["test"])}},
    }
