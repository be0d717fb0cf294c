"""Scripted players that answer in place of a model when an environment is checked.

``BLIND_PLAYERS`` do not look at the task: one says nothing, one only talks, one acts at random. Another takes its
answers from the row. Each is determined by its seed and by the requests it gets, so two rollouts of the same player
differ only if the environment behaves differently.
"""

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, NamedTuple, Protocol

Item = dict[str, Any]
Row = Mapping[str, Any]

WORDS: Final = ("yes", "no", "maybe", "blue", "seven", "the", "answer", "is", "table", "Paris", "C", "3", "0.5", "None")
# A field whose name contains one of these is assumed to hold the expected answer.
ANSWER_FIELDS: Final = ("answer", "expected", "solution", "target", "reference", "ground_truth", "label", "secret")
SMALL_TALK: Final = """\
Thank you for this interesting question. Let me think about it step by step.

First, I consider what is given. Then I consider what is wanted, and compare both with care. Having done so, I am
confident that the result is complete and correct, and that it meets every requirement.

In conclusion, the task is solved. Please let me know if I can help with anything else!"""
RANDOM_CALLS: Final = 2
MAX_SOLUTIONS: Final = 24


class ScriptedCall(NamedTuple):
    """A tool and the arguments it is called with."""

    name: str
    arguments: dict[str, Any]


class Player(Protocol):
    """Plays one rollout."""

    def answer(self, step: int, request: Mapping[str, Any]) -> list[Item]:
        """The items that the model would write in its ``step``-th call, counted from 0, given the request."""


@dataclass(frozen=True, slots=True)
class TalkingPlayer:
    """Says the same in every turn, whatever the task is."""

    text: str

    def answer(self, step: int, request: Mapping[str, Any]) -> list[Item]:
        del step, request
        return [message(self.text)]


@dataclass(frozen=True, slots=True)
class RandomPlayer:
    """Calls random tools with random arguments that fit their schemas, then says random words."""

    seed: str

    def answer(self, step: int, request: Mapping[str, Any]) -> list[Item]:
        """Calls first, then words."""
        chance = random.Random(f"{self.seed}:{step}")  # noqa: S311 - a game, not a secret
        named = [tool for tool in request.get("tools") or () if tool.get("name")]
        if named and step < RANDOM_CALLS:
            return [call(*random_call(chance.choice(named), chance), f"call_{step}")]
        return [message(" ".join(chance.choices(WORDS, k=chance.randint(1, 12))))]


@dataclass(frozen=True, slots=True)
class ScriptedPlayer:
    """Writes given items, turn by turn, and then ends with one word."""

    turns: tuple[tuple[Item, ...], ...]

    def answer(self, step: int, request: Mapping[str, Any]) -> list[Item]:
        """The items of the next turn."""
        del request
        return list(self.turns[step]) if step < len(self.turns) else [message("Done.")]


# Players that know nothing of the task, by name, each made for the number of a row.
BLIND_PLAYERS: Final[Mapping[str, Callable[[int], Player]]] = {
    "silent": lambda _: TalkingPlayer(""),
    "talking": lambda _: TalkingPlayer(SMALL_TALK),
    "random": lambda number: RandomPlayer(f"row {number}"),
}


def message(text: str) -> Item:
    """An answer of the model."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}


def call(name: str, arguments: Any, call_id: str) -> Item:
    """A call of a tool by the model."""
    return {"type": "function_call", "name": name, "arguments": json.dumps(arguments), "call_id": call_id}


def tool_results(request: Mapping[str, Any]) -> list[str]:
    """What tools returned since the model last had the word, in order."""
    given = request.get("input")
    items = [item for item in given if isinstance(item, dict)] if isinstance(given, list) else []
    return [str(item.get("output", "")) for item in items if item.get("type") == "function_call_output"]


def random_call(tool: Mapping[str, Any], chance: random.Random) -> ScriptedCall:
    """A call of a tool with random arguments that fit its schema."""
    arguments = random_value(tool.get("parameters") or {}, chance)
    return ScriptedCall(str(tool["name"]), arguments if isinstance(arguments, dict) else {})


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
    """A player that repeats what a model did; a turn is what it wrote between two replies of tools or the user."""
    turns = [tuple(items) for by_model, items in groupby(output, key=_is_by_model) if by_model]
    return ScriptedPlayer(tuple(turns))


def script_of(player: Player) -> list[Item]:
    """All items that a scripted player writes."""
    return [item for turn in player.turns for item in turn] if isinstance(player, ScriptedPlayer) else []


def only_text(player: Player) -> str | None:
    """The text of a scripted player that says one thing and does nothing else."""
    items = script_of(player)
    return str(items[0]["content"][0]["text"]) if len(items) == 1 and items[0]["type"] == "message" else None


def _is_by_model(item: Item) -> bool:
    return item.get("type") != "function_call_output" and item.get("role", "assistant") == "assistant"


def expected_values(row: Row) -> Iterator[Any]:
    """The values in a row that look like expected answers."""
    return (value for value in _answer_fields(row) if value not in (None, "", [], {}))


def expects_nothing(row: Row) -> bool:
    """Whether the row says that its expected answer is empty, for example that no tool is to be called."""
    return any(value in ([], {}) for value in _answer_fields(row)) and not any(expected_values(row))


def _answer_fields(row: Row) -> Iterator[Any]:
    inner = row.get("metadata")
    for name, value in [*row.items(), *(inner.items() if isinstance(inner, dict) else ())]:
        if any(word in name.lower() for word in ANSWER_FIELDS):
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


def _calls(value: Any) -> list[ScriptedCall]:
    """The calls in a list of ``{name, arguments}``; empty if the value is not such a list."""
    calls = [tool_call_of(each) for each in (value if isinstance(value, list) else [value])]
    found = [each for each in calls if each is not None]
    return found if len(found) == len(calls) else []


def tool_call_of(item: Any) -> ScriptedCall | None:
    """The call that a dict with ``name`` and ``arguments`` describes."""
    name, arguments = (item.get("name"), item.get("arguments")) if isinstance(item, dict) else (None, None)
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return None
    return ScriptedCall(name, arguments) if isinstance(name, str) and isinstance(arguments, dict) else None
