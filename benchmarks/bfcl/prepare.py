"""The Berkeley Function-Calling Leaderboard, its single-turn categories, from the data inside the wheel ``bfcl-eval``.

The package is not installed and none of its code runs: questions, tools and accepted answers are read from the wheel.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from nemo_gym.data.wheels import Wheel, cache_folder, fetch_wheel, read_member

Json: TypeAlias = dict[str, Any]

WHEEL: Final = Wheel("bfcl-eval", "2026.3.23", "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a")
OUTPUT: Final = Path(__file__).parent / "data" / "bfcl.jsonl"
FOLDER: Final = "bfcl_eval/data"
# Categories with accepted answers, and those in which it only matters whether a tool is called.
ANSWERED: Final = (
    "simple_python",
    "simple_java",
    "simple_javascript",
    "multiple",
    "parallel",
    "parallel_multiple",
    "live_simple",
    "live_multiple",
    "live_parallel",
    "live_parallel_multiple",
)
UNANSWERED: Final = {"irrelevance": "calls", "live_irrelevance": "calls", "live_relevance": "some_call"}
# Types of the tools' own languages, as JSON has them. A value of type "any" is the name of a variable, or text.
JSON_TYPES: Final = {
    "dict": "object",
    "HashMap": "object",
    "Hashtable": "object",
    "float": "number",
    "double": "number",
    "long": "integer",
    "tuple": "array",
    "Array": "array",
    "ArrayList": "array",
    "Boolean": "boolean",
    "String": "string",
    "char": "string",
    "any": "string",
    "": "string",
}
KEPT: Final = ("description", "enum", "default")


def prepare() -> Path:
    """Write the task file and say where it is."""
    wheel = fetch_wheel(WHEEL, cache_folder(os.environ))
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    part = OUTPUT.with_suffix(".part")
    part.write_text("".join(json.dumps(row) + "\n" for row in rows(wheel)), "utf-8")
    return part.replace(OUTPUT)


def rows(wheel: Path) -> Iterator[Json]:
    """All tasks, category by category."""
    for category in ANSWERED:
        answers = {entry["id"]: entry["ground_truth"] for entry in entries(wheel, f"possible_answer/{file(category)}")}
        for entry in entries(wheel, file(category)):
            yield row(entry, category, check="calls", ground_truth=answers[entry["id"]])
    for category, check in UNANSWERED.items():
        for entry in entries(wheel, file(category)):
            yield row(entry, category, check=check, ground_truth=[])


def file(category: str) -> str:
    """The name of a category's file."""
    return f"BFCL_v4_{category}.json"


def entries(wheel: Path, name: str) -> list[Json]:
    """The objects of one file, which has one on each line."""
    return [json.loads(line) for line in read_member(wheel, f"{FOLDER}/{name}").splitlines() if line.strip()]


def row(entry: Mapping[str, Any], category: str, *, check: str, ground_truth: list[Json]) -> Json:
    """A task, with nothing added to what the user says."""
    (messages,) = entry["question"]
    return {
        "responses_create_params": {"input": messages, "tools": [tool(each) for each in entry["function"]]},
        "id": entry["id"],
        "category": category,
        "check": check,
        "ground_truth": ground_truth,
    }


def tool(function: Mapping[str, Any]) -> Json:
    """A function in the form of the Responses API; endpoints do not accept dots in names."""
    return {
        "type": "function",
        "name": function["name"].replace(".", "_"),
        "description": function["description"],
        "parameters": schema(function["parameters"]),
        "strict": False,
    }


def schema(declared: Mapping[str, Any]) -> Json:
    """A parameter as JSON Schema."""
    kind = JSON_TYPES.get(declared.get("type", ""), declared.get("type"))
    made: Json = {"type": kind, **{key: declared[key] for key in KEPT if key in declared}}
    if kind == "object" and declared.get("properties"):
        made["properties"] = {name: schema(each) for name, each in declared["properties"].items()}
        made["required"] = [name for name in declared.get("required", ()) if name in made["properties"]]
    elif kind == "object":
        made["properties"] = {}
    if kind == "array":
        made["items"] = schema(declared["items"]) if declared.get("items") else {}
    return made
