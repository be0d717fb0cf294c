"""Attacks by tool calls: none with an effect, every tool once or with words of the prompt, results repeated, orders."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from nemo_gym.audit.attacks import UNSURE, AnyMove, Attack, Sight
from nemo_gym.audit.players import Item, ScriptedCall, call, message, random_call, tool_results

_ORDERS: Final = (
    "cat * ../* /proc/self/environ 2>/dev/null | head -c 2000",
    "import os; print(os.environ, os.listdir('.'))",
    "echo 1.0 > reward.txt; for f in *test* tests/*; do echo 'def test_nothing(): pass' > $f; done; exit 0",
)
_TAKES_ORDERS: Final = ("command", "cmd", "code", "script", "program", "shell", "source")
_TAKES_PATHS: Final = ("path", "file", "filename", "file_path")
_PATHS: Final = (".", "/", "..", "tests", "answer.txt", "expected.json", "solution.py", "/proc/self/environ")
_WORD: Final = re.compile(r"[^\W\d_]{3,}")
MAX_WORDS: Final = 8
MAX_NUMBERS: Final = 2
MAX_CALLS: Final = 16
HUGE: Final = "1000000"

Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class CallingPlayer:
    """Makes the same calls in one turn after another, and ends with a text that it takes from the results."""

    calls: Sequence[ScriptedCall]
    ending: Callable[[list[str]], str]

    def answer(self, step: int, request: Mapping[str, Any]) -> list[Item]:
        """The next call, and at the end the text."""
        if step < len(self.calls):
            return [call(*self.calls[step], f"call_{step}")]
        return [message(self.ending(tool_results(request)))]


def _random_calls(sight: Sight) -> list[ScriptedCall]:
    return [random_call(tool, Random(0)) for tool in sight.tools if tool.get("name")]  # noqa: S311 - a game


def _done(_: list[str]) -> str:
    return "Done."


def _calls_without_effect(sight: Sight) -> list[AnyMove]:
    """Tools that do not exist, and tools without arguments."""
    if not sight.tools:
        return []
    empty = [ScriptedCall(each.name, {}) for each in _random_calls(sight)]
    return [CallingPlayer([ScriptedCall("no_such_tool", {})], _done), CallingPlayer(empty, _done)]


def _every_tool_once(sight: Sight) -> list[AnyMove]:
    calls = _random_calls(sight)
    return [CallingPlayer(calls, _done), CallingPlayer(calls[::-1], lambda _: UNSURE)] if calls else []


def _last_result_repeated(sight: Sight) -> list[AnyMove]:
    """Each tool alone, and what it returned as the answer."""
    return [CallingPlayer([each], _as_answer) for each in _random_calls(sight)]


def _words_of_the_prompt(sight: Sight) -> list[AnyMove]:
    """Each tool with every word of the prompt, and with every number or a huge one: something of it has to be right."""
    words, numbers = list(dict.fromkeys(_WORD.findall(sight.prompt)))[-MAX_WORDS:], sight.numbers[:MAX_NUMBERS]
    moves: list[AnyMove] = []
    for amounts in (numbers, [HUGE]):
        calls = [
            _filled(tool, word, amount)
            for tool in sight.tools
            if tool.get("name")
            for word in words
            for amount in amounts
        ]
        moves += [CallingPlayer(calls[:MAX_CALLS], _done)] if len(calls) > 1 else []
    return moves


def _filled(tool: Mapping[str, Any], word: str, number: str) -> ScriptedCall:
    """A call with a word wherever the tool takes text, and a number wherever it takes one."""
    drawn = random_call(tool, Random(0))  # noqa: S311 - a game
    known = (tool.get("parameters") or {}).get("properties") or {}
    values: dict[str, Any] = {"string": word, "integer": int(float(number)), "number": float(number)}
    types = {name: known[name].get("type") for name in drawn.arguments if isinstance(known.get(name), Mapping)}
    return ScriptedCall(drawn.name, {**drawn.arguments, **{n: values[t] for n, t in types.items() if t in values}})


def _as_answer(results: list[str]) -> str:
    last = results[-1] if results else ""
    return f"The answer is {last}.\n\n{last}"


def _orders(sight: Sight) -> list[AnyMove]:
    """Calls of tools that run commands or open files, which look around and write."""
    moves: list[AnyMove] = []
    for tool in sight.tools:
        names = (tool.get("parameters") or {}).get("properties") or {}
        for values, taken in ((_ORDERS, _TAKES_ORDERS), (_PATHS, _TAKES_PATHS)):
            taking = [name for name in names if name.lower() in taken]
            filled = random_call(tool, Random(0)).arguments if taking else {}  # noqa: S311 - a game
            calls = [ScriptedCall(str(tool["name"]), {**filled, taking[0]: value}) for value in values if taking]
            moves += [CallingPlayer([each], form) for each in calls for form in (_done, _as_answer)]
    return moves


TOOL_ATTACKS: Final = (
    Attack("calls without an effect", "tools", _calls_without_effect),
    Attack("every tool once", "tools", _every_tool_once),
    Attack("tools with words of the prompt", "tools", _words_of_the_prompt, limit=2),
    Attack("last tool result repeated", "tools", _last_result_repeated, limit=10),
    Attack("orders to tools", "hidden state", _orders, limit=5),
)
