"""The row of a task: what a model is told about the failure, and what verification needs."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from nemo_gym.data.task_generator import Row
from resources_servers.code_repair.mutations import Mutation
from resources_servers.code_repair.packages import Package
from resources_servers.code_repair.tasks import RepairTests, file_of
from resources_servers.workspace.tools import declarations

MOST_MESSAGES: Final = 3
MOST_CHARACTERS: Final = 300
_SYSTEM: Final = (
    "You repair a Python package in a sandbox. Use the tools to read its files, run its tests and edit its source. "
    "Tests that you can't see decide whether it is repaired, so correct the fault itself; changes to tests do not "
    "count. When you are done, say in a sentence what was wrong."
)


def task_row(
    package: Package,
    mutations: Sequence[Mutation],
    tests: RepairTests,
    messages: Mapping[str, str],
    difficulty: int,
) -> Row:
    """A line of a task file."""
    question = _shown_report(package, tests, messages) if tests.shown else _hidden_report(package, tests, messages)
    row: dict[str, Any] = {
        "responses_create_params": {
            "input": [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": question}],
            "tools": declarations(),
        },
        "question": question,
        "difficulty": difficulty,
        "package": package.name,
        "version": package.archive.version,
        "kind": "+".join(sorted({each.kind for each in mutations})),
        "mutations": [each.model_dump() for each in mutations],
        "tests": tests.model_dump(),
    }
    return row


def _shown_report(package: Package, tests: RepairTests, messages: Mapping[str, str]) -> str:
    assert tests.shown is not None
    return (
        f"A test of {package.name} fails since the last change of the package:\n\n"
        f"    python -m pytest {tests.shown}\n    {_line(messages[tests.shown])}\n\n"
        f"The source is in {package.source}. Find the fault and correct it."
    )


def _hidden_report(package: Package, tests: RepairTests, messages: Mapping[str, str]) -> str:
    listed = "\n".join(f"    {_title(name)}: {_line(messages[name])}" for name in tests.failing[:MOST_MESSAGES])
    more = len(tests.failing) - MOST_MESSAGES
    rest = f"\n    … and {more} more" if more > 0 else ""
    return (
        f"Since the last change of {package.name}, {len(tests.failing)} of its tests fail, which are not in this "
        f"repository:\n\n{listed}{rest}\n\nThe source is in {package.source}. Find what is wrong and correct it."
    )


def _title(name: str) -> str:
    return f"{name.rpartition('::')[2]} ({file_of(name)})"


def _line(message: str) -> str:
    """The first line of a message, at most so long."""
    first = message.strip().partition("\n")[0] or "(no message)"
    return first if len(first) <= MOST_CHARACTERS else f"{first[:MOST_CHARACTERS]}…"
