"""Writes MBPP's 500 problems as files of a workspace: the agent sees one assertion, hidden tests make all."""

from pathlib import Path
from typing import Any, Final

from benchmarks.mbpp.prepare import SOURCE
from nemo_gym.data.hub import fetch_rows, write_rows
from resources_servers.workspace.tools import declarations

OUTPUT: Final = Path(__file__).absolute().parent / "data" / "mbpp_workspace_benchmark.jsonl"
QUESTION: Final = (
    "{text} Write it into solution.py; it has to pass what is in test_shown.py, and more of the same kind."
)


def prepare() -> Path:
    """Write the rows and say where they are."""
    return write_rows(map(workspace_row, fetch_rows(SOURCE)), OUTPUT)


def workspace_row(row: dict[str, Any]) -> dict[str, Any]:
    """A problem as a row of the workspace."""
    setup, assertions = row["test_setup_code"].replace("\r\n", "\n"), row["test_list"]
    question = QUESTION.format(text=row["text"].strip())
    return {
        "responses_create_params": {"input": [{"role": "user", "content": question}], "tools": declarations()},
        "task_id": f"mbpp/{row['task_id']}",
        "question": question,
        "world": {"files": {"solution.py": "", "test_shown.py": file_of_tests(setup, assertions[:1])}},
        "tests": {"kind": "python", "files": {"test_hidden.py": file_of_tests(setup, assertions)}},
    }


def file_of_tests(setup: str, assertions: list[str]) -> str:
    """A file with a test for each assertion."""
    tests = [f"def test_{number}():\n    {assertion}\n" for number, assertion in enumerate(assertions, start=1)]
    return "\n\n".join([f"from solution import *\n{setup}".rstrip() + "\n", *tests])
