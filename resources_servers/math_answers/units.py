"""The units that may follow a number: a closed list, with what each is worth in the base unit of its dimension.

A unit is a name, perhaps squared or cubed, perhaps over another (``km/h``, ``dollars per hour``). Names of things that
are counted (``eggs``) are units without a dimension: a closed list of common ones, and the words of the question. Every
other word is part of the value: ``42 million`` is not 42, ``2x`` is not 2, and ``7 AM`` is not 7 PM.
"""

import re
from collections import Counter
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

Dimension = tuple[tuple[str, int], ...]

_UNITS: Final[dict[str, tuple[str, int, Fraction]]] = {
    name: (dimension, power, Fraction(factor))
    for (dimension, power), names in {
        ("length", 1): {"mm": "1/1000", "cm": "1/100", "m": "1", "km": "1000", "inch": "127/5000", "ft": "381/1250",
                        "yard": "1143/1250", "mile": "201168/125"},
        ("length", 2): {"acre": "316160658/78125", "hectare": "10000"},
        ("length", 3): {"ml": "1/1000000", "cl": "1/100000", "dl": "1/10000", "l": "1/1000"},
        ("us volume", 1): {"cup": "1", "pint": "2", "quart": "4", "gallon": "16"},
        ("mass", 1): {"mg": "1/1000", "g": "1", "kg": "1000", "tonne": "1000000", "pound": "45359237/100000",
                      "ounce": "45359237/1600000"},
        ("time", 1): {"ms": "1/1000", "s": "1", "min": "60", "h": "3600", "day": "86400", "week": "604800"},
        ("calendar", 1): {"month": "1", "year": "12", "decade": "120", "century": "1200"},
        ("money", 1): {"cent": "1/100", "dollar": "1"},
        ("euro", 1): {"euro": "1"},
        ("sterling", 1): {"sterling": "1"},
        ("angle", 1): {"degree": "1"},
        ("radian", 1): {"radian": "1"},
        ("celsius", 1): {"celsius": "1"},
        ("fahrenheit", 1): {"fahrenheit": "1"},
        ("kelvin", 1): {"kelvin": "1"},
        ("energy", 1): {"J": "1", "kJ": "1000"},
        ("power", 1): {"W": "1", "kW": "1000"},
        ("force", 1): {"N": "1", "kN": "1000"},
        ("voltage", 1): {"V": "1"},
        ("current", 1): {"A": "1"},
        ("frequency", 1): {"Hz": "1", "kHz": "1000", "MHz": "1000000"},
        ("pressure", 1): {"Pa": "1", "kPa": "1000"},
        ("amount", 1): {"mol": "1"},
        ("data", 1): {"bit": "1", "byte": "8"},
        ("unit", 1): {"unit": "1"},
    }.items()
    for name, factor in names.items()
}  # fmt: skip
_SYNONYMS: Final = {
    "millimeter": "mm", "millimetre": "mm", "centimeter": "cm", "centimetre": "cm", "meter": "m", "metre": "m",
    "kilometer": "km", "kilometre": "km", "in": "inch", "inches": "inch", "foot": "ft", "feet": "ft", "yd": "yard",
    "mi": "mile", "milligram": "mg", "gram": "g", "kilogram": "kg", "ton": "tonne", "lb": "pound", "lbs": "pound",
    "oz": "ounce", "millisecond": "ms", "second": "s", "sec": "s", "minute": "min", "mins": "min", "hour": "h",
    "hr": "h", "hrs": "h", "milliliter": "ml", "millilitre": "ml", "liter": "l", "litre": "l", "L": "l", "mL": "ml",
    "ha": "hectare", "yr": "year", "centuries": "century", "°": "degree", "deg": "degree", "rad": "radian",
    "joule": "J", "watt": "W", "newton": "N", "volt": "V", "ampere": "A", "amp": "A", "hertz": "Hz", "pascal": "Pa",
    "mole": "mol", "buck": "dollar", "USD": "dollar", "EUR": "euro", "GBP": "sterling",
}  # fmt: skip
# Things that tasks count. The question names most of them; these are for rows without a question.
_COUNTED: Final = frozenset(
    {
        *("apple", "ball", "book", "box", "boxe", "card", "child", "children", "coin", "egg", "flower", "item"),
        *("member", "page", "people", "person", "piece", "player", "point", "student", "thing", "ticket", "time"),
    }
)
_MULTIPLIERS: Final = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12,
}  # fmt: skip
# Words that change a value, so a question that contains them does not make them names of things.
_VALUE_WORDS: Final = frozenset(
    {
        *_MULTIPLIERS, *("am", "pm", "noon", "midnight", "percent", "half", "third", "quarter", "fourth", "fifth"),
        *("tenth", "hundredth", "thousandth", "pair", "score", "square", "cube", "root", "power", "times", "plus"),
        *("minus", "over", "divided", "pi", "not", "no", "less", "more", "least", "most", "or", "and", "to", "than"),
        *("positive", "negative", "modulo", "mod", "base", "factorial", "north", "south", "east", "west"),
    }
)  # fmt: skip
_POWER_WORDS: Final = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_POWER: Final = re.compile(r"(?P<name>[A-Za-zµ°]+)\.?(?:\^\{?(?P<power>[23])\}?|(?P<sign>[²³]))?")
_OVER: Final = re.compile(r" ?/ ?| per ")
_RATES: Final = {"mph": "mile/h", "kph": "km/h", "kmh": "km/h", "fps": "ft/s", "rpm": "unit/min"}
MAX_WORDS: Final = 12


