"""Calls that others wrote: every reference answer of the Berkeley Function-Calling Leaderboard, and mutations of it."""

import copy
import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks.bfcl import prepare as bfcl
from nemo_gym.data.wheels import cache_folder, fetch_wheel
from nemo_gym.errors import ConfigError
from nemo_gym.openai_utils import NeMoGymResponseFunctionToolCall
from resources_servers.function_calls.app import FunctionCallsTask, check
from resources_servers.function_calls.calls import Call
from resources_servers.function_calls.expectation import plain_call

CATEGORIES = [*bfcl.ANSWERED, *bfcl.UNANSWERED]
MULTI_TURN = ["base", "miss_func", "miss_param", "long_context"]
# Which file describes the functions of each class in the multi-turn data.
DOCUMENTS = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}


@cache
def wheel() -> Path:
    try:
        return fetch_wheel(bfcl.WHEEL, cache_folder(os.environ))
    except ConfigError as error:
        pytest.skip(str(error))


@cache
def tasks() -> dict[str, list[FunctionCallsTask]]:
    found: dict[str, list[FunctionCallsTask]] = {category: [] for category in CATEGORIES}
    for row in bfcl.rows(wheel()):
        found[row["category"]].append(FunctionCallsTask.model_validate(row))
    return found


@cache
def conversations(category: str) -> list[FunctionCallsTask]:
    """The multi-turn data as rows that are checked by call."""
    functions = {
        name: [bfcl.tool(function) for function in bfcl.entries(wheel(), f"multi_turn_func_doc/{file}.json")]
        for name, file in DOCUMENTS.items()
    }
    name = bfcl.file(f"multi_turn_{category}")
    answers = {entry["id"]: entry["ground_truth"] for entry in bfcl.entries(wheel(), f"possible_answer/{name}")}
    return [
        FunctionCallsTask.model_validate(
            {
                "responses_create_params": {
                    "input": entry["question"][0],
                    "tools": [tool for each in entry["involved_classes"] for tool in functions[each]],
                },
                "turns": entry["question"][1:],
                "ground_truth": answers[entry["id"]],
            }
        )
        for entry in bfcl.entries(wheel(), name)
    ]


def made(turns: list[list[Call]]) -> list[list[NeMoGymResponseFunctionToolCall]]:
    return [
        [
            NeMoGymResponseFunctionToolCall(
                name=call.name, arguments=json.dumps(call.arguments), call_id=f"call_{number}"
            )
            for number, call in enumerate(turn)
        ]
        for turn in turns
    ]


def passes(task: FunctionCallsTask, turns: list[list[Call]]) -> bool:
    return not any(check(task, made(turns)))


def reference(task: FunctionCallsTask) -> list[list[Call]]:
    return [[plain_call(each) for each in turn] for turn in task.expected]


def other(value: Any) -> Any:
    """A value that nobody would take for this one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 17
    if isinstance(value, str):
        return f"{value} zebra"
    if isinstance(value, list):
        return [*value, "zebra"]
    return {**value, "zebra": 1} if isinstance(value, dict) else "zebra"


def some_mutations(turns: list[list[Call]]) -> list[tuple[str, list[list[Call]]]]:
    """A few of them: all 86,528 take half a minute."""
    found = list(mutations(turns))
    return Random(len(found)).sample(found, min(6, len(found)))


def mutations(turns: list[list[Call]]) -> Iterator[tuple[str, list[list[Call]]]]:
    """The same calls with one mistake each."""
    for turn, number in ((turn, number) for turn, calls in enumerate(turns) for number in range(len(calls))):
        call = turns[turn][number]
        arguments = dict(call.arguments or {})
        changed = {
            "another tool": [Call(f"{call.name}_too", arguments)],
            "an argument too many": [Call(call.name, {**arguments, "zebra": 1})],
            "not called": [],
            "called twice": [call, call],
            "not an object": [Call(call.name, None)],
        }
        for name, value in arguments.items():
            left = {key: each for key, each in arguments.items() if key != name}
            changed[f"{name} missing"] = [Call(call.name, left)]
            changed[f"{name} wrong"] = [Call(call.name, {**arguments, name: other(value)})]
            changed[f"{name} of another type"] = [Call(call.name, {**arguments, name: {"zebra": value}})]
        for mistake, calls in changed.items():
            mutant = copy.copy(turns)
            mutant[turn] = turns[turn][:number] + calls + turns[turn][number + 1 :]
            yield f"turn {turn}, call {number}: {mistake}", mutant


@pytest.mark.parametrize("category", bfcl.ANSWERED)
def test_every_reference_passes_and_every_mutation_fails(category: str) -> None:
    assert tasks()[category]
    for task in tasks()[category]:
        turns = reference(task)
        assert passes(task, turns), task.id
        assert not passes(task, [[]]), task.id
        accepted = [mistake for mistake, mutant in some_mutations(turns) if passes(task, mutant)]
        assert accepted == [], task.id


@pytest.mark.parametrize("category", bfcl.ANSWERED)
def test_the_order_of_parallel_calls_does_not_matter(category: str) -> None:
    for task in tasks()[category]:
        (calls,) = reference(task)
        assert passes(task, [Random(0).sample(calls, len(calls))]), task.id


@pytest.mark.parametrize("category", bfcl.UNANSWERED)
def test_whether_to_call_at_all_is_checked(category: str) -> None:
    wanted = category == "live_relevance"
    for task in tasks()[category]:
        assert passes(task, [[Call("any_tool", {})]]) is wanted, task.id
        assert passes(task, [[]]) is not wanted, task.id


@pytest.mark.parametrize("category", MULTI_TURN)
def test_conversations_are_checked_turn_by_turn(category: str) -> None:
    for task in conversations(category):
        turns = reference(task)
        assert passes(task, turns), task.id
        assert passes(task, turns[:-1]) is (turns[-1] == []), task.id
        accepted = [mistake for mistake, mutant in some_mutations(turns) if passes(task, mutant)]
        assert accepted == [], task.id


def test_the_task_file_is_written_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheel()
    monkeypatch.setattr(bfcl, "OUTPUT", tmp_path / "data" / "bfcl.jsonl")
    path = bfcl.prepare()
    counts = {category: len(found) for category, found in tasks().items()}
    assert sum(counts.values()) == len(path.read_text("utf-8").splitlines()) == 3641
    assert (counts["simple_python"], counts["parallel"], counts["live_multiple"]) == (400, 200, 1053)
    assert list(path.parent.iterdir()) == [path]
