"""The tools that generated tasks are about, and how people ask for them."""

from dataclasses import dataclass
from random import Random
from typing import Any, Final, NamedTuple

CITIES: Final = (
    *(
        "Paris",
        "Oslo",
        "Lima",
        "Cairo",
        "Tokyo",
        "Rome",
        "Quito",
        "Delhi",
        "Bern",
        "Dublin",
        "Athens",
        "Baku",
        "Berlin",
    ),
    *("Boston", "Cork", "Dakar", "Denver", "Geneva", "Hanoi", "Havana", "Jakarta", "Kyoto", "Lagos", "Leeds", "Lisbon"),
    *("London", "Lyon", "Madrid", "Malmo", "Manila", "Miami", "Milan", "Moscow", "Nairobi", "Naples", "Nice", "Osaka"),
    *("Porto", "Prague", "Riga", "Seoul", "Sofia", "Sydney", "Tallinn", "Tunis", "Turin", "Vienna", "Warsaw", "Zagreb"),
)
NAMES: Final = (
    *("Anna", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Hugo", "Ida", "Jack", "Kate", "Liam", "Mia", "Noah"),
    *("Olga", "Paul", "Rosa", "Sam", "Tina", "Victor"),
)
DAYS: Final = ("Monday", "Tuesday", "Friday", "Sunday")
CURRENCIES: Final = ("euros", "dollars", "pounds", "yen", "francs")
LANGUAGES: Final = ("French", "German", "Spanish", "Polish", "Turkish")
WORDS: Final = ("house", "river", "bread", "window", "garden", "friend", "winter", "horse", "letter", "bridge", "cloud")
THINGS: Final = ("milk", "bread", "apples", "rice", "cheese", "coffee", "soap", "eggs")
TEXTS: Final = ("I am late", "See you soon", "Call me", "Happy birthday", "Dinner at eight")
RESTAURANTS: Final = ("Luigi", "Sakura", "The Old Mill", "Casa Verde", "Blue Door")
SONGS: Final = ("Yesterday", "Imagine", "Hurt", "Creep", "Halo", "Hello")


class Request(NamedTuple):
    """A sentence and the call it asks for."""

    text: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Skill:
    """A tool, one sentence that asks for it, and where the blanks of both come from."""

    name: str
    description: str
    sentence: str
    blanks: dict[str, tuple[Any, ...]]

    def ask(self, rng: Random) -> Request:
        """A request with random arguments."""
        arguments = {name: rng.choice(values) for name, values in self.blanks.items()}
        return Request(self.sentence.format_map(arguments), self.name, arguments)

    def tool(self) -> dict[str, Any]:
        """The tool as it is described to the model."""
        properties = {
            name: {"type": "integer" if isinstance(values[0], int) else "string"}
            for name, values in self.blanks.items()
        }
        return function(self.name, self.description, properties)


def function(name: str, description: str, properties: dict[str, Any], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    """A tool in the form of the Responses API."""
    required = [key for key in properties if key not in optional]
    parameters = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "name": name,
        "description": description,
        "parameters": parameters,
        "strict": not optional,
    }


SKILLS: Final = (
    Skill(
        "get_weather",
        "The weather in a city.",
        "What will the weather be in {city} on {day}?",
        {"city": CITIES, "day": DAYS},
    ),
    Skill("get_time", "The local time in a city.", "What time is it in {city}?", {"city": CITIES}),
    Skill(
        "set_timer",
        "Starts a timer.",
        "Set a timer for {minutes} minutes.",
        {"minutes": tuple(range(2, 120))},
    ),
    Skill(
        "convert_money",
        "Converts an amount of money.",
        "How much is {amount} {source} in {target}?",
        {"amount": tuple(range(10, 500, 5)), "source": CURRENCIES, "target": ("rupees", "pesos", "kroner", "rand")},
    ),
    Skill(
        "send_message",
        "Sends a text message.",
        'Send {recipient} the message "{text}".',
        {"recipient": NAMES, "text": TEXTS},
    ),
    Skill(
        "translate",
        "Translates a word.",
        'Translate "{word}" into {language}.',
        {"word": WORDS, "language": LANGUAGES},
    ),
    Skill(
        "book_table",
        "Reserves a table in a restaurant.",
        "Book a table for {people} people at {restaurant}.",
        {"people": tuple(range(2, 12)), "restaurant": RESTAURANTS},
    ),
    Skill(
        "play_song",
        "Plays a song.",
        "Play the song {title} at volume {volume}.",
        {"title": SONGS, "volume": tuple(range(10, 100, 5))},
    ),
    Skill(
        "add_to_list",
        "Adds something to the shopping list.",
        "Put {quantity} {item} on my shopping list.",
        {"quantity": tuple(range(1, 10)), "item": THINGS},
    ),
    Skill(
        "find_route",
        "Finds the way.",
        "How do I get from {start} to {end}?",
        {"start": CITIES[::2], "end": CITIES[1::2]},
    ),
)
# What none of the tools can do.
SMALL_TALK: Final = (
    "What is the capital of {city}'s country?",
    "Tell me something about {city}.",
    "My name is {name}.",
    "Is {name} a common name?",
    "Write a short poem about {city}.",
)
