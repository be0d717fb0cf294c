"""Arithmetic word problems as data: a sentence, the expression that solves it, and what its blanks may hold.

The expected answer is not written down: it is the value of the expression, so question and answer cannot disagree.
Level 1 takes one operation on small whole numbers, level 2 two operations, level 3 three, with prices to the cent.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

Blank = Sequence[int] | Sequence[str]

NAMES: Final = ("Ann", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gia", "Hugo", "Ida", "Jon", "Kim", "Leo", "Mia", "Noor")
THINGS: Final = ("apples", "books", "cards", "coins", "eggs", "marbles", "nuts", "pens", "shells", "stamps", "stickers")
GOODS: Final = ("bag", "ball", "book", "cake", "cap", "game", "hat", "kite", "lamp", "mug", "plant", "toy")


@dataclass(frozen=True, slots=True)
class Template:
    """One kind of problem at one level; ``{blanks}`` are filled from ``blanks`` and the word lists."""

    kind: str
    level: int
    question: str
    expression: str
    blanks: dict[str, Blank] = field(default_factory=dict)


PERCENTAGE: Final = (
    Template(
        "percentage", 1, "What is {p}% of {n}?", "{n} * {p} / 100", {"p": range(5, 100, 5), "n": range(20, 500, 20)}
    ),
    Template(
        "percentage",
        2,
        "A {good} costs ${n}. It is {p}% off. What is the new price?",
        "{n} - {n} * {p} / 100",
        {"p": range(5, 60, 5), "n": range(20, 300, 20)},
    ),
    Template(
        "percentage",
        3,
        "A meal costs ${n}.50. {name} adds a {p}% tip and pays with ${b}. How much change does {name} get?",
        "{b} - {n}.50 * (100 + {p}) / 100",
        {"p": range(10, 30, 2), "n": range(10, 60), "b": (80, 90, 100)},
    ),
)
SUM: Final = (
    Template(
        "sum",
        1,
        "{name} has {a} {things} and gets {b} more. How many {things} does {name} have now?",
        "{a} + {b}",
        {"a": range(11, 100), "b": range(11, 100)},
    ),
    Template("sum", 1, "What is {a} plus {b}?", "{a} + {b}", {"a": range(11, 100), "b": range(11, 100)}),
    Template(
        "sum",
        2,
        "{name} has {a} {things}, gets {b} more and gives away {c}. How many {things} are left?",
        "{a} + {b} - {c}",
        {"a": range(40, 400), "b": range(11, 100), "c": range(11, 50)},
    ),
    Template(
        "sum",
        3,
        "{name} reads {a} pages on Monday, twice as many on Tuesday and {b} fewer than that on Wednesday. "
        "How many pages in total?",
        "{a} + 2 * {a} + 2 * {a} - {b}",
        {"a": range(20, 90), "b": range(5, 30)},
    ),
)
PRODUCT: Final = (
    Template(
        "product",
        1,
        "Each box holds {a} {things}. How many {things} are in {b} boxes?",
        "{a} * {b}",
        {"a": range(6, 50), "b": range(3, 13)},
    ),
    Template("product", 1, "What is {a} times {b}?", "{a} * {b}", {"a": range(11, 100), "b": range(3, 30)}),
    Template(
        "product",
        2,
        "{name} fills {a} boxes with {b} {things} each and has {c} left over. How many {things} are there?",
        "{a} * {b} + {c}",
        {"a": range(3, 30), "b": range(6, 50), "c": range(2, 20)},
    ),
    Template(
        "product",
        3,
        "A shelf holds {a} rows of {b} {things}. There are {c} shelves, and {d} {things} are sold. How many are left?",
        "{a} * {b} * {c} - {d}",
        {"a": range(3, 15), "b": range(6, 30), "c": range(3, 9), "d": range(10, 50)},
    ),
)
CHANGE: Final = (
    Template(
        "change",
        1,
        "{name} has ${b} and spends ${a}. How many dollars are left?",
        "{b} - {a}",
        {"a": range(3, 90), "b": (20, 50, 100)},
    ),
    Template(
        "change",
        1,
        "A {good} costs ${a}. {name} pays with ${b}. How much change does {name} get?",
        "{b} - {a}",
        {"a": range(3, 50), "b": (20, 50, 100)},
    ),
    Template(
        "change",
        2,
        "A {good} costs ${a}. {name} buys {c} and pays with ${b}. How much change does {name} get?",
        "{b} - {c} * {a}",
        {"a": range(3, 30), "b": (50, 100, 200), "c": range(2, 7)},
    ),
    Template(
        "change",
        3,
        "A {good} costs ${a}.25 and a pen ${b}.40. {name} buys {c} of each and pays with $100. "
        "How much change does {name} get?",
        "100 - {c} * ({a}.25 + {b}.40)",
        {"a": range(3, 20), "b": range(1, 5), "c": range(2, 5)},
    ),
)
AVERAGE: Final = (
    Template(
        "average",
        1,
        "What is the average of {a} and {b}?",
        "({a} + {b}) / 2",
        {"a": range(4, 60, 2), "b": range(4, 60, 2)},
    ),
    Template(
        "average",
        2,
        "What is the average of {a}, {b}, {c} and {d}?",
        "({a} + {b} + {c} + {d}) / 4",
        {name: range(4, 90) for name in "abcd"},
    ),
    Template(
        "average",
        3,
        "{name} scores {a}, {b} and {c}. Which fourth score makes the average {d}?",
        "4 * {d} - ({a} + {b} + {c})",
        {"a": range(40, 80), "b": range(40, 80), "c": range(40, 80), "d": range(60, 75)},
    ),
)
UNITS: Final = (
    Template("units", 1, "How many minutes are in {a} hours?", "{a} * 60", {"a": range(2, 48)}),
    Template("units", 1, "How many days are in {a} weeks?", "{a} * 7", {"a": range(2, 80)}),
    Template("units", 1, "How many centimetres are in {a} metres?", "{a} * 100", {"a": range(2, 80)}),
    Template(
        "units",
        2,
        "A film lasts {a} hours and {b} minutes. How many minutes is that?",
        "{a} * 60 + {b}",
        {"a": range(2, 9), "b": range(5, 60)},
    ),
    Template(
        "units",
        3,
        "A train goes {a} km in {b} minutes. How many km does it go in {c} hours at that speed?",
        "{a} / {b} * 60 * {c}",
        {"a": range(10, 90), "b": (10, 15, 20, 30, 40), "c": range(2, 9)},
    ),
)

TEMPLATES: Final = (*PERCENTAGE, *SUM, *PRODUCT, *CHANGE, *AVERAGE, *UNITS)
LEVELS: Final = (1, 2, 3)
