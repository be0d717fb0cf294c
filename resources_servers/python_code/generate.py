"""Writes programming tasks: ``python -m resources_servers.python_code.generate --n 100 --seed 0 --output tasks.jsonl``.

The same arguments always give the same bytes. No question occurs twice, nor any that an ``--exclude`` file holds, so
training and validation data can be kept apart.
"""

import argparse
import contextlib
import io
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from random import Random
from typing import Any, Final

from nemo_gym.data.task_generator import GeneratorCommand, Row, check_request
from nemo_gym.errors import ConfigError
from resources_servers.python_code.templates import FUNCTIONS, LEVELS, PROGRAMS, Template

MAX_TRIES: Final = 10_000
CASES: Final = 8
SYSTEM: Final = "Write Python. Answer with one code block and nothing else."
# Worked examples, given as earlier turns: a small model copies their form.
DEMONSTRATIONS: Final = {
    "function": (
        "Write a Python function `double(n)` that returns 2 times `n`.",
        "def double(n):\n    return 2 * n",
    ),
    "program": ("Write a Python program that reads one integer and prints it plus 1.", "print(int(input()) + 1)"),
}
DEFAULT_SHOTS: Final = 1
EXPECTED: Final = {"function": "expected", "program": "stdout"}


@dataclass(frozen=True, slots=True)
class Problem:
    """A task, its tests, and a solution that passes them."""

    kind: str
    difficulty: int
    question: str
    solution: str
    tests: dict[str, Any]


def generate(n: int, *, seed: int, difficulty: int, exclude: frozenset[str] = frozenset()) -> list[Problem]:
    """``n`` different problems of one difficulty; every fourth is a program, the others are functions."""
    check_request(n, difficulty, LEVELS)
    rng = Random(f"{seed}/{difficulty}")  # noqa: S311 - tasks, not secrets
    return list(itertools.islice(_fresh(rng, difficulty, set(exclude)), n))


def task_row(problem: Problem, *, shots: int = DEFAULT_SHOTS) -> dict[str, Any]:
    """The problem as a line of a task file."""
    question, code = DEMONSTRATIONS[problem.kind]
    shown = [{"role": "user", "content": question}, {"role": "assistant", "content": f"```python\n{code}\n```"}]
    return {
        "responses_create_params": {
            "input": [
                {"role": "system", "content": SYSTEM},
                *(shown if shots else []),
                {"role": "user", "content": problem.question},
            ]
        },
        "question": problem.question,
        "difficulty": problem.difficulty,
        "tests": problem.tests,
    }


def _fresh(rng: Random, difficulty: int, seen: set[str]) -> Iterator[Problem]:
    functions = [template for template in FUNCTIONS if template.level == difficulty]
    programs = [template for template in PROGRAMS if template.level == difficulty]
    for number in itertools.count():
        templates, kind = (programs, "program") if number % 4 == 3 else (functions, "function")
        problem = _unseen(rng, templates, kind, seen)
        seen.add(problem.question)
        yield problem


def _unseen(rng: Random, templates: Sequence[Template], kind: str, seen: set[str]) -> Problem:
    for _ in range(MAX_TRIES):
        template = rng.choice(templates)
        blanks = {name: rng.choice(values) for name, values in template.blanks.items()}
        question = _question(template, kind, blanks)
        if question not in seen:
            solution = template.code.format_map(blanks)
            cases = (_function_cases if kind == "function" else _program_cases)(template, solution, rng)
            if len({json.dumps(case[EXPECTED[kind]]) for case in cases}) > 1:  # or a constant would do
                return Problem(kind, template.level, question, solution, _tests(template, kind, cases))
    raise ConfigError(
        f"there are no more different tasks of the kind {kind}", hint="ask for fewer tasks or another difficulty"
    )


def _question(template: Template, kind: str, blanks: dict[str, Any]) -> str:
    text = template.question.format_map(blanks)
    if kind == "program":
        return f"Write a Python program that {text}."
    parameters = template.code.partition("(")[2].partition(")")[0]
    return f"Write a Python function `{template.name}({parameters})` that {text}."


def _tests(template: Template, kind: str, cases: list[dict[str, Any]]) -> dict[str, Any]:
    named = {"entry_point": template.name} if kind == "function" else {}
    return {"kind": kind, **named, "cases": cases}


def _function_cases(template: Template, solution: str, rng: Random) -> list[dict[str, Any]]:
    names: dict[str, Any] = {}
    exec(solution, names)  # noqa: S102 - our own template
    drawn = [template.draw(rng) for _ in range(CASES)]
    return [{"args": args, "expected": names[template.name](*json.loads(json.dumps(args)))} for args in drawn]


def _program_cases(template: Template, solution: str, rng: Random) -> list[dict[str, Any]]:
    inputs = ["".join(f"{line}\n" for line in template.draw(rng)) for _ in range(CASES)]
    return [{"stdin": text, "stdout": _output(solution, text)} for text in inputs]


def _output(solution: str, text: str) -> str:
    before, sys.stdin = sys.stdin, io.StringIO(text)
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(solution, {})  # noqa: S102 - our own template
    finally:
        sys.stdin = before
    return printed.getvalue()


def _rows(options: argparse.Namespace, exclude: frozenset[str]) -> list[Row]:
    problems = generate(options.n, seed=options.seed, difficulty=options.difficulty, exclude=exclude)
    return [task_row(problem, shots=options.shots) for problem in problems]


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shots", type=int, default=DEFAULT_SHOTS, choices=(0, 1), help="a worked example or none")


COMMAND: Final = GeneratorCommand(
    "python_code", _rows, key=itemgetter("question"), levels=LEVELS, add_options=_add_options
)
main: Final = COMMAND.run


if __name__ == "__main__":
    main()
