"""What guessing may reach: the kind of answer that a task asks for, and the chance that a move is right by luck.

A constant is right by luck where it is what the task expects, a list of values if the verifier picks the right one, and
anything else as often as a random choice among the options, or among the few values that are ever expected. Where a
task expects no value (a form to follow, or that nothing is called), it is as often as unrelated texts are rewarded.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nemo_gym.audit.attacks import Move, see
from nemo_gym.audit.players import Row, expected_values, expects_nothing

SIGNIFICANT: Final = 0.002  # how unlikely luck must be before a verifier is blamed
FEW_VALUES: Final = 20
MANY_TASKS: Final = 8
MOSTLY: Final = 0.6
ALL_OF_THEM: Final = 4  # tasks, all of which nobody solves by guessing
FREE: Final = frozenset({"free", "nothing"})
_CODE: Final = frozenset({"tests", "test", "test_cases", "unit_tests", "entry_point"})
_SCHEMAS: Final = frozenset({"schema", "schema_str", "json_schema", "schema_type"})
_QUERIES: Final = frozenset({"databases", "database", "db_id", "schema_sql"})
_YES_NO: Final = frozenset({"yes", "no", "true", "false"})


def kind_of_answer(row: Row) -> str:
    """What kind of answer a task asks for, as far as its fields show it."""
    names = set(row)
    for kind, fields in (("code", _CODE), ("query", _QUERIES), ("document", _SCHEMAS), ("choice", {"options"})):
        if names & fields:
            return kind
    values = list(expected_values(row))
    if not values and expects_nothing(row):
        return "nothing"
    if (row.get("responses_create_params") or {}).get("tools"):
        return "tools"
    return _kind_of_value(values[0]) if values else "free"


def _kind_of_value(value: Any) -> str:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, dict | list):
        return "list" if isinstance(value, list) else "document"
    text = plain_value(value)
    if text in _YES_NO:
        return "yes or no"
    return "number" if isinstance(text, float) else "text"


def plain_value(value: Any) -> str | float:
    """A value as it is compared: numbers by what they are, texts without case."""
    text = str(value).strip().casefold()
    try:
        return float(text.replace(",", "").strip("$ "))
    except ValueError:
        return text


@dataclass(frozen=True, slots=True)
class Guesses:
    """What is expected of the tasks of an environment."""

    expected: dict[int, frozenset[str | float]]
    chances: dict[int, float]
    commonest: str | None

    @classmethod
    def of(cls, rows: dict[int, Row], unrelated: Mapping[int, float]) -> "Guesses":
        """Count what the tasks expect. ``unrelated`` is the share of unrelated texts that each task rewards."""
        values = {number: _plain_expected(row) for number, row in rows.items()}
        counts = Counter(value for each in values.values() for value in each)
        kinds: dict[str, set[str | float]] = {}
        tasks = Counter(map(kind_of_answer, rows.values()))
        for number, row in rows.items():
            kinds.setdefault(kind_of_answer(row), set()).update(values[number])
        chances = {}
        # A verifier that rewards most of what has nothing to do with its tasks does not leave it to luck.
        is_strict = sum(unrelated.values()) <= MOSTLY * len(rows)
        for number, row in rows.items():
            kind = kind_of_answer(row)
            chances[number] = _chance(row, kinds[kind], tasks[kind])
            if kind in FREE and is_strict:
                chances[number] = unrelated.get(number, 0.0)
        return cls(values, chances, _commonest(rows, counts))

    def of_move(self, number: int, move: Move) -> float:
        """The chance that a move solves a task by luck."""
        if move.chance is not None:
            return move.chance
        named = {plain_value(value) for value in move.values}
        hit = 1 / len(named) if named & self.expected[number] else 0.0
        return max(hit, self.chances[number])

    def of_moves(self, number: int, moves: Iterable[Move]) -> float:
        """The chance that one of several moves solves a task; the same values in another form are the same guess."""
        distinct = {(move.values or id(move)): self.of_move(number, move) for move in moves}
        return 1 - math.prod(1 - chance for chance in distinct.values())


def _plain_expected(row: Row) -> frozenset[str | float]:
    found: list[Any] = []
    for value in expected_values(row):
        found += value if isinstance(value, list) else [value]
    return frozenset(plain_value(value) for value in found if not isinstance(value, dict | list))


def _chance(row: Row, ever_expected: set[str | float], tasks: int) -> float:
    kind = kind_of_answer(row)
    if kind == "choice":
        options = row.get("options")
        return 1 / max(2, len(options) if isinstance(options, list | dict) else len(see(row).options) or 4)
    if kind == "yes or no":
        return 0.5
    # With few tasks, a small number of different answers says nothing.
    is_small = tasks >= MANY_TASKS and 0 < len(ever_expected) <= min(FEW_VALUES, tasks // 2)
    return 1 / len(ever_expected) if is_small else 0.0


def _commonest(rows: dict[int, Row], counts: Counter[str | float]) -> str | None:
    if not counts:
        return None
    best, times = counts.most_common(1)[0]
    if times < 2:
        return None
    written = (value for row in rows.values() for value in expected_values(row))
    flat = (one for value in written for one in (value if isinstance(value, list) else [value]))
    return next(str(value) for value in flat if not isinstance(value, dict | list) and plain_value(value) == best)


def is_luck(solved: float, chances: Sequence[float]) -> bool:
    """Whether so many tasks may be solved by chance, given the chance at each of them."""
    if solved >= len(chances) >= ALL_OF_THEM and max(chances) <= 0.5:
        return False
    likely = [1.0]  # how likely each number of solved tasks is
    for chance in chances:
        likely = [a * (1 - chance) + b * chance for a, b in zip([*likely, 0.0], [0.0, *likely], strict=True)]
    return sum(likely[math.floor(solved + 1e-9) :]) >= SIGNIFICANT
