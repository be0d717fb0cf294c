# ruff: noqa: SIM905 - lists of words are easier to read as text
r"""Writes tasks: ``python -m resources_servers.verifiable_instructions.generate --n 100 --output tasks.jsonl``.

A task is a topic and one or more instructions that do not contradict each other. The same arguments always give the
same bytes. No prompt occurs twice, nor any that an ``--exclude`` file holds.
"""

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from random import Random
from typing import Any, Final, NamedTuple

from nemo_gym.data.task_generator import GeneratorCommand, Row
from nemo_gym.errors import ConfigError

LEVELS: Final = (1, 2, 3, 4)  # instructions of each task
MAX_TRIES: Final = 10_000
TOPICS: Final = (
    "a rainy day|the sea in winter|a lost key|a train journey|an old bicycle|the first snow|a busy market|a quiet "
    "library|a garden in spring|a long walk|a broken clock|a birthday party|a small island|a mountain hut|a night "
    "without power|a letter from a friend|a football match|a sleeping cat|the smell of bread|a city at dawn"
).split("|")
WORDS: Final = ("river lamp stone window bread cloud paper garden silver music").split(" ")


class Demand(NamedTuple):
    """An instruction: its group (one of each group fits into a task), name, sentence and parameters."""

    group: str
    name: str
    sentence: str
    parameters: dict[str, Any]


def _fixed(group: str, name: str, sentence: str) -> Callable[[Random], Demand]:
    return lambda _: Demand(group, name, sentence, {})


def _at_least_words(rng: Random) -> Demand:
    count = rng.choice([10, 20, 30, 40])
    parameters = {"num_words": count, "relation": "at least"}
    return Demand("length", "length_constraints:number_words", f"Write at least {count} words.", parameters)


def _few_words(rng: Random) -> Demand:
    count = rng.choice([15, 25, 50])
    parameters = {"num_words": count, "relation": "less than"}
    return Demand("length", "length_constraints:number_words", f"Write less than {count} words.", parameters)


def _keyword(rng: Random) -> Demand:
    word = rng.choice(WORDS)
    return Demand("keyword", "keywords:existence", f'Use the word "{word}".', {"keywords": [word]})


def _forbidden(rng: Random) -> Demand:
    word = rng.choice(["the", "is", "and", "was"])
    sentence = f'Do not use the word "{word}".'
    return Demand("forbidden", "keywords:forbidden_words", sentence, {"forbidden_words": [word]})


def _end(rng: Random) -> Demand:
    phrase = rng.choice(["That is all.", "The end.", "So it was."])
    return Demand("edge", "startend:end_checker", f'End with the exact words "{phrase}"', {"end_phrase": phrase})


def _bullets(rng: Random) -> Demand:
    count = rng.choice([2, 3, 4])
    sentence = f'Write exactly {count} bullet points, each beginning with "* ".'
    return Demand("shape", "detectable_format:number_bullet_lists", sentence, {"num_bullets": count})


def _unique(rng: Random) -> Demand:
    count = rng.choice([8, 12, 16])
    return Demand("length", "count:unique_word_count", f"Use at least {count} different words.", {"N": count})


DEMANDS: Final[tuple[Callable[[Random], Demand], ...]] = (
    _at_least_words,
    _few_words,
    _keyword,
    _forbidden,
    _end,
    _bullets,
    _unique,
    _fixed("commas", "punctuation:no_comma", "Do not use any commas."),
    _fixed("case", "change_case:english_lowercase", "Write in small letters only, in English."),
    _fixed("case", "change_case:english_capital", "Write in capital letters only, in English."),
    _fixed("edge", "startend:quotation", "Put the whole answer in double quotation marks."),
    _fixed("shape", "detectable_format:title", "Give it a title in double angular brackets, such as <<a title>>."),
)


def generate(n: int, *, seed: int, difficulty: int = 1, exclude: frozenset[str] = frozenset()) -> list[dict[str, Any]]:
    """``n`` different rows with ``difficulty`` instructions each."""
    if n < 0 or difficulty not in LEVELS:
        raise ConfigError(f"can't generate {n} tasks with {difficulty} instructions", hint="choose 1 to 4 instructions")
    rng = Random(f"{seed}/{difficulty}")  # noqa: S311 - tasks, not secrets
    return list(itertools.islice(_fresh(rng, difficulty, set(exclude)), n))


def _fresh(rng: Random, count: int, seen: set[str]) -> Iterator[dict[str, Any]]:
    tries = 0
    while tries < MAX_TRIES:
        tries += 1
        demands = [demand(rng) for demand in rng.sample(DEMANDS, count)]
        prompt = " ".join([f"Write about {rng.choice(TOPICS)}.", *(demand.sentence for demand in demands)])
        if len({demand.group for demand in demands}) == count and _fits(demands) and prompt not in seen:
            seen.add(prompt)
            tries = 0
            yield task_row(len(seen), prompt, demands)
    raise ConfigError("there are no more different tasks", hint="ask for fewer tasks or more instructions")


def _fits(demands: Sequence[Demand]) -> bool:
    """Capital letters and fixed words, a fixed ending and small letters would contradict each other."""
    groups = {demand.group for demand in demands}
    return not ({"case", "edge"} <= groups or {"case", "shape"} <= groups or {"forbidden", "edge"} <= groups)


def task_row(number: int, prompt: str, demands: Sequence[Demand]) -> dict[str, Any]:
    """A line of a task file."""
    return {
        "responses_create_params": {"input": [{"role": "user", "content": prompt}]},
        "id": number,
        "prompt": prompt,
        "instruction_id_list": [demand.name for demand in demands],
        "kwargs": [demand.parameters for demand in demands],
        "grading_mode": "binary",
    }


def _rows(options: argparse.Namespace, exclude: frozenset[str]) -> list[Row]:
    return generate(options.n, seed=options.seed, difficulty=options.difficulty, exclude=exclude)


COMMAND: Final = GeneratorCommand("verifiable_instructions", _rows, key=itemgetter("prompt"), levels=LEVELS)
main: Final = COMMAND.run


if __name__ == "__main__":
    main()
