"""Writes office tasks: ``python -m resources_servers.office.generate --n 100 --seed 0 --output tasks.jsonl``.

Every task has a different office, full of people, messages and events that resemble those it is about. The difficulty
is the number of errands in one task.
"""

import itertools
from collections.abc import Iterator
from random import Random
from typing import Final

from nemo_gym.data.task_generator import Row, TaskGenerator
from resources_servers.office.errands import ERRANDS, Errand, new_number
from resources_servers.office.random_office import ME, Scene, draw_scene
from resources_servers.office.world import DECLARATIONS, Office, OfficeCall, difference, replay

SYSTEM: Final = (
    f"You are an office assistant. Your user's address is {ME}. Today is {{today}}. Do exactly what is asked with the "
    "tools, and nothing else. Look things up instead of guessing. Say in one sentence what you did when you are done."
)


def draw(rng: Random, difficulty: int) -> Iterator[Row]:
    """Endless tasks, the errands in equal parts."""
    for first in itertools.cycle(range(len(ERRANDS))):
        chosen = [first, *rng.sample([other for other in range(len(ERRANDS)) if other != first], difficulty - 1)]
        # In some offices an errand can't be done: nobody wrote twice, or a day is empty.
        offices = (_row(rng, chosen, difficulty) for _ in itertools.count())
        yield next(row for row in offices if row is not None)


def _row(rng: Random, chosen: list[int], difficulty: int) -> Row | None:
    scene = draw_scene(rng)
    # One errand puts a message into the office, so it comes before those that refer to messages.
    made = {
        index: ERRANDS[index](rng, scene)
        for index in sorted(chosen, key=lambda index: ERRANDS[index] is not new_number)
    }
    errands = [errand for index in chosen if (errand := made[index]) is not None]
    if len(errands) < len(chosen) or not is_sound(scene, errands):
        return None
    question = " ".join(errand.text for errand in errands)
    messages = [
        {"role": "system", "content": SYSTEM.format(today=scene.state["today"])},
        {"role": "user", "content": question},
    ]
    return {
        "responses_create_params": {"input": messages, "tools": DECLARATIONS},
        "category": "+".join(ERRANDS[index].__name__ for index in chosen),
        "difficulty": difficulty,
        "question": question,
        "office": scene.state,
        "ground_truth": [call for errand in errands for call in errand.calls],
    }


def is_sound(scene: Scene, errands: list[Errand]) -> bool:
    """Whether each errand matters, and their order does not: otherwise the words would not decide the outcome."""
    office = Office.model_validate(scene.state)
    forwards = replay(office, _calls(errands))
    if difference(forwards, replay(office, _calls(errands[::-1]))):
        return False
    without = ([other for other in errands if other is not errand] for errand in errands)
    return all(difference(forwards, replay(office, _calls(rest))) for rest in without)


def _calls(errands: list[Errand]) -> list[OfficeCall]:
    return [OfficeCall(call["name"], call["arguments"]) for errand in errands for call in errand.calls]


GENERATOR: Final = TaskGenerator("office", draw, identity=("question", "office"), levels=(1, 2, 3))

if __name__ == "__main__":
    GENERATOR.main()
