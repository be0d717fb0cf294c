r"""Writes tasks: ``python -m resources_servers.math_answers.generate --n 100 --seed 0 --output tasks.jsonl``.

Each kind of task has an answer of another form: a number, a fraction, a root, a set, an interval, a unit, a polynomial.
The same arguments always give the same bytes. No question occurs twice, nor any that an ``--exclude`` file holds.
"""

import argparse
import itertools
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from operator import itemgetter
from random import Random
from typing import Any, Final, NamedTuple

from nemo_gym.data.task_generator import GeneratorCommand, Row
from nemo_gym.errors import ConfigError

MAX_TRIES: Final = 10_000
SYSTEM: Final = r"Solve the problem. Put the final answer in \boxed{}."


class Problem(NamedTuple):
    """A question and its answer in LaTeX."""

    kind: str
    question: str
    answer: str


def _sum(rng: Random, top: int) -> tuple[str, str]:
    left, right = rng.randint(2, top), rng.randint(2, top)
    return f"What is {left} + {right}?", str(left + right)


def _fraction(rng: Random, top: int) -> tuple[str, str]:
    left = Fraction(rng.randint(1, top), rng.randint(2, top))
    right = Fraction(rng.randint(1, top), rng.randint(2, top))
    return f"What is ${_latex(left)} + {_latex(right)}$ as a fraction?", _latex(left + right)


def _root(rng: Random, top: int) -> tuple[str, str]:
    factor, radicand = rng.randint(2, top), rng.choice([2, 3, 5, 6, 7, 10, 11, 13])
    return rf"Simplify $\sqrt{{{factor**2 * radicand}}}$.", rf"{factor}\sqrt{{{radicand}}}"


def _set(rng: Random, top: int) -> tuple[str, str]:
    first, second = sorted(rng.sample(range(-top, top + 1), 2))
    equation = f"x^2{_term(-first - second, 'x')}{_term(first * second, '')} = 0"
    return f"What are all solutions of ${equation}$?", rf"\{{{first}, {second}\}}"


def _interval(rng: Random, top: int) -> tuple[str, str]:
    low, shift = rng.randint(-top, top), rng.randint(1, top)
    high = low + rng.randint(1, top)
    return (
        f"For which $x$ is ${low + shift} < x + {shift} \\le {high + shift}$? Give an interval.",
        f"({low}, {high}]",
    )


def _unit(rng: Random, top: int) -> tuple[str, str]:
    amount = rng.randint(2, top)
    name, small, factor = rng.choice([("meters", "cm", 100), ("kilograms", "g", 1000), ("hours", "min", 60)])
    return f"Convert {amount} {name} to {small}.", rf"{amount * factor} \text{{ {small}}}"


def _polynomial(rng: Random, top: int) -> tuple[str, str]:
    first, second = rng.randint(1, top), rng.randint(1, top)
    return f"Expand $(x + {first})(x + {second})$.", f"x^2{_term(first + second, 'x')}{_term(first * second, '')}"


KINDS: Final[dict[str, Callable[[Random, int], tuple[str, str]]]] = {
    "number": _sum,
    "fraction": _fraction,
    "root": _root,
    "set": _set,
    "interval": _interval,
    "unit": _unit,
    "polynomial": _polynomial,
}
LEVELS: Final = {1: 9, 2: 30, 3: 200, 0: 9}  # the first is the default
# The easiest level has sums alone and several worked examples: even a very small model is right at times.
EASIEST: Final = 0
EASY_DEMONSTRATIONS: Final = (("What is 4 + 5?", "9"), ("What is 2 + 6?", "8"), ("What is 7 + 4?", "11"))
DEMONSTRATIONS: Final = {
    "number": (r"What is 4 + 13?", "17"),
    "fraction": (r"What is $\frac{1}{2} + \frac{1}{3}$ as a fraction?", r"\frac{5}{6}"),
    "root": (r"Simplify $\sqrt{27}$.", r"3\sqrt{3}"),
    "set": (r"What are all solutions of $x^2 - 3x + 2 = 0$?", r"\{1, 2\}"),
    "interval": (r"For which $x$ is $1 < x + 1 \le 4$? Give an interval.", r"(0, 3]"),
    "unit": (r"Convert 12 meters to cm.", r"1200 \text{ cm}"),
    "polynomial": (r"Expand $(x + 1)(x + 1)$.", "x^2 + 2x + 1"),
}


def generate(n: int, *, seed: int, difficulty: int = 1, exclude: frozenset[str] = frozenset()) -> list[Problem]:
    """``n`` different problems of one difficulty, the kinds in equal parts."""
    if n < 0 or difficulty not in LEVELS:
        raise ConfigError(
            f"can't generate {n} tasks of difficulty {difficulty}", hint="choose a difficulty from 0 to 3"
        )
    rng = Random(f"{seed}/{difficulty}")  # noqa: S311 - tasks, not secrets
    return list(itertools.islice(_fresh(rng, difficulty, set(exclude)), n))


def task_row(problem: Problem, *, difficulty: int) -> dict[str, Any]:
    """The problem as a line of a task file, with worked examples as earlier turns."""
    shown = EASY_DEMONSTRATIONS if difficulty == EASIEST else (DEMONSTRATIONS[problem.kind],)
    messages = [{"role": "system", "content": SYSTEM}]
    for question, answer in shown:
        messages += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": rf"\boxed{{{answer}}}"},
        ]
    messages.append({"role": "user", "content": problem.question})
    return {
        "responses_create_params": {"input": messages},
        "kind": problem.kind,
        "difficulty": difficulty,
        "question": problem.question,
        "expected_answer": problem.answer,
    }


def _fresh(rng: Random, difficulty: int, seen: set[str]) -> Iterator[Problem]:
    exhausted: set[str] = set()
    kinds = ("number",) if difficulty == EASIEST else tuple(KINDS)
    for kind in itertools.cycle(kinds):
        for _ in range(MAX_TRIES if kind not in exhausted else 0):
            question, answer = KINDS[kind](rng, LEVELS[difficulty])
            if question not in seen:
                seen.add(question)
                yield Problem(kind, question, answer)
                break
        else:
            exhausted.add(kind)
        if len(exhausted) == len(kinds):
            raise ConfigError("there are no more different tasks", hint="ask for fewer, or for a higher difficulty")


def _latex(value: Fraction) -> str:
    return str(value) if value.denominator == 1 else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def _term(factor: int, symbol: str) -> str:
    if factor == 0:
        return ""
    number = "" if symbol and abs(factor) == 1 else str(abs(factor))
    return f" {'-' if math.copysign(1, factor) < 0 else '+'} {number}{symbol}"


def _rows(options: argparse.Namespace, exclude: frozenset[str]) -> list[Row]:
    problems = generate(options.n, seed=options.seed, difficulty=options.difficulty, exclude=exclude)
    return [task_row(problem, difficulty=options.difficulty) for problem in problems]


COMMAND: Final = GeneratorCommand("math_answers", _rows, key=itemgetter("question"), levels=tuple(LEVELS))
main: Final = COMMAND.run


if __name__ == "__main__":
    main()
