"""Writes tasks: ``python -m resources_servers.format_following.generate --n 100 --seed 0 --output tasks.jsonl``.

The same arguments always give the same bytes. No prompt occurs twice, and none from an ``--exclude`` file is used, so
that training and validation data stay apart. The difficulty is the number of demands on one answer.
"""

import argparse
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from random import Random
from typing import Any, Final

from nemo_gym.data.task_generator import GeneratorCommand, Row, check_request
from nemo_gym.errors import ConfigError
from resources_servers.format_following.checks import parse_checks
from resources_servers.format_following.tasks import DEMONSTRATIONS, GOALS, Demand, Goal, Option

LEVELS: Final = (1, 2, 3)
MAX_TRIES: Final = 1000
DEFAULT_SHOTS: Final = 1
# Checks that every single word of an answer must pass, those that another demand needs included.
WORD_LIMITS: Final = frozenset({"excludes_letter", "excludes_word", "each_word_starts_with", "word_length"})
SYSTEM: Final = "Answer in exactly the form that is asked for."


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt and what its answer must look like. The goal's own check comes first, if it has one."""

    difficulty: int
    goal: str
    prompt: str
    checks: tuple[dict[str, Any], ...]


def generate(n: int, *, seed: int, difficulty: int, exclude: frozenset[str] = frozenset()) -> list[Task]:
    """Make ``n`` different tasks of one difficulty, with equal shares of each kind of first demand."""
    check_request(n, difficulty, LEVELS)
    rng = Random(f"{seed}/{difficulty}")  # noqa: S311 - tasks, not secrets
    tasks = list(itertools.islice(_fresh(rng, difficulty, set(exclude)), n))
    if len(tasks) < n:
        raise ConfigError(
            f"there are only {len(tasks)} different tasks of difficulty {difficulty}",
            hint="ask for fewer tasks or another difficulty",
        )
    return tasks


def task_row(task: Task, *, shots: int = DEFAULT_SHOTS) -> dict[str, Any]:
    """Make a line of a task file from a task."""
    return {
        "responses_create_params": {
            "input": [
                {"role": "system", "content": SYSTEM},
                *itertools.chain.from_iterable(_demonstration(example) for example in _examples(task, shots)),
                {"role": "user", "content": task.prompt},
            ]
        },
        "difficulty": task.difficulty,
        "prompt": task.prompt,
        "checks": list(task.checks),
    }


def _fresh(rng: Random, difficulty: int, seen: set[str]) -> Iterator[Task]:
    goals = [name for name, goal in GOALS.items() if len(_slots(goal, difficulty)) >= difficulty]
    leads = [(name, option) for name in goals for option in GOALS[name].options if option.level <= difficulty]
    rng.shuffle(leads)
    while leads:
        for lead in list(leads):
            task = _unseen(rng, *lead, difficulty=difficulty, seen=seen)
            if task is None:
                leads.remove(lead)  # some kinds have few variants; the others go on
                continue
            seen.add(task.prompt)
            yield task


def _slots(goal: Goal, difficulty: int) -> set[str]:
    return {option.slot for option in goal.options if option.level <= difficulty}


def _unseen(rng: Random, goal: str, lead: Option, *, difficulty: int, seen: set[str]) -> Task | None:
    tries = (_draw(rng, goal, lead, difficulty=difficulty) for _ in range(MAX_TRIES))
    return next((task for task in tries if task is not None and task.prompt not in seen), None)


def _draw(rng: Random, goal: str, lead: Option, *, difficulty: int) -> Task | None:
    options = [lead]
    while len(options) < difficulty:
        taken = {option.slot for option in options}
        allowed = [option for option in GOALS[goal].options if option.level <= difficulty]
        options.append(rng.choice([option for option in allowed if option.slot not in taken]))
    demands = [GOALS[goal].make(rng), *(option.make(rng) for option in options)]
    if not _satisfiable(demands):
        return None
    prompt = " ".join(demand.instruction for demand in demands)
    return Task(difficulty, goal, prompt, tuple(dict(demand.check) for demand in demands if demand.check))


def _satisfiable(demands: Sequence[Demand]) -> bool:
    """Check that no demand forbids a word that another one needs."""
    needed = " ".join(demand.needs for demand in demands).strip()
    limits = parse_checks([demand.check for demand in demands if demand.check])
    return not needed or all(check.passes(needed) for check in limits if check.kind in WORD_LIMITS)


def _examples(task: Task, shots: int) -> list[tuple[str, str]]:
    """Choose this many worked examples; those most like the task come last, where they help most."""
    kinds = [check["kind"] for check in task.checks[-task.difficulty :]]
    ordered = sorted(DEMONSTRATIONS, key=lambda example: (example[1] in kinds, example[0] == task.goal))
    return ordered[max(0, len(ordered) - shots) :] if shots > 0 else []


def _demonstration(example: tuple[str, str]) -> list[dict[str, str]]:
    prompt, answer = DEMONSTRATIONS[example]
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]


def _rows(options: argparse.Namespace, exclude: frozenset[str]) -> list[Row]:
    tasks = generate(options.n, seed=options.seed, difficulty=options.difficulty, exclude=exclude)
    return [task_row(task, shots=options.shots) for task in tasks]


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shots", type=int, default=DEFAULT_SHOTS, help="worked examples (default: %(default)s)")


COMMAND: Final = GeneratorCommand(
    "format_following", _rows, key=itemgetter("prompt"), levels=LEVELS, add_options=_add_options
)
main: Final = COMMAND.run


if __name__ == "__main__":
    main()
