"""Calls that a model made, calls that a row expects, and whether the former satisfy the latter.

A value is compared as JSON: ``true`` is not 1, and 5.0 is not an integer where the tool asks for one. Text is compared
without case, spaces and the punctuation that people leave out of dates and names. Where a row lists alternatives, the
rules are those of the Berkeley Function-Calling Leaderboard: a value has the type that the tool declares or that of the
first alternative, and a parameter that the tool requires can't be left out. Everything is bounded by the size of the
expectation, not by what the model wrote.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from nemo_gym.openai_utils import NeMoGymResponseFunctionToolCall

MAX_ARGUMENTS: Final = 100_000
# An alternative that means: the argument may be left out.
OPTIONAL: Final = ""
_TYPES: Final[Mapping[str, type[Any]]] = {
    "string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict,
}  # fmt: skip
_IGNORED: Final = re.compile(r"[ ,./\-_*^]")


@dataclass(frozen=True, slots=True)
class Call:
    """A tool and its arguments; ``arguments`` is None if the model did not write a JSON object."""

    name: str
    arguments: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class ExpectedCall:
    """A tool and, for each argument, the values that are accepted."""

    name: str
    accepted: Mapping[str, Sequence[Any]]
    # Values are taken as they are; otherwise an object in an alternative lists the accepted values of each key.
    exact: bool
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of the tool, as JSON Schema

    def mismatch(self, call: Call) -> str | None:
        """Why the call is not the expected one; None if it is."""
        if call.name != self.name:
            return f"called {shown(call.name)} instead of {self.name}"
        if call.arguments is None:
            return f"{self.name}: the arguments are not a JSON object"
        for name in call.arguments:
            if name not in self.accepted:
                return f"{self.name}: unexpected argument {shown(name)}"
        for name, alternatives in self.accepted.items():
            if name not in call.arguments:
                if not self.may_be_left_out(name):
                    return f"{self.name}: argument {name} is missing"
            elif not self._accepts(name, call.arguments[name], alternatives):
                return f"{self.name}: {name} is {shown(call.arguments[name])}"
        return None

    def may_be_left_out(self, name: str) -> bool:
        """Whether a call without an argument can be right."""
        return (
            not self.exact and OPTIONAL in self.accepted[name] and name not in (self.parameters.get("required") or ())
        )

    def _accepts(self, name: str, value: Any, alternatives: Sequence[Any]) -> bool:
        declared = (self.parameters.get("properties") or {}).get(name) or {}
        if self.exact:
            is_whole = declared.get("type") == "integer" and not any(type(each) is float for each in alternatives)
            fits = not (is_whole and type(value) is float)
        else:
            fits = has_type(value, declared, alternatives)
        return fits and any(same(value, each, exact=self.exact) for each in alternatives)


def has_type(value: Any, declared: Mapping[str, Any], alternatives: Sequence[Any]) -> bool:
    """Whether a value has the declared type or that of the first alternative; of a list, every item."""
    wanted = _TYPES.get(str(declared.get("type")))
    if wanted is None:
        return True
    if type(value) is not wanted and not (wanted is float and type(value) is int):
        return type(value) is _first_type(alternatives)
    items = _TYPES.get(str((declared.get("items") or {}).get("type")))
    if wanted is not list or items is None:
        return True
    return any(
        not isinstance(each, list) or {type(item) for item in value} <= {items, *map(type, each)}
        for each in alternatives
    )


def _first_type(alternatives: Sequence[Any]) -> type[Any] | None:
    return next((type(each) for each in alternatives if each != OPTIONAL), None)


def same(value: Any, expected: Any, *, exact: bool) -> bool:
    """Whether two JSON values are the same; with ``exact`` off, objects on the right list alternatives for each key."""
    if isinstance(expected, str):
        return isinstance(value, str) and same_text(value, expected)
    if isinstance(expected, bool) or expected is None:
        return value is expected
    if isinstance(expected, int | float):
        return isinstance(value, int | float) and not isinstance(value, bool) and value == expected
    if isinstance(expected, list):
        return (
            isinstance(value, list)
            and len(value) == len(expected)
            and all(same(*pair, exact=exact) for pair in zip(value, expected, strict=True))
        )
    return isinstance(value, dict) and same_object(value, expected, exact=exact)


def same_object(value: Mapping[str, Any], expected: Mapping[str, Any], *, exact: bool) -> bool:
    """Whether an object has the expected keys and values."""
    if not value.keys() <= expected.keys():
        return False
    for key, wanted in expected.items():
        alternatives = wanted if isinstance(wanted, list) and not exact else [wanted]
        if key not in value:
            if exact or OPTIONAL not in alternatives:
                return False
        elif not any(same(value[key], each, exact=exact) for each in alternatives):
            return False
    return True


def same_text(value: str, expected: str) -> bool:
    """Whether two texts differ in nothing but case, quotes, spaces and light punctuation."""
    if value == expected:
        return True
    # The length is compared first: a model may write megabytes.
    return len(value) <= 4 * len(expected) + 64 and _plain(value) == _plain(expected)


def _plain(text: str) -> str:
    return _IGNORED.sub("", text).lower().replace("'", '"')


def match_calls(made: Sequence[Call], expected: Sequence[ExpectedCall], *, ordered: bool) -> list[str]:
    """What is wrong with the calls, in words; empty if each expected call was made, once, and nothing else."""
    if len(made) != len(expected):
        return [f"{len(made)} calls instead of {len(expected)}"]
    if ordered:
        return [why for call, wanted in zip(made, expected, strict=True) if (why := wanted.mismatch(call))]
    fits = [[wanted.mismatch(call) is None for call in made] for wanted in expected]
    partner = assign(fits)
    left = [made[index] for index in range(len(made)) if index not in partner.values()]
    return [_nearest(wanted, left) for index, wanted in enumerate(expected) if index not in partner]


def assign(fits: Sequence[Sequence[bool]]) -> dict[int, int]:
    """As many fitting pairs (row, column) as possible, no row or column twice (augmenting paths)."""
    # Not the first fit: an expectation that several calls satisfy must not take the only call of another one.
    owner: dict[int, int] = {}

    def place(row: int, tried: set[int]) -> bool:
        for column in (each for each, fit in enumerate(fits[row]) if fit and each not in tried):
            tried.add(column)
            if column not in owner or place(owner[column], tried):
                owner[column] = row
                return True
        return False

    for row in range(len(fits)):
        place(row, set())
    return {row: column for column, row in owner.items()}


def _nearest(wanted: ExpectedCall, left: Sequence[Call]) -> str:
    reasons = [why for call in left if call.name == wanted.name and (why := wanted.mismatch(call))]
    return reasons[0] if reasons else f"{wanted.name} was not called"


def read_call(item: NeMoGymResponseFunctionToolCall) -> Call:
    """A call as the model wrote it."""
    if len(item.arguments) > MAX_ARGUMENTS:
        return Call(item.name, None)
    try:
        arguments = orjson.loads(item.arguments or "{}")
    except orjson.JSONDecodeError:
        return Call(item.name, None)
    return Call(item.name, arguments if isinstance(arguments, dict) else None)


def shown(value: Any) -> str:
    """A value for a message, not longer than a line."""
    text = value if isinstance(value, str) else json.dumps(value)
    return repr(text[:60] + "…" if len(text) > 60 else text)
