"""Writes calculator tasks: ``python -m resources_servers.calculator.generate --n 100 --seed 0 --output tasks.jsonl``.

The same arguments always give the same bytes. No question occurs twice, and none from an ``--exclude`` file is used, so
that training and validation data stay apart.
"""

import argparse
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from random import Random
from typing import Any, Final

from nemo_gym.data.task_generator import GeneratorCommand, Row, check_request
from nemo_gym.errors import ConfigError
from resources_servers.calculator.expressions import evaluate, format_number
from resources_servers.calculator.templates import GOODS, LEVELS, NAMES, TEMPLATES, THINGS, Template

MAX_TRIES: Final = 10_000

SYSTEM: Final = "Solve the problem with the calculator tool. Then say: The answer is N."
TOOL_NAME: Final = "calculator"
TOOL: Final = {
    "type": "function",
    "name": TOOL_NAME,
    "description": "Evaluates an arithmetic expression exactly.",
    "parameters": {
        "type": "object",
        "properties": {"expression": {"type": "string", "description": "The expression, for example 3 * (4 + 5)"}},
        "required": ["expression"],
        "additionalProperties": False,
    },
    "strict": True,
}
# Worked examples, given as earlier turns: a small model copies their form.
DEMONSTRATIONS: Final = {
    "percentage": ("What is 20% of 50?", "50 * 20 / 100"),
    "sum": ("Sue has 12 plums and gets 15 more. How many plums does Sue have now?", "12 + 15"),
    "product": ("Each bag holds 8 plums. How many plums are in 5 bags?", "8 * 5"),
    "change": ("A pen costs $3. Sue pays with $10. How much change does Sue get?", "10 - 3"),
    "average": ("What is the average of 2 and 8?", "(2 + 8) / 2"),
    "units": ("How many seconds are in 9 minutes?", "9 * 60"),
}
DEFAULT_SHOTS: Final = 2


@dataclass(frozen=True, slots=True)
class Problem:
    """A word problem, the expression that solves it, and its value."""

    kind: str
    difficulty: int
    question: str
    expression: str
    answer: str


def generate(n: int, *, seed: int, difficulty: int, exclude: frozenset[str] = frozenset()) -> list[Problem]:
    """Make ``n`` different problems of one difficulty, with equal shares of each kind."""
    check_request(n, difficulty, LEVELS)
    rng = Random(f"{seed}/{difficulty}")  # noqa: S311 - tasks, not secrets
    return list(itertools.islice(_fresh(rng, difficulty, set(exclude)), n))


def task_row(problem: Problem, *, shots: int = DEFAULT_SHOTS) -> dict[str, Any]:
    """Make a line of a task file from a problem."""
    return {
        "responses_create_params": {
            "input": [
                {"role": "system", "content": SYSTEM},
                *itertools.chain.from_iterable(itertools.starmap(_demonstration, _demonstrations(problem.kind, shots))),
                {"role": "user", "content": problem.question},
            ],
            "tools": [TOOL],
            "parallel_tool_calls": False,
        },
        "kind": problem.kind,
        "difficulty": problem.difficulty,
        "question": problem.question,
        "expected_answer": problem.answer,
    }


def _fresh(rng: Random, difficulty: int, seen: set[str]) -> Iterator[Problem]:
    kinds = list(dict.fromkeys(template.kind for template in TEMPLATES))
    for kind in itertools.cycle(kinds):
        templates = [template for template in TEMPLATES if (template.kind, template.level) == (kind, difficulty)]
        problem = _unseen(rng, templates, seen)
        seen.add(problem.question)
        yield problem


def _unseen(rng: Random, templates: Sequence[Template], seen: set[str]) -> Problem:
    for _ in range(MAX_TRIES):
        problem = _draw(rng, rng.choice(templates))
        if problem is not None and problem.question not in seen:
            return problem
    raise ConfigError(
        f"there are no more different {templates[0].kind} problems of difficulty {templates[0].level}",
        hint="ask for fewer tasks or another difficulty",
    )


def _draw(rng: Random, template: Template) -> Problem | None:
    words = {"name": NAMES, "things": THINGS, "good": GOODS}
    blanks = {name: rng.choice(values) for name, values in {**words, **template.blanks}.items()}
    expression = template.expression.format_map(blanks)
    value = evaluate(expression)
    numbers = [blanks[name] for name in template.blanks]
    if value <= 0 or (100 * value).denominator != 1 or len(set(numbers)) < len(numbers):
        # No negative change, only answers that can be written down exactly, and no average of 46 and 46.
        return None
    question = template.question.format_map(blanks)
    return Problem(template.kind, template.level, question, expression, format_number(value))


def _demonstrations(kind: str, shots: int) -> list[tuple[str, str]]:
    """Choose this many examples; the one of the task's own kind comes last, where it helps most."""
    kinds = list(DEMONSTRATIONS)
    start = kinds.index(kind) + 1
    ordered = kinds[start:] + kinds[:start]
    return [DEMONSTRATIONS[chosen] for chosen in ordered[max(0, len(ordered) - shots) :]] if shots > 0 else []


def _demonstration(question: str, expression: str) -> list[dict[str, str]]:
    call_id = "call_" + "".join(character for character in expression if character.isdigit())
    answer = format_number(evaluate(expression))
    arguments = json.dumps({"expression": expression})
    return [
        {"role": "user", "content": question},
        {"type": "function_call", "call_id": call_id, "name": TOOL_NAME, "arguments": arguments},
        {"type": "function_call_output", "call_id": call_id, "output": f'{{"result":"{answer}"}}'},
        {"role": "assistant", "content": f"The answer is {answer}."},
    ]


def _rows(options: argparse.Namespace, exclude: frozenset[str]) -> list[Row]:
    problems = generate(options.n, seed=options.seed, difficulty=options.difficulty, exclude=exclude)
    return [task_row(problem, shots=options.shots) for problem in problems]


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shots", type=int, default=DEFAULT_SHOTS, help="worked examples (default: %(default)s)")


COMMAND: Final = GeneratorCommand(
    "calculator", _rows, key=itemgetter("question"), levels=LEVELS, add_options=_add_options
)
main: Final = COMMAND.run


if __name__ == "__main__":
    main()
