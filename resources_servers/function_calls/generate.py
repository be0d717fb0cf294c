"""Writes function_calls tasks: ``python -m resources_servers.function_calls.generate --n 100 --seed 0``.

Difficulty 1 asks for one call, or for none; 2 asks for two or three at once; 3 is a conversation of two turns about a
small hotel, checked by what became of its bookings.
"""

import itertools
from collections.abc import Iterator
from random import Random
from typing import Any, Final

from nemo_gym.data.task_generator import Row, TaskGenerator
from resources_servers.function_calls.sample_tools import CITIES, NAMES, SKILLS, SMALL_TALK, Request, function

SYSTEM: Final = "Call a tool if one can help. If none can, answer in one sentence."
HOTEL: Final = "You work at the desk of a small hotel. Use the tools to do what the guest asks, then say what you did."
HOTEL_TOOLS: Final = {
    "find_bookings": {"op": "list", "collection": "bookings"},
    "find_rooms": {"op": "list", "collection": "rooms"},
    "book_room": {"op": "create", "collection": "bookings"},
    "change_booking": {"op": "update", "collection": "bookings", "id": "booking_id"},
    "cancel_booking": {"op": "delete", "collection": "bookings", "id": "booking_id"},
}
GUEST: Final = {"guest": {"type": "string"}}
ROOM: Final = {"room": {"type": "string"}, "nights": {"type": "integer"}}
BOOKING: Final = {"booking_id": {"type": "string"}}
HOTEL_FUNCTIONS: Final = (
    function("find_bookings", "Lists bookings, of one guest or all.", GUEST, ("guest",)),
    function("find_rooms", "Lists the rooms of the hotel.", {"beds": {"type": "integer"}}, ("beds",)),
    function("book_room", "Books a room.", {**GUEST, **ROOM}),
    function("change_booking", "Changes a booking.", {**BOOKING, **ROOM}, ("room", "nights")),
    function("cancel_booking", "Cancels a booking.", BOOKING),
)


def draw(rng: Random, difficulty: int) -> Iterator[Row]:
    """Endless tasks of one difficulty."""
    if difficulty == 3:
        while True:
            yield _hotel_task(rng)
    # Two of twelve tasks have no tool that could help; all others come in equal parts.
    for skill in itertools.cycle((*SKILLS, None, None)):
        if skill is None:
            yield _small_talk(rng, difficulty)
        elif difficulty == 1:
            yield _call_task(rng, [skill.ask(rng)], "single")
        else:
            others = rng.sample([each for each in SKILLS if each != skill], rng.choice((1, 2)))
            yield _call_task(rng, [each.ask(rng) for each in (skill, *others)], "parallel")


def _call_task(rng: Random, requests: list[Request], category: str) -> Row:
    question = " ".join(request.text for request in requests)
    calls = [{"name": request.name, "arguments": request.arguments} for request in requests]
    return _row(rng, question, calls, category, difficulty=1 if category == "single" else 2)


def _small_talk(rng: Random, difficulty: int) -> Row:
    question = rng.choice(SMALL_TALK).format(city=rng.choice(CITIES), name=rng.choice(NAMES))
    return _row(rng, question, [], "irrelevant", difficulty=difficulty)


def _row(rng: Random, question: str, calls: list[dict[str, Any]], category: str, *, difficulty: int) -> Row:
    needed = {call["name"] for call in calls}
    others = [skill for skill in SKILLS if skill.name not in needed]
    offered = [skill for skill in SKILLS if skill.name in needed] + rng.sample(others, 2)
    rng.shuffle(offered)
    return {
        "responses_create_params": {
            "input": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
            "tools": [skill.tool() for skill in offered],
        },
        "category": category,
        "difficulty": difficulty,
        "question": question,
        "check": "calls",
        "ground_truth": calls,
    }


def _hotel_task(rng: Random) -> Row:
    rooms = {f"r{number}": {"beds": rng.choice((1, 2, 3))} for number in range(1, 6)}
    guests = rng.sample(NAMES, 5)
    bookings = {
        f"b{number}": {"guest": guest, "room": rng.choice(list(rooms)), "nights": rng.randint(1, 6)}
        for number, guest in enumerate(guests[:4], start=1)
    }
    first, second = rng.sample((_cancel, _extend, _book, _move), 2)
    wishes = [first(rng, guests, bookings), second(rng, guests, bookings)]
    messages = [{"role": "user", "content": wish[0]} for wish in wishes]
    return {
        "responses_create_params": {
            "input": [{"role": "system", "content": HOTEL}, messages[0]],
            "tools": list(HOTEL_FUNCTIONS),
        },
        "category": "hotel",
        "difficulty": 3,
        "question": " ".join(message["content"] for message in messages),
        "check": "state",
        "world": {"collections": {"rooms": rooms, "bookings": bookings}, "tools": HOTEL_TOOLS},
        "turns": [[messages[1]]],
        "ground_truth": [[wish[1]] for wish in wishes],
    }


Wish = tuple[str, dict[str, Any]]
Bookings = dict[str, dict[str, Any]]


def _cancel(_rng: Random, guests: list[str], _bookings: Bookings) -> Wish:
    return f"Please cancel the booking of {guests[0]}.", _wish("cancel_booking", booking_id="b1")


def _extend(rng: Random, guests: list[str], bookings: Bookings) -> Wish:
    nights = bookings["b2"]["nights"] + rng.randint(1, 3)
    return f"{guests[1]} wants to stay {nights} nights in all.", _wish("change_booking", booking_id="b2", nights=nights)


def _book(rng: Random, guests: list[str], _bookings: Bookings) -> Wish:
    room, nights = f"r{rng.randint(1, 5)}", rng.randint(2, 7)
    return (
        f"Book room {room} for {guests[4]}, {nights} nights.",
        _wish("book_room", guest=guests[4], room=room, nights=nights),
    )


def _move(rng: Random, guests: list[str], bookings: Bookings) -> Wish:
    room = rng.choice([f"r{number}" for number in range(1, 6) if f"r{number}" != bookings["b3"]["room"]])
    return f"Move {guests[2]} to room {room}.", _wish("change_booking", booking_id="b3", room=room)


def _wish(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


GENERATOR: Final = TaskGenerator("function_calls", draw, identity=("question",), levels=(1, 2, 3))

if __name__ == "__main__":
    GENERATOR.main()
