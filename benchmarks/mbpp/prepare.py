"""Writes the 500 test problems of MBPP as rows, from the hub, with the three examples of the published prompt.

Most solutions are tested from another process, which they can't touch. The tests of a few problems need names that only
the solution has, such as a class of nodes; these run behind the solution, as they do in the reference.
"""

import ast
import builtins
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from nemo_gym.data.hub import AS_PARQUET, HubFile, Row, fetch_rows, write_rows

DATASET: Final = "google-research-datasets/mbpp"
SOURCE: Final = HubFile(DATASET, "full/test/0000.parquet", rows=500, revision=AS_PARQUET)
EXAMPLES: Final = HubFile(DATASET, "full/prompt/0000.parquet", rows=10, revision=AS_PARQUET)
EXAMPLE_IDS: Final = (2, 3, 4)
OUTPUT: Final = Path(__file__).absolute().parent / "data" / "mbpp_benchmark.jsonl"
CHECK: Final = """\
TESTS = {tests!r}


def check(candidate):
    for test in TESTS:
        exec(test, globals())
"""
PASSED: Final = "all of the tests were passed"


def prepare() -> Path:
    """Write the rows and say where they are."""
    examples = "".join(example(row) for row in fetch_rows(EXAMPLES) if row["task_id"] in EXAMPLE_IDS)
    return write_rows((task(row, examples) for row in fetch_rows(SOURCE)), OUTPUT)


def example(row: Row) -> str:
    """A solved problem, as the prompt shows it."""
    tests = "\n".join(row["test_list"])
    return (
        f"You are an expert Python programmer, and here is your task: {row['text']} Your code should pass these tests:"
        f"\n\n{tests}\n[BEGIN]\n{_plain(row['code'])}\n[DONE]\n\n"
    )


def task(row: Row, examples: str) -> Row:
    """A problem as a row of python_code."""
    tests, setup = list(row["test_list"]), _plain(row["test_setup_code"])
    return {
        "task_id": f"mbpp/{row['task_id']}",
        "question": row["text"],
        "shown_tests": "\n".join(tests),
        "examples": examples,
        "tests": hidden_tests(tests, setup, _plain(row["code"])),
    }


def hidden_tests(tests: Sequence[str], setup: str, reference: str) -> dict[str, Any]:
    """How a solution is tested; the reference solution shows which function the tests are about."""
    defined = {node.name for node in ast.parse(reference).body if isinstance(node, ast.FunctionDef)}
    used = list(dict.fromkeys(name for test in tests for name in free_names(test)))
    entry_points = [name for name in used if name in defined]
    if setup or used != entry_points[:1]:
        after = "\n".join([setup, *tests, f"print({PASSED!r})"])
        return {"kind": "program", "after": after, "cases": [{"stdin": "", "stdout": PASSED}]}
    return {"kind": "function", "entry_point": entry_points[0], "test": CHECK.format(tests=list(tests))}


def free_names(source: str) -> Iterator[str]:
    """The names that a test takes from elsewhere: no builtins, and none that it binds itself."""
    nodes = list(ast.walk(ast.parse(source)))
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)} | set(dir(builtins))
    for node in nodes:
        if isinstance(node, ast.Name) and node.id not in bound:
            yield node.id


def _plain(code: str) -> str:
    return code.replace("\r\n", "\n").strip()
