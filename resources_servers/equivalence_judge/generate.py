"""Writes equivalence_judge tasks: ``python -m resources_servers.equivalence_judge.generate --n 100 --seed 0``.

Questions with one answer that can be written in many ways: dates, times of day, lengths, amounts in words.
"""

import datetime as dt
import itertools
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final, NamedTuple

from nemo_gym.data.task_generator import Row, TaskGenerator

ONES: Final = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)
TEENS: Final = ("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
TENS: Final = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
NAMES: Final = ("Anna", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Hugo")


class Problem(NamedTuple):
    """A question, its answer in one form, and criteria for a good answer."""

    question: str
    answer: str
    criteria: tuple[str, ...]


def date(rng: Random) -> Problem:
    """A day some days after another one."""
    start = dt.date(2023, 1, 1) + dt.timedelta(days=rng.randrange(700))
    days = rng.randint(2, 40)
    end = start + dt.timedelta(days=days)
    question = f"Which date is {days} days after {start.day} {start:%B %Y}?"
    return Problem(question, f"{end.day} {end:%B %Y}", (f"It names {end.day} {end:%B %Y}", "It names only one date"))


def clock(rng: Random) -> Problem:
    """A time of day some minutes after another one."""
    start, minutes = rng.randrange(0, 22 * 60, 5), rng.randrange(10, 115, 5)
    hour, minute = divmod(start + minutes, 60)
    question = f"A film starts at {start // 60}:{start % 60:02} and lasts {minutes} minutes. When does it end?"
    answer = f"{hour}:{minute:02}"
    return Problem(question, answer, (f"It says that the film ends at {answer}", "It is one sentence at most"))


def length(rng: Random) -> Problem:
    """A length in metres and centimetres."""
    name, centimetres = rng.choice(NAMES), rng.randint(120, 900)
    question = f"{name} has a rope of {centimetres} centimetres. How many metres and centimetres is that?"
    metres, rest = divmod(centimetres, 100)
    answer = f"{metres} metres and {rest} centimetres"
    return Problem(question, answer, (f"It says {answer}, or {centimetres / 100} metres", f"It mentions {name}"))


def words(rng: Random) -> Problem:
    """A number in words."""
    number = rng.randint(13, 9_999)
    answer = in_words(number)
    return Problem(f"Write the number {number} in words.", answer, (f"It says {answer}", "It contains no digits"))


KINDS: Final[tuple[Callable[[Random], Problem], ...]] = (date, clock, length, words)


def in_words(number: int) -> str:
    """A number below a million as English words."""
    if number < 13:
        return ONES[number]
    if number < 20:
        return TEENS[number - 13]
    if number < 100:
        rest = f"-{ONES[number % 10]}" if number % 10 else ""
        return TENS[number // 10 - 2] + rest
    unit, name = (1_000, "thousand") if number >= 1_000 else (100, "hundred")
    head, rest_number = divmod(number, unit)
    tail = f" {in_words(rest_number)}" if rest_number else ""
    return f"{in_words(head)} {name}{tail}"


def draw(rng: Random, difficulty: int) -> Iterator[Row]:
    """Endless tasks, the kinds in equal parts; difficulty 2 is judged by a rubric."""
    for kind in itertools.cycle(KINDS):
        problem = kind(rng)
        expected: dict[str, Any] = {"expected_answer": problem.answer}
        if difficulty == 2:
            expected = {
                "rubric": [
                    {"criterion": each, "points": points} for each, points in zip(problem.criteria, (2, 1), strict=True)
                ]
            }
        yield {
            "responses_create_params": {"input": [{"role": "user", "content": f"{problem.question} Answer briefly."}]},
            "kind": kind.__name__,
            "difficulty": difficulty,
            "question": problem.question,
            **expected,
        }


GENERATOR: Final = TaskGenerator("equivalence_judge", draw, identity=("question",), levels=(1, 2))

if __name__ == "__main__":
    GENERATOR.main()
