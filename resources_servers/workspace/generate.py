"""Writes workspace tasks: ``python -m resources_servers.workspace.generate --n 100 --seed 0 --output tasks.jsonl``.

The difficulty is the number of chores in one workspace; each has a folder of its own if there are several.
"""

import itertools
from collections.abc import Iterator
from random import Random
from typing import Final

from nemo_gym.data.task_generator import Row, TaskGenerator
from resources_servers.workspace.chores import CHORES, Chore
from resources_servers.workspace.tools import declarations

SYSTEM: Final = (
    "You work in a folder on a Linux machine. Use the tools to look at the files, change them and check your work. "
    "Python and the usual commands are there; there is no network. Say in one sentence what you did when you are done."
)


def draw(rng: Random, difficulty: int) -> Iterator[Row]:
    """Endless tasks, the chores in equal parts."""
    for first in itertools.cycle(range(len(CHORES))):
        others = rng.sample([other for other in range(len(CHORES)) if other != first], difficulty - 1)
        yield _row([CHORES[index](rng) for index in (first, *others)])


def _row(chores: list[Chore]) -> Row:
    if len(chores) == 1:
        return _task(chores[0].question, chores, [""])
    folders = [f"job{number}/" for number in range(1, len(chores) + 1)]
    jobs = [f"In the folder {folder} {chore.question}" for folder, chore in zip(folders, chores, strict=True)]
    return _task("There are several jobs. " + " ".join(jobs), chores, folders)


def _task(question: str, chores: list[Chore], folders: list[str]) -> Row:
    placed = list(zip(folders, chores, strict=True))
    tests = {f"{folder}{path}": _in_folder(folder, text) for folder, c in placed for path, text in c.tests.items()}
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    return {
        "responses_create_params": {"input": messages, "tools": declarations()},
        "category": "+".join(chore.category for chore in chores),
        "difficulty": len(chores),
        "question": question,
        "world": {"files": {f"{folder}{path}": text for folder, c in placed for path, text in c.files.items()}},
        "tests": {
            "kind": "python",
            "files": tests,
            "guards": [f"{folder}{name}" for folder, c in placed for name in c.guards],
        },
        "solution": {f"{folder}{path}": text for folder, chore in placed for path, text in chore.solution.items()},
    }


def _in_folder(folder: str, test: str) -> str:
    """A test that runs in its chore's folder, wherever it is started."""
    if not folder:
        return test
    name = folder.rstrip("/")
    return f"import os\nimport sys\n\nos.chdir({name!r})\nsys.path.insert(0, os.getcwd())\n{test}"


GENERATOR: Final = TaskGenerator("workspace", draw, identity=("question", "world"), levels=(1, 2, 3))

if __name__ == "__main__":
    GENERATOR.main()