@dataclass(frozen=True, slots=True)
class Unit:
    """A dimension (its base units with their powers) and the size of the unit in them, or names of counted things."""

    dimension: Dimension
    factor: Fraction = Fraction(1)
    things: frozenset[str] = frozenset()

    def agrees(self, other: "Unit") -> bool:
        """Whether numbers with the two units can be compared: 5 red balls are 5 balls, and not 5 books."""
        if self.things and other.things:
            return self.things <= other.things or other.things <= self.things
        return self.dimension == other.dimension


NO_UNIT: Final = Unit(())
DOLLAR: Final = Unit((("money", 1),))
EURO: Final = Unit((("euro", 1),))
STERLING: Final = Unit((("sterling", 1),))


def read_unit(text: str, counted: AbstractSet[str] = frozenset()) -> Unit | None:
    """The unit that is written after a number, ``NO_UNIT`` for an empty text, or None if the text is not a unit."""
    text = " ".join(text.replace("\\", "").split()).rstrip(".")
    text = re.sub(r"\^\{?circ\}? ?", "°", text)
    if not text:
        return NO_UNIT
    if len(text) > 1 and text[0] == "°":  # °C, and ° alone
        text = {"C": "celsius", "F": "fahrenheit", "K": "kelvin"}.get(text[1:].strip(), text[1:])
    text = re.sub(r"\Adegrees? (?=celsius|fahrenheit)", "", text, flags=re.IGNORECASE)
    parts = _OVER.split(_RATES.get(text.lower(), text))
    read = [_factor(part) for part in parts]
    known = [unit for unit in read if unit is not None]
    if len(parts) <= 2 and len(known) == len(parts):
        return known[0] if len(known) == 1 else _quotient(*known)
    things = _things(text, counted)
    return Unit((("count", 1),), things=things) if things else None


def read_multiplier(text: str) -> tuple[int, str]:
    """The number that a word such as ``million`` stands for at the beginning of a text, and the rest of the text."""
    first, _, rest = text.strip().partition(" ")
    times = _MULTIPLIERS.get(first.lower().rstrip("."))
    return (times, rest) if times else (1, text)


def things_in(question: str) -> frozenset[str]:
    """The words of a question that may name what is counted: no numbers, no words that change a value."""
    words = {_singular(word) for word in re.findall(r"[A-Za-z]{3,30}", question[:5_000])}
    return frozenset(words - _VALUE_WORDS)


def _factor(text: str) -> Unit | None:
    word, _, rest = text.partition(" ")
    raised = _POWER_WORDS.get(word.lower().rstrip(".")) if rest else None
    match = _POWER.fullmatch(rest if raised else text)
    if match is None or (raised and (match["power"] or match["sign"])):
        return None
    found = _lookup(match["name"])
    if found is None:
        return None
    dimension, own, factor = found
    power = raised or int(match["power"] or {"²": 2, "³": 3}.get(match["sign"] or "", 1))
    return Unit(((dimension, own * power),), factor**power)


def _lookup(name: str) -> tuple[str, int, Fraction] | None:
    # Symbols differ by case (a newton is not a nanometre, 42M is not 42 m); words do not.
    spellings = [name] if len(name) == 1 else [name, name.lower()]
    for spelling in spellings:
        for form in (spelling, spelling.removesuffix("s"), spelling.removesuffix("es")):
            found = _UNITS.get(_SYNONYMS.get(form, form))
            # "ms" is no plural of "m".
            if found and (form == spelling or len(form) > 2):
                return found
    return None


def _quotient(top: Unit, bottom: Unit) -> Unit:
    powers = Counter(dict(top.dimension))
    powers.subtract(dict(bottom.dimension))
    return Unit(tuple(sorted((name, power) for name, power in powers.items() if power)), top.factor / bottom.factor)


def _things(text: str, counted: AbstractSet[str]) -> frozenset[str]:
    words = [_singular(word) for word in re.findall(r"[A-Za-z]+", text)]
    if len(words) > MAX_WORDS or re.search(r"[^A-Za-z ,'-]", text):
        return frozenset()
    known = all(word in counted or word in _COUNTED for word in words)
    return frozenset(words) if known else frozenset()


def _singular(word: str) -> str:
    word = word.lower()
    return word.removesuffix("s") if len(word) > 3 and not word.endswith("ss") else word
