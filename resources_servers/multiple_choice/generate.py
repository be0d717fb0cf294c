r"""Writes tasks: ``python -m resources_servers.multiple_choice.generate --n 100 --seed 0 --output tasks.jsonl``.

Questions about order, spelling, arithmetic and the calendar, with as many options as asked for. The same arguments
always give the same bytes; the place of the right option depends on the seed. With ``--shuffle FILE`` the tasks of a
file get their options in another order instead, to measure whether a model prefers a letter.
"""

import argparse
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from nemo_gym.data.task_generator import GeneratorCommand, Row
from nemo_gym.errors import ConfigError
from resources_servers.multiple_choice.options import find_label, labels, read_options, render, shuffled

INSTRUCTION: Final = r"Answer with the letter of the right option in \boxed{}."
DEMONSTRATION: Final = ("Which of these is the largest number?", ["3", "8", "5", "1"], "B")
WORDS: Final = (  # noqa: SIM905 - easier to read
    "apple bread chair dance eagle flame grape house island jacket kettle ladder mirror needle orange pencil rabbit "
    "saddle tunnel violin window yellow basket candle desert forest garden hammer"
).split(" ")
DAYS: Final = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MAX_TRIES: Final = 10_000


def _largest(rng: Random, count: int) -> tuple[str, str, list[str]]:
    numbers = rng.sample(range(1, 10 * count + 90), count)
    best, *others = sorted(numbers, reverse=True)
    return "Which of these is the largest number?", str(best), [str(number) for number in others]


def _first_letter(rng: Random, count: int) -> tuple[str, str, list[str]]:
    letter = rng.choice([word[0] for word in WORDS])
    right = rng.choice([word for word in WORDS if word[0] == letter])
    others = [word for word in WORDS if word[0] != letter]
    return f'Which of these words begins with the letter "{letter}"?', right, rng.sample(others, count - 1)


def _sum(rng: Random, count: int) -> tuple[str, str, list[str]]:
    left, right = rng.randint(2, 30), rng.randint(2, 30)
    nearby = [number for number in range(max(1, left + right - count), left + right + count) if number != left + right]
    return f"What is {left} + {right}?", str(left + right), [str(number) for number in rng.sample(nearby, count - 1)]


def _weekday(rng: Random, count: int) -> tuple[str, str, list[str]]:
    today, days = rng.randrange(7), rng.randint(1, 20)
    right = DAYS[(today + days) % 7]
    others = [day for day in DAYS if day != right]
    question = f"Today is {DAYS[today]}. Which day is it in {days} days?"
    return question, right, rng.sample(others, min(count, 7) - 1)


KINDS: Final[dict[str, Callable[[Random, int], tuple[str, str, list[str]]]]] = {
    "largest": _largest,
    "first_letter": _first_letter,
    "sum": _sum,
    "weekday": _weekday,
}


def generate(n: int, *, seed: int, options: int = 4, exclude: frozenset[str] = frozenset()) -> list[dict[str, Any]]:
    """``n`` different rows, the kinds in equal parts."""
    if n < 0 or not 2 <= options <= 26:
        raise ConfigError(f"can't generate {n} tasks with {options} options", hint="2 to 26 options are possible")
    rng = Random(f"{seed}/{options}")  # noqa: S311 - tasks, not secrets
    return list(itertools.islice(_fresh(rng, options, set(exclude)), n))


def task_row(question: str, right: str, others: Sequence[str], *, seed: object, category: str) -> dict[str, Any]:
    """A row with the options in the order that the seed gives."""
    order = shuffled([right, *others], seed=seed)
    asked, offered, letter = DEMONSTRATION
    messages = [
        {"role": "system", "content": INSTRUCTION},
        {"role": "user", "content": render(asked, offered)},
        {"role": "assistant", "content": rf"\boxed{{{letter}}}"},
        {"role": "user", "content": render(question, order)},
    ]
    return {
        "responses_create_params": {"input": messages},
        "question": question,
        "category": category,
        "options": [{label: text} for label, text in zip(labels(), order, strict=False)],
        "expected_answer": next(label for label, text in zip(labels(), order, strict=False) if text == right),
        "grading_mode": "strict_single_letter_boxed",
    }


def reshuffled(row: dict[str, Any], *, seed: int) -> dict[str, Any]:
    """The same task with its options in another order."""
    options = read_options(row["options"])
    right = options.pop(find_label(row["expected_answer"], options))
    return task_row(
        row["question"], right, list(options.values()), seed=f"{seed}/{row['question']}", category=row["category"]
    )


def _fresh(rng: Random, count: int, seen: set[str]) -> Iterator[dict[str, Any]]:
    for kind in itertools.cycle(KINDS):
        for _ in range(MAX_TRIES):
            question, right, others = KINDS[kind](rng, count)
            row = task_row(question, right, others, seed=rng.random(), category=kind)
            if (prompt := _prompt(row)) not in seen:
                seen.add(prompt)
                yield row
                break
        else:
            raise ConfigError(f"there are no more different {kind} tasks", hint="ask for fewer tasks or more options")


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            _prompt(row), row["options"]
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}:{number}: not a multiple-choice task ({error})") from error
        yield row


def _prompt(row: Row) -> str:
    prompt: str = row["responses_create_params"]["input"][-1]["content"]
    return prompt


def _task_rows(options: argparse.Namespace, exclude: frozenset[str]) -> list[Row]:
    if options.shuffle:
        return [reshuffled(row, seed=options.seed) for row in _rows(options.shuffle)]
    return generate(options.n, seed=options.seed, options=options.options, exclude=exclude)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--options", type=int, default=4, help="options of each question (default: %(default)s)")
    parser.add_argument("--shuffle", type=Path, help="task file to give another order of options")


COMMAND: Final = GeneratorCommand("multiple_choice", _task_rows, key=_prompt, add_options=_add_options)
main: Final = COMMAND.run


if __name__ == "__main__":
    main()
