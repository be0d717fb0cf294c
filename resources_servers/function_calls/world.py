"""A world that a row describes: collections of records, and tools that read or change them.

    {"collections": {"rooms": {"r1": {"beds": 2, "free": true}}},
     "tools": {"find_rooms": {"op": "list", "collection": "rooms"},
               "cancel": {"op": "delete", "collection": "bookings", "id": "booking_id"}}}

Every tool is one of five operations, so a row can define its own world without bringing code.
"""

import copy
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from resources_servers.function_calls.calls import Call, shown

Record: TypeAlias = dict[str, Any]
MAX_LISTED: Final = 50
MAX_RECORDS: Final = 1_000


class Operation(BaseModel):
    """What a tool does. ``id`` names the argument that holds the record's id; ``set`` adds fixed values to changes."""

    model_config = ConfigDict(extra="forbid")

    op: Literal["list", "get", "create", "update", "delete"]
    collection: str
    id: str = "id"
    set: Record = Field(default_factory=dict)


class World(BaseModel):
    """The state at the start, and the tools that may change it."""

    model_config = ConfigDict(extra="forbid")

    collections: dict[str, dict[str, Record]]
    tools: dict[str, Operation]

    @model_validator(mode="after")
    def _knows_its_collections(self) -> "World":
        for name, tool in self.tools.items():
            if tool.collection not in self.collections:
                raise ValueError(f"tool {name!r}: there is no collection {tool.collection!r}")
        return self

    def start(self) -> "Simulation":
        """A copy that can be changed."""
        return Simulation(copy.deepcopy(self.collections), self.tools)


class Simulation:
    """A running world."""

    def __init__(self, collections: dict[str, dict[str, Record]], tools: Mapping[str, Operation]) -> None:
        self.collections = collections
        self._tools = tools
        # The ids that the row gave. Those of new records depend on the order of the calls and are not compared.
        self._given = {name: frozenset(records) for name, records in collections.items()}

    def call(self, call: Call) -> Record:
        """Carry out a call; what can't be done is explained to the model and changes nothing."""
        tool = self._tools.get(call.name)
        if tool is None:
            return {"error": f"there is no tool {shown(call.name)}"}
        if call.arguments is None:
            return {"error": "the arguments are not a JSON object"}
        records = self.collections[tool.collection]
        if tool.op == "list":
            return _listed(records, call.arguments)
        if tool.op == "create":
            return _create(records, {**call.arguments, **tool.set})
        return _use(records, tool, dict(call.arguments))

    def difference(self, other: "Simulation") -> str | None:
        """Where the two worlds differ; None if nowhere. What was created counts by its content, not by its id."""
        for name, records in self.collections.items():
            theirs, given = other.collections[name], self._given[name]
            for key in sorted(given):
                if canonical(records.get(key)) != canonical(theirs.get(key)):
                    return f"{name}: {key} is not as it should be"
            if _created(records, given) != _created(theirs, given):
                return f"{name}: not the records that should have been created"
        return None


def _listed(records: Mapping[str, Record], arguments: Mapping[str, Any]) -> Record:
    """Records with all wanted values; a value that is not given, or null, does not matter."""
    wanted = {name: canonical(value) for name, value in arguments.items() if value is not None}
    found = {
        key: record
        for key, record in records.items()
        if all(name in record and canonical(record[name]) == value for name, value in wanted.items())
    }
    return {"found": len(found), "records": dict(list(found.items())[:MAX_LISTED])}


def _create(records: dict[str, Record], record: Record) -> Record:
    if len(records) >= MAX_RECORDS:
        return {"error": f"there are {MAX_RECORDS} records already"}
    number = len(records) + 1
    while f"new_{number}" in records:
        number += 1
    records[f"new_{number}"] = record
    return {"created": f"new_{number}", "record": record}


def _use(records: dict[str, Record], tool: Operation, arguments: Record) -> Record:
    """Read, change or delete the one record that the arguments name."""
    key = arguments.pop(tool.id, None)
    if not isinstance(key, str) or key not in records:
        return {"error": f"there is no record {shown(key)} in {tool.collection}"}
    if tool.op == "get":
        return {"record": records[key]}
    if tool.op == "delete":
        return {"deleted": records.pop(key)}
    records[key] = {**records[key], **arguments, **tool.set}
    return {"updated": key, "record": records[key]}


def canonical(value: Any) -> str:
    """The value as text, without what does not matter in a form that people fill in: case and outer spaces."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value.strip().casefold()
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _created(records: Mapping[str, Record], given: frozenset[str]) -> Counter[str]:
    return Counter(canonical(record) for key, record in records.items() if key not in given)
