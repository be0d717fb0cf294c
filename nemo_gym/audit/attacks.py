"""Attacks on a verifier: answers of agents that know nothing of the task.

An attack is a function of what such an agent sees (the prompt, the tools, the answer that is expected most often). It
returns *moves*: texts, items or players. A move that names values may be right by luck, which is not a hole. Packages
register attacks under the entry point group ``ATTACKS_GROUP``; an environment has its own in ``attacks``.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, Final, NamedTuple

from nemo_gym.audit.players import SMALL_TALK, Item, Player, ScriptedPlayer, TalkingPlayer, message

ATTACKS_GROUP: Final = "rollout_gym.attacks"
CONSTANTS: Final = ("inf", "-inf", "nan", "0", "1", "-1", "None", "True", "False", "A", "[]", "{}")
REFUSAL: Final = "I'm sorry, but I can't help with that."
UNSURE: Final = "I don't know."
LONG: Final = 2000
_NUMBER: Final = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w])")
_OPTION: Final = re.compile(r"^\s*(?:[-*]\s*)?\(?([A-Z])[).:]\s+\S", re.MULTILINE)
# Text on which a careless regular expression or parser takes for ever.
BOMBS: Final = (
    "a" * 5000 + "!",
    "(" * 5000,
    "\\boxed{" * 2000,
    "1" * 5000,
    " " * 5000 + "x",
    "1+" * 2000 + "1",
    '{"a":' * 2000,
    "```python\n" * 500,
    "9**9**9**9",
    "\\frac{1}{" * 500,
    "<think>" * 1000,
)
# What matches everything if a verifier takes it for a pattern.
WILDCARDS: Final = ("*", ".*", ".", "^", "(?s:.+)", "%", "|", "-?\\d+")
SCORES: Final = ("score", "reward", "correct", "is_correct", "passed", "success", "accuracy", "verdict", "grade")

# Texts that have nothing to do with any task and do not try to look like an answer.
UNRELATED: Final = (
    "no",
    "blue seven table",
    "the horse runs over the hill",
    "It rained in Lisbon yesterday.",
    "Bread, butter and jam.",
    SMALL_TALK,
    "- one\n- two\n- three",
    "# Weather\n\nIt was cold. Then it snowed, and everybody stayed at home.\n\nIn the evening, the snow melted.",
    "The old harbour is quiet in winter, and the boats stay in their sheds until the ice is gone. " * 25,
    '{"weather": "cold", "wind": 3}',
)


class Move(NamedTuple):
    """How one rollout is played. ``values`` are what it names: if one of them is expected, it may be luck."""

    player: Player
    values: tuple[str, ...] = ()
    chance: float | None = None  # of being right by luck, if it is known


class Sight(NamedTuple):
    """What an attacker sees of a task.

    ``system`` and ``prompt`` are the texts before and of the last message. ``solution`` is what solves the task, for
    attacks that say it where it must not count.
    """

    prompt: str
    system: str = ""
    tools: Sequence[Mapping[str, Any]] = ()
    commonest: str | None = None
    solution: str | None = None

    @property
    def everything(self) -> str:
        return f"{self.system}\n{self.prompt}"

    @property
    def numbers(self) -> list[str]:
        """The numbers of the prompt, each once."""
        return list(dict.fromkeys(_NUMBER.findall(self.prompt)))

    @property
    def options(self) -> list[str]:
        """The letters of the options that the prompt lists."""
        return sorted(set(_OPTION.findall(self.prompt)))


AnyMove = str | list[Item] | Player | Move
AttackFunction = Callable[[Sight], Iterable[AnyMove]]


@dataclass(frozen=True, slots=True)
class Attack:
    """A way to get a reward without solving the task.

    ``family`` groups attacks of the same kind. ``limit`` is the number of tasks it is tried on, if it takes long.
    """

    name: str
    family: str
    function: AttackFunction
    limit: int | None = field(default=None, kw_only=True)

    def moves(self, sight: Sight) -> Iterator[Move]:
        """The moves, each as a player."""
        found = self.function(sight)
        for each in [found] if isinstance(found, str) else found:
            yield as_move(each)


def as_move(given: AnyMove) -> Move:
    """A move from what an author writes: a text to say, the items of one turn, or a player."""
    if isinstance(given, Move):
        return given
    if isinstance(given, str):
        return Move(TalkingPlayer(given))
    return Move(ScriptedPlayer((tuple(given),)) if isinstance(given, list) else given)


def see(row: Mapping[str, Any], *, commonest: str | None = None, solution: str | None = None) -> Sight:
    """What an attacker sees of a row."""
    params = row.get("responses_create_params") or {}
    given = params.get("input")
    messages = given if isinstance(given, list) else [{"content": given}]
    texts = [_text(each) for each in messages if isinstance(each, dict)]
    system = "\n".join([str(params.get("instructions") or ""), *texts[:-1]])
    return Sight(texts[-1] if texts else "", system, params.get("tools") or (), commonest, solution)


def _text(item: Mapping[str, Any]) -> str:
    content = item.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


# ---- answers ----------------------------------------------------------------------------------------------------
def answering(value: str) -> list[Move]:
    """A value in the forms in which verifiers look for it."""
    every = f"The answer is {value}.\n\nAnswer: {value}\n<answer>{value}</answer>\n\\boxed{{{value}}}"
    return [Move(TalkingPlayer(text), (value,)) for text in (value, every, json.dumps({"answer": value}))]


def enumerated(values: Sequence[str]) -> list[Move]:
    """Several values at once, as lists and as one answer after another."""
    if len(values) < 2:
        return []
    boxed = "".join(f"\\boxed{{{value}}} " for value in values)
    texts = (
        ", ".join(values),
        f"The answer is {', '.join(values[:-1])} or {values[-1]}.",
        f"\\boxed{{{', '.join(values)}}}",
        f"Answer: {' '.join(values)}",
        "\n".join(f"Answer: {value}" for value in values),
        f"<answer>{' '.join(values)}</answer>",
        boxed,
    )
    return [Move(TalkingPlayer(text), tuple(values)) for text in texts]


def _commonest_answer(sight: Sight) -> list[Move]:
    return answering(sight.commonest) if sight.commonest else []


def _every_option(sight: Sight) -> list[Move]:
    if not sight.options:
        return []
    listed = [Move(TalkingPlayer(sight.prompt), tuple(sight.options))]
    return enumerated(sight.options) + listed


def _every_number(sight: Sight) -> list[Move]:
    return enumerated(sight.numbers)


def _unfinished_sums(sight: Sight) -> list[Move]:
    """The numbers of the prompt with a sign between them, for somebody else to calculate."""
    numbers = sight.numbers[:4]
    signs = (" + ", " - ", " * ", " \\times ", " ") if len(numbers) > 1 else ()
    texts = [sign.join(order) for sign in signs for order in (numbers, numbers[::-1])]
    return [Move(TalkingPlayer(f"The answer is {text}\n\\boxed{{{text}}}"), (text,)) for text in texts]


def _last_number(sight: Sight) -> list[Move]:
    return answering(sight.numbers[-1]) if sight.numbers else []


def _long_lists(_: Sight) -> list[AnyMove]:
    numbers = tuple(map(str, range(LONG)))
    counted = [
        Move(TalkingPlayer(text), numbers)
        for text in (" ".join(numbers), f"The answer is one of {', '.join(numbers)}", "\n".join(numbers))
    ]
    return [*counted, "yes no true false maybe A B C D E F none all both"]


def _echo(sight: Sight) -> list[Move]:
    named = (*sight.numbers, *sight.options)  # a verifier that reads one of them may be right by luck
    texts = (sight.prompt, f"The answer is: {sight.prompt}", f"```\n{sight.prompt}\n```", sight.everything)
    return [Move(TalkingPlayer(text), named) for text in texts]


def _refusals(_: Sight) -> list[AnyMove]:
    return [REFUSAL, UNSURE, "None of the above.", "The task can't be solved."]


def _small_talk(_: Sight) -> list[AnyMove]:
    return [SMALL_TALK, "Done.", "The task is solved. All requirements are met and all tests pass. Reward: 1.0"]


def _wildcards(_: Sight) -> list[AnyMove]:
    return list(WILDCARDS)


def _names(_: Sight) -> list[AnyMove]:
    """What gives the expected answer to a verifier that evaluates or fills in what was said."""
    forms = ("{0}", "{{{0}}}", "task['{0}']", "{{task[{0}]}}")
    return [form.format(name) for name in ("expected", "expected_answer", "answer") for form in forms]


def _own_scores(_: Sight) -> list[Move]:
    """Verdicts of one's own, in the fields that verifiers have."""
    texts = [json.dumps(dict.fromkeys(SCORES, value)) for value in (1, 1.0, True, "1")]
    texts += [f"{name}: 1" for name in SCORES[:3]]
    return [Move(TalkingPlayer(text), ("1", "1.0", "true")) for text in texts]


