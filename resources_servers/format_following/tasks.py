"""The material of the tasks: what to write about, and what to demand of its form.

A task is a goal ("Write one short sentence about rain.") and one or more demands ("Use exactly 6 words."), each a
sentence for the model and the check that belongs to it. A goal takes at most one demand of a ``slot``, and no demand
forbids what another needs. Every kind of demand has a worked example, which a small model needs to see.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

TOPICS: Final = (
    "animals", "birds", "cities", "colors", "countries", "drinks", "flowers", "foods", "fruits", "games", "jobs",
    "months", "planets", "school subjects", "shapes", "sports", "tools", "toys", "trees", "vegetables",
)  # fmt: skip
SUBJECTS: Final = (
    "apple", "bike", "boat", "book", "bread", "bridge", "cat", "coffee", "cow", "dog", "farm", "fish", "garden",
    "king", "lake", "moon", "mountain", "music", "phone", "rain", "river", "school", "sea", "ship", "snow", "storm",
    "summer", "sun", "tea", "teacher", "train", "tree", "winter",
)  # fmt: skip
THINGS: Final = (
    "a bird", "a book", "a bus", "a car", "a cat", "a chair", "a city", "a dog", "a fish", "a flower", "a house",
    "a phone", "a shirt", "a ship", "a tree",
)  # fmt: skip
QUESTIONS: Final = (
    "Is fire cold?", "Is ice cold?", "Is milk white?", "Is the sky green?", "Is the sun hot?", "Can birds fly?",
    "Can cats read?", "Can dogs bark?", "Can fish swim?", "Do cars have wheels?", "Do trees have leaves?",
    "Does rain fall up?", "Is a mouse big?", "Is bread food?", "Is gold a metal?", "Is salt sweet?",
)  # fmt: skip
OPENERS: Final = ("The", "Every", "My", "Today", "Some", "Many", "When", "In", "Our")
CLOSERS: Final = ("day", "home", "night", "people", "water", "world", "time", "life", "friends", "sky")
COMMON: Final = ("good", "big", "water", "day", "people", "time", "new", "old", "beautiful", "small")
KEYS: Final = ("name", "color", "size", "age", "place", "price", "year", "type")


@dataclass(frozen=True, slots=True)
class Demand:
    """A request, in words and as a check if it has one; ``needs`` holds words that the answer must contain."""

    instruction: str
    check: Mapping[str, Any] | None = None
    needs: str = ""


@dataclass(frozen=True, slots=True)
class Option:
    """A kind of demand that a goal can take; ``level`` is the lowest difficulty it is used at."""

    slot: str
    make: Callable[[Random], Demand]
    level: int = 1


@dataclass(frozen=True, slots=True)
class Goal:
    """What to write, and what can be demanded of it."""

    make: Callable[[Random], Demand]
    options: tuple[Option, ...]


def numbered_list(rng: Random) -> Demand:
    """A numbered list."""
    count = rng.randint(3, 5)
    return Demand(f"Number them 1 to {count}, one per line.", {"kind": "numbered_list", "count": count})


def bullet_list(rng: Random) -> Demand:
    """A list with bullets."""
    count = rng.randint(2, 4)
    return Demand(f'Give exactly {count} lines, each starting with "- ".', {"kind": "bullet_list", "count": count})


def comma_list(rng: Random) -> Demand:
    """A list in one line."""
    count = rng.randint(3, 5)
    return Demand(f"Give exactly {count}, separated by commas.", {"kind": "comma_list", "count": count})


def line_count(rng: Random) -> Demand:
    """A number of lines."""
    count = rng.randint(2, 4)
    return Demand(f"Write exactly {count} lines.", {"kind": "line_count", "count": count})


def two_sentences(_: Random) -> Demand:
    """Two sentences."""
    return Demand("Write exactly 2 sentences.", {"kind": "sentence_count", "count": 2})


def sentence_count(rng: Random) -> Demand:
    """More sentences."""
    count = rng.randint(3, 5)
    return Demand(f"Write exactly {count} sentences.", {"kind": "sentence_count", "count": count})


def word_count(rng: Random) -> Demand:
    """A range of words around a number."""
    least = rng.randint(4, 7)
    instruction = f"Use between {least} and {least + 4} words."
    return Demand(instruction, {"kind": "word_count", "at_least": least, "at_most": least + 4})


def few_words(rng: Random) -> Demand:
    """An upper bound of words."""
    count = rng.randint(5, 8)
    return Demand(f"Use at most {count} words.", {"kind": "word_count", "at_most": count})


def short_words(rng: Random) -> Demand:
    """Short words only."""
    longest = rng.randint(5, 7)
    instruction = f"No word may have more than {longest} letters."
    return Demand(instruction, {"kind": "word_length", "at_most": longest})


def starts_with(rng: Random) -> Demand:
    """A given first word."""
    word = rng.choice(OPENERS)
    return Demand(f'Start with the word "{word}".', {"kind": "starts_with", "text": word}, needs=word)


def ends_with(rng: Random) -> Demand:
    """A given last word."""
    word = rng.choice(CLOSERS)
    return Demand(f'End with the word "{word}".', {"kind": "ends_with", "text": word}, needs=word)


def contains_word(rng: Random) -> Demand:
    """A word that must occur once."""
    word = rng.choice(COMMON)
    check = {"kind": "contains_word", "word": word, "count": 1}
    return Demand(f'Use the word "{word}" exactly once.', check, needs=word)


def contains_word_twice(rng: Random) -> Demand:
    """A word that must occur twice."""
    word = rng.choice(COMMON)
    check = {"kind": "contains_word", "word": word, "count": 2}
    return Demand(f'Use the word "{word}" exactly twice.', check, needs=word)


def excludes_letter(rng: Random) -> Demand:
    """A letter that must not occur."""
    letter = rng.choice("bcfgpuvwy")
    return Demand(f'Do not use the letter "{letter}".', {"kind": "excludes_letter", "letter": letter})


def excludes_common_letter(rng: Random) -> Demand:
    """A frequent letter that must not occur."""
    letter = rng.choice("aeiost")
    return Demand(f'Do not use the letter "{letter}".', {"kind": "excludes_letter", "letter": letter})


def excludes_word(rng: Random) -> Demand:
    """A frequent word that must not occur."""
    word = rng.choice(("the", "a", "is"))
    return Demand(f'Do not use the word "{word}".', {"kind": "excludes_word", "word": word})


def each_word_starts_with(rng: Random) -> Demand:
    """Alliteration."""
    letter = rng.choice("bcmpst")
    instruction = f'Every word must start with the letter "{letter}".'
    return Demand(instruction, {"kind": "each_word_starts_with", "letter": letter})


def all_caps(_: Random) -> Demand:
    """Capital letters."""
    return Demand("Use capital letters only.", {"kind": "all_caps"})


def all_lowercase(_: Random) -> Demand:
    """Small letters."""
    return Demand("Use small letters only.", {"kind": "all_lowercase"})


def quoted(_: Random) -> Demand:
    """Quotation marks."""
    return Demand("Put it in double quotes.", {"kind": "quoted"})


def no_commas(_: Random) -> Demand:
    """No commas."""
    return Demand("Do not use commas.", {"kind": "no_commas"})


def yes_or_no(_: Random) -> Demand:
    """One word out of two."""
    return Demand("Answer only yes or no.", {"kind": "one_of", "options": ["yes", "no"]})


def json_keys(rng: Random) -> Demand:
    """A JSON object."""
    keys = rng.sample(KEYS, rng.randint(3, 4))
    listed = ", ".join(f'"{key}"' for key in keys)
    return Demand(f"Write a JSON object with the keys {listed}.", {"kind": "json_keys", "keys": keys})


def _about(request: str, rng: Random) -> Demand:
    # The subject is checked, so that an answer copied from a worked example earns nothing.
    word = rng.choice(SUBJECTS)
    return Demand(f'{request} with the word "{word}".', {"kind": "contains_word", "word": word}, needs=word)


GOALS: Final = {
    "list": Goal(
        lambda rng: Demand(f"Name some {rng.choice(TOPICS)}."),
        (
            Option("layout", numbered_list),
            Option("layout", bullet_list),
            Option("layout", comma_list),
            Option("case", all_caps, level=2),
            Option("case", all_lowercase, level=2),
            Option("letters", excludes_letter),
            Option("letters", excludes_common_letter, level=3),
            Option("length", short_words, level=2),
        ),
    ),
    "sentence": Goal(
        lambda rng: _about("Write one short sentence", rng),
        (
            Option("start", starts_with),
            Option("end", ends_with),
            Option("count", word_count),
            Option("count", few_words),
            Option("words", contains_word),
            Option("words", contains_word_twice, level=2),
            Option("words", excludes_word),
            Option("case", all_caps),
            Option("case", all_lowercase),
            Option("letters", excludes_letter),
            Option("letters", excludes_common_letter, level=3),
            Option("length", short_words),
            Option("marks", quoted, level=2),
            Option("commas", no_commas, level=2),
        ),
    ),
    "text": Goal(
        lambda rng: _about("Write a short text", rng),
        (
            Option("layout", two_sentences),
            Option("layout", sentence_count, level=2),
            Option("layout", line_count),
            Option("start", starts_with, level=2),
            Option("end", ends_with, level=2),
            Option("words", contains_word, level=2),
            Option("case", all_caps, level=2),
            Option("letters", excludes_letter, level=2),
            Option("first", each_word_starts_with, level=3),
        ),
    ),
    "question": Goal(
        lambda rng: Demand(rng.choice(QUESTIONS)),
        (Option("answer", yes_or_no, level=2), Option("case", all_caps, level=2)),
    ),
    "json": Goal(
        lambda rng: Demand(f"Describe {rng.choice(THINGS)}."),
        (Option("layout", json_keys), Option("case", all_lowercase, level=2)),
    ),
}

_SENTENCE: Final = 'Write one short sentence with the word "horse".'
_TEXT: Final = 'Write a short text with the word "horse".'
_LIST: Final = "Name some insects."
DEMONSTRATIONS: Final = {
    ("list", "numbered_list"): (f"{_LIST} Number them 1 to 3, one per line.", "1. Ant\n2. Bee\n3. Fly"),
    ("sentence", "starts_with"): (f'{_SENTENCE} Start with the word "Most".', "Most people like a horse."),
    ("list", "bullet_list"): (f'{_LIST} Give exactly 3 lines, each starting with "- ".', "- Ant\n- Bee\n- Fly"),
    ("sentence", "ends_with"): (f'{_SENTENCE} End with the word "grass".', "The horse eats grass."),
    ("list", "comma_list"): (f"{_LIST} Give exactly 4, separated by commas.", "Ant, Bee, Fly, Moth"),
    ("text", "line_count"): (f"{_TEXT} Write exactly 3 lines.", "The horse is strong.\nIt eats grass.\nIt runs fast."),
    ("sentence", "word_count"): (f"{_SENTENCE} Use between 4 and 6 words.", "The horse runs very fast."),
    ("list", "all_caps"): (f"{_LIST} Use capital letters only.", "ANT, BEE, FLY"),
    ("sentence", "word_length"): (f"{_SENTENCE} No word may have more than 6 letters.", "The horse is on the grass."),
    ("list", "all_lowercase"): (f"{_LIST} Use small letters only.", "ant, bee, fly"),
    ("sentence", "contains_word"): (f'{_SENTENCE} Use the word "fast" exactly once.', "The horse runs fast."),
    ("list", "excludes_letter"): (f'{_LIST} Do not use the letter "k".', "Ant, Bee, Fly"),
    ("text", "sentence_count"): (f"{_TEXT} Write exactly 2 sentences.", "The horse is strong. It eats grass."),
    ("list", "word_length"): (f"{_LIST} No word may have more than 6 letters.", "Ant, Bee, Fly"),
    ("sentence", "excludes_letter"): (f'{_SENTENCE} Do not use the letter "k".', "The horse runs fast."),
    ("question", "one_of"): ("Is grass green? Answer only yes or no.", "Yes"),
    ("sentence", "excludes_word"): (f'{_SENTENCE} Do not use the word "in".', "The horse runs fast."),
    ("json", "json_keys"): (
        'Describe a horse. Write a JSON object with the keys "food", "legs".',
        '{"food": "grass", "legs": "4"}',
    ),
    ("sentence", "all_caps"): (f"{_SENTENCE} Use capital letters only.", "THE HORSE RUNS FAST."),
    ("text", "each_word_starts_with"): (
        f'{_TEXT} Every word must start with the letter "h".',
        "Happy Hugo has his horse here.",
    ),
    ("sentence", "all_lowercase"): (f"{_SENTENCE} Use small letters only.", "the horse runs fast."),
    ("sentence", "quoted"): (f"{_SENTENCE} Put it in double quotes.", '"The horse runs fast."'),
    ("sentence", "no_commas"): (f"{_SENTENCE} Do not use commas.", "The horse runs fast."),
}
