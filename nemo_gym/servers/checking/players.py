"""Scripted players that answer in place of a model when an environment is checked.

One says nothing, one acts at random, and one takes its answers from the row. Each is determined by its seed and by what
it is asked, so two rollouts of the same player differ only if the environment behaves differently.
"""

import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Protocol

Item = dict[str, Any]
Row = Mapping[str, Any]

WORDS: Final = ("yes", "no", "maybe", "blue", "seven", "the", "answer", "is", "table", "Paris", "C", "3", "0.5", "None")
# A field whose name contains one of these is assumed to hold the expected answer.
ANSWER_FIELDS: Final = ("answer", "expected", "solution", "target", "reference", "ground_truth", "label", "secret")
RANDOM_CALLS: Final = 2
MAX_SOLUTIONS: Final = 24


class Player(Protocol):
    """Plays one rollout."""

    def answer(self, step: int, tools: Sequence[Mapping[str, Any]]) -> list[Item]:
        """The items that the model would write when asked for the ``step``-th time, counted from 0."""


@dataclass(frozen=True, slots=True)
class SilentPlayer:
    """Says nothing."""

    def answer(self, step: int, tools: Sequence[Mapping[str, Any]]) -> list[Item]:
        """An empty message."""
        del step, tools
        return [message("")]


@dataclass(frozen=True, slots=True)
class RandomPlayer:
    """Calls random tools with random arguments that fit their schemas, then says random words."""

    seed: str

    def answer(self, step: int, tools: Sequence[Mapping[str, Any]]) -> list[Item]:
        """Calls first, then words."""
        chance = random.Random(f"{self.seed}:{step}")  # noqa: S311 - a game, not a secret
        named = [tool for tool in tools if tool.get("name")]
        if named and step < RANDOM_CALLS:
            tool = chance.choice(named)
            arguments = random_value(tool.get("parameters") or {}, chance)
            return [call(str(tool["name"]), arguments if isinstance(arguments, dict) else {}, f"call_{step}")]
        return [message(" ".join(chance.choices(WORDS, k=chance.randint(1, 12))))]


@dataclass(frozen=True, slots=True)
class ScriptedPlayer:
    """Writes given items, turn by turn, and then ends with one word."""

    turns: tuple[tuple[Item, ...], ...]

    def answer(self, step: int, tools: Sequence[Mapping[str, Any]]) -> list[Item]:
        """The items of the next turn."""
        del tools
        return list(self.turns[step]) if step < len(self.turns) else [message("Done.")]


def message(text: str) -> Item:
    """An answer of the model."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}


def call(name: str, arguments: Any, call_id: str) -> Item:
    """A call of a tool by the model."""
    return {"type": "function_call", "name": name, "arguments": json.dumps(arguments), "call_id": call_id}


def random_value(schema: Mapping[str, Any], chance: random.Random) -> Any:
    """A random value that fits a JSON Schema of the kind that tools use; rare keywords are ignored."""
    if schema.get("enum"):
        return chance.choice(schema["enum"])
    for either in ("anyOf", "oneOf"):
        if schema.get(either):
            return random_value(chance.choice(schema[either]), chance)
    kind = schema.get("type")
    value: Any = chance.choice(WORDS)
    match chance.choice(kind) if isinstance(kind, list) and kind else kind:
        case "object" | "dict":
            value = {name: random_value(inner, chance) for name, inner in (schema.get("properties") or {}).items()}
        case "array" | "list" | "tuple":
            value = [random_value(schema.get("items") or {}, chance) for _ in range(chance.randint(0, 3))]
        case "integer":
            value = chance.randint(*_bounds(schema))
        case "number" | "float":
            value = round(chance.uniform(*_bounds(schema)), 2)
        case "boolean":
            value = chance.random() < 0.5
        case "null":
            value = None
    return value


def _bounds(schema: Mapping[str, Any]) -> tuple[int, int]:
    low = math.ceil(schema.get("minimum", 0))
    return low, max(low, math.floor(schema.get("maximum", low + 100)))


def solutions(row: Row) -> list[ScriptedPlayer]:
    """Players that give the row's expected answer, in the forms that environments usually accept."""
    found = []
    for value in expected_values(row):
        calls = _calls(value)
        if calls:
            found.append(ScriptedPlayer(tuple((call(*each, f"call_{n}"),) for n, each in enumerate(calls))))
        found += [ScriptedPlayer(((message(text),),)) for text in answer_forms(value)]
    return found[:MAX_SOLUTIONS]


def repeating(output: Sequence[Item]) -> ScriptedPlayer:
    """A player that repeats what a model did; a turn is what it wrote between two answers of tools or the user."""
    turns = [tuple(items) for by_model, items in groupby(output, key=_is_by_model) if by_model]
    return ScriptedPlayer(tuple(turns))


def _is_by_model(item: Item) -> bool:
    return item.get("type") != "function_call_output" and item.get("role", "assistant") == "assistant"


def expected_values(row: Row) -> Iterator[Any]:
    """The values in a row that look like expected answers."""
    inner = row.get("metadata")
    for name, value in [*row.items(), *(inner.items() if isinstance(inner, dict) else ())]:
        if value not in (None, "", [], {}) and any(word in name.lower() for word in ANSWER_FIELDS):
            yield value


def answer_forms(value: Any) -> list[str]:
    """A value in the forms in which models write their final answers."""
    if isinstance(value, list) and len(value) == 1 and not isinstance(value[0], dict | list):
        value = value[0]
    if isinstance(value, dict | list):
        text = json.dumps(value)
        return [text, f"```json\n{text}\n```"]
    text = str(value)
    return [f"The answer is {text}.", f"Answer: {text}", f"\\boxed{{{text}}}", text, f"```\n{text}\n```"]


def _calls(value: Any) -> list[tuple[str, Any]]:
    """The calls in a list of ``{name, arguments}``; empty if the value is not such a list."""
    calls: Iterable[Any] = [value] if isinstance(value, dict) else value if isinstance(value, list) else []
    found = []
    for each in calls:
        if not isinstance(each, dict) or not isinstance(each.get("name"), str) or "arguments" not in each:
            return []
        arguments = each["arguments"]
        found.append((each["name"], json.loads(arguments) if isinstance(arguments, str) else arguments))
    return found