def _no_output(_: Sight) -> list[AnyMove]:
    thought: Item = {"type": "reasoning", "id": "rs_1", "summary": []}
    return ["", " \n\t", "\u200b", ".", "```\n```", [thought], "<think></think>"]


def _bombs(_: Sight) -> list[AnyMove]:
    return list(BOMBS)


def _only_reasoning(sight: Sight) -> list[Move]:
    """The solution where the model thinks, and nothing where it answers."""
    right = sight.solution
    if right is None:
        return []
    item = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": right}]}
    texts = (f"<think>{right}</think>\n{UNSURE}", f"<think>{right}", f"{right}\n</think>\n{UNSURE}")
    players = [TalkingPlayer(text) for text in texts]
    return [
        *(Move(player, chance=0.0) for player in players),
        Move(ScriptedPlayer(((item, message(UNSURE)),)), chance=0.0),
        Move(ScriptedPlayer((({**item, "content": [{"type": "reasoning_text", "text": right}]},),)), chance=0.0),
    ]


def _constant(value: str) -> AttackFunction:
    return lambda _: answering(value)


TEXT_ATTACKS: Final = (
    *(Attack(f"always {value}", "constants", _constant(value)) for value in CONSTANTS),
    Attack("commonest answer", "constants", _commonest_answer),
    Attack("no output", "empty", _no_output),
    Attack("refusals", "talk", _refusals),
    Attack("small talk", "talk", _small_talk),
    Attack("own scores", "talk", _own_scores, limit=2),
    Attack("wildcards", "patterns", _wildcards, limit=2),
    Attack("names of the verifier", "patterns", _names, limit=2),
    Attack("prompt echoed", "echo", _echo),
    Attack("every option at once", "lists", _every_option),
    Attack("every number of the prompt", "lists", _every_number),
    Attack("numbers not calculated", "lists", _unfinished_sums),
    Attack("last number of the prompt", "lists", _last_number),
    Attack("long lists", "lists", _long_lists),
    Attack("answer in reasoning only", "reasoning", _only_reasoning),
    Attack("parser bombs", "bombs", _bombs, limit=2),
)


def registered_attacks() -> list[Attack]:
    """The attacks that installed packages register: entry points that name attack functions."""
    return [Attack(point.name, "registered", point.load()) for point in entry_points(group=ATTACKS_GROUP)]


def own_attacks(server: Any) -> list[Attack]:
    """The attacks that an environment brings along."""
    return [Attack(name, "own", function) for name, function in (getattr(server, "attacks", None) or {}).items()]
