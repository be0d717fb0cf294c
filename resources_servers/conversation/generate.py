"""Writes conversation tasks: ``python -m resources_servers.conversation.generate --n 100 --seed 0``.

Each task is a desk at which a person wants something and says very little at first. The difficulty is the number of
things that have to be found out, less one.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from nemo_gym.data.task_generator import Row, TaskGenerator

NAMES: Final = ("Anna", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Hugo", "Ida", "Jack", "Kate", "Liam")
MOODS: Final = ("You are friendly.", "You are in a hurry.", "You are tired.", "You are curious.", "You are polite.")
SYSTEM: Final = (
    "You work at {desk}. Find out everything that the form needs, by asking short questions, one at a time. When you "
    "know everything, call submit once. Never guess."
)


@dataclass(frozen=True, slots=True)
class Detail:
    """One thing to find out: its values, how people say it, and words that ask for it."""

    name: str
    values: tuple[Any, ...]
    sentence: str
    asked_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Desk:
    """A place where people want something."""

    category: str
    place: str
    goal: str
    opening: str
    details: tuple[Detail, ...]


WHO: Final = Detail("name", NAMES, "My name is {}.", ("name", "who am i"))
DESKS: Final = (
    Desk(
        "pizza",
        "a pizza service",
        "a pizza delivered",
        "Hello, I would like a pizza.",
        (
            Detail("topping", ("ham", "mushroom", "tuna", "onion"), "I want {} on it.", ("topping", "on it", "kind")),
            Detail("size", ("small", "medium", "large"), "A {} one.", ("size", "large", "how big")),
            WHO,
            Detail("minutes", (20, 30, 45, 60), "In {} minutes.", ("when", "what time", "how soon", "minutes")),
        ),
    ),
    Desk(
        "doctor",
        "the desk of a doctor",
        "an appointment",
        "Good morning, I need an appointment.",
        (
            WHO,
            Detail("day", ("Monday", "Tuesday", "Wednesday", "Friday"), "On {}.", ("day", "when", "date")),
            Detail("hour", (8, 9, 10, 14, 15, 16), "At {} o'clock.", ("hour", "time", "o'clock")),
            Detail("reason", ("cough", "back pain", "headache"), "Because of my {}.", ("reason", "why", "problem")),
        ),
    ),
    Desk(
        "hotel",
        "the desk of a hotel",
        "a room",
        "Hi, do you have a room for me?",
        (
            Detail("nights", (1, 2, 3, 4, 5, 6, 7), "For {} nights.", ("nights", "how long", "stay")),
            Detail("guests", (1, 2, 3, 4), "We are {} guests.", ("guests", "how many people", "persons")),
            WHO,
            Detail("breakfast", (True, False), "Breakfast: {}.", ("breakfast",)),
        ),
    ),
    Desk(
        "repair",
        "a repair shop",
        "something repaired",
        "Something of mine is broken.",
        (
            Detail(
                "device", ("phone", "laptop", "camera", "radio"), "It is my {}.", ("device", "what is broken", "which")
            ),
            Detail("age", (1, 2, 3, 4, 5, 6), "It is {} years old.", ("age", "how old", "years")),
            WHO,
            Detail("fault", ("screen", "battery", "button"), "The {} is broken.", ("fault", "wrong with", "problem")),
        ),
    ),
)


def draw(rng: Random, difficulty: int) -> Iterator[Row]:
    """Endless tasks of one difficulty, the desks in equal parts."""
    for desk in itertools.cycle(DESKS):
        details = rng.sample(desk.details, difficulty + 1)
        yield _row(rng, desk, details, difficulty)


def _row(rng: Random, desk: Desk, details: list[Detail], difficulty: int) -> Row:
    chosen = {detail.name: rng.choice(detail.values) for detail in details}
    messages = [
        {"role": "system", "content": SYSTEM.format(desk=desk.place)},
        {"role": "user", "content": desk.opening},
    ]
    return {
        "responses_create_params": {"input": messages, "tools": [_tool(details)]},
        "category": desk.category,
        "difficulty": difficulty,
        "persona": rng.choice(MOODS),
        "goal": desk.goal,
        "opening": desk.opening,
        "facts": {
            detail.name: {
                "value": chosen[detail.name],
                "say": detail.sentence.format(_said(chosen[detail.name])),
                "asked_by": list(detail.asked_by),
            }
            for detail in details
        },
    }


def _tool(details: list[Detail]) -> dict[str, Any]:
    properties = {detail.name: {"type": _type(detail.values[0])} for detail in details}
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "name": "submit",
        "description": "Hands the form in.",
        "parameters": parameters,
        "strict": True,
    }


def _type(value: Any) -> str:
    return "boolean" if isinstance(value, bool) else "integer" if isinstance(value, int) else "string"


def _said(value: Any) -> str:
    return {True: "yes, please", False: "no, thank you"}[value] if isinstance(value, bool) else str(value)


GENERATOR: Final = TaskGenerator("conversation", draw, identity=("opening", "persona", "facts"), levels=(1, 2, 3))

if __name__ == "__main__":
    GENERATOR.main()
