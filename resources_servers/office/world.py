"""An office: its state, all of its tools, and where two states differ."""

import copy
import json
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict

from resources_servers.office import tools  # noqa: F401 - registers the tools
from resources_servers.office.toolkit import TOOLS, State, call_tool

COLLECTIONS: Final = ("mail", "calendar", "files", "contacts")
DECLARATIONS: Final = [TOOLS[name].declaration() for name in TOOLS]
_LOOSE: Final = re.compile(r"[\s.!]+")


class Message(BaseModel):
    """A message of the row."""

    model_config = ConfigDict(extra="forbid")

    id: str
    folder: str
    sender: str
    to: str
    date: str
    subject: str
    body: str


class Event(BaseModel):
    """An event of the row."""

    model_config = ConfigDict(extra="forbid")

    id: str
    title: str
    date: str
    start: str
    minutes: int
    attendees: list[str]


class File(BaseModel):
    """A file of the row."""

    model_config = ConfigDict(extra="forbid")

    path: str
    text: str


class Contact(BaseModel):
    """A contact of the row."""

    model_config = ConfigDict(extra="forbid")

    name: str
    email: str
    phone: str
    team: str
    role: str


class Office(BaseModel):
    """The state at the start."""

    model_config = ConfigDict(extra="forbid")

    me: str
    today: str
    mail: list[Message]
    calendar: list[Event]
    files: list[File]
    contacts: list[Contact]

    def start(self) -> State:
        """A copy that tools can change."""
        return self.model_dump()


class OfficeCall(NamedTuple):
    """A tool and what it was called with."""

    name: str
    arguments: Any


def replay(office: Office, calls: Iterable[OfficeCall]) -> State:
    """The state after these calls."""
    state = office.start()
    for call in calls:
        # A tool keeps what it is given; the caller's own values must not change with the state.
        call_tool(state, call.name, copy.deepcopy(call.arguments))
    return state


def difference(state: State, expected: State) -> str | None:
    """Where a state is not the expected one; None if nowhere. Order, ids, case and spaces do not count."""
    for name in COLLECTIONS:
        made, wanted = (Counter(map(_canonical, records)) for records in _unlike(state[name], expected[name]))
        if missing := wanted - made:
            return f"{name}: {sum(missing.values())} of the expected records are missing: {next(iter(missing))[:200]}"
        if extra := made - wanted:
            return f"{name}: {sum(extra.values())} records should not be there: {next(iter(extra))[:200]}"
    return None


def _unlike(first: list[State], second: list[State]) -> tuple[list[State], list[State]]:
    """Both lists without what they have in common at the start and at the end: most of an office stays as it is."""
    shorter = min(len(first), len(second))
    start = next((index for index in range(shorter) if first[index] != second[index]), shorter)
    left = shorter - start
    end = next((index for index in range(left) if first[-1 - index] != second[-1 - index]), left)
    return first[start : len(first) - end], second[start : len(second) - end]


def _canonical(record: State) -> str:
    plain = {key: _loose(value) for key, value in record.items() if key != "id"}
    return json.dumps(plain, sort_keys=True, ensure_ascii=False)


def _loose(value: Any) -> Any:
    if isinstance(value, list):
        return sorted(map(_loose, value))
    return _LOOSE.sub(" ", value).strip().casefold() if isinstance(value, str) else value
