"""The calendar: events with a date, a start and a length. ``state["calendar"]`` lists them."""

import re
from typing import Any, Final

from resources_servers.office.toolkit import State, ToolError, contains, find, listed, new_id, same_text, tool

_DATE: Final = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])\Z")
_TIME: Final = re.compile(r"([01]\d|2[0-3]):[0-5]\d\Z")


@tool("Lists the events of a day (YYYY-MM-DD), or all.")
def calendar_list(state: State, date: str | None = None) -> dict[str, Any]:  # noqa: D103
    found = [event for event in state["calendar"] if date is None or event["date"] == date.strip()]
    return listed(sorted(found, key=lambda event: (event["date"], event["start"])))


@tool("Finds events that contain a text.")
def calendar_search(state: State, text: str) -> dict[str, Any]:  # noqa: D103
    return listed([event for event in state["calendar"] if contains(event, text)])


@tool("Creates an event. Date as YYYY-MM-DD, start as HH:MM, attendees as addresses.")
def calendar_create(  # noqa: D103, PLR0917
    state: State, title: str, date: str, start: str, minutes: int, attendees: list[str]
) -> dict[str, Any]:
    if not 1 <= minutes <= 24 * 60:
        raise ToolError("minutes: between 1 and 1440")
    event = {
        "id": new_id(state["calendar"], "e"),
        "title": title,
        "date": _checked(date, _DATE, "date: as YYYY-MM-DD"),
        "start": _checked(start, _TIME, "start: as HH:MM"),
        "minutes": minutes,
        "attendees": sorted(set(map(_address, attendees))),
    }
    state["calendar"].append(event)
    return {"created": event["id"]}


@tool("Moves an event to another date and start.")
def calendar_reschedule(state: State, id: str, date: str, start: str) -> dict[str, Any]:  # noqa: A002, D103
    event = find(state["calendar"], "id", id)
    day, time = _checked(date, _DATE, "date: as YYYY-MM-DD"), _checked(start, _TIME, "start: as HH:MM")
    event["date"], event["start"] = day, time
    return {"moved": event["id"], "date": day, "start": time}


@tool("Cancels an event.")
def calendar_cancel(state: State, id: str) -> dict[str, Any]:  # noqa: A002, D103
    state["calendar"].remove(find(state["calendar"], "id", id))
    return {"cancelled": id}


@tool("Adds somebody, by address, to an event.")
def calendar_invite(state: State, id: str, attendee: str) -> dict[str, Any]:  # noqa: A002, D103
    event = find(state["calendar"], "id", id)
    if not any(same_text(attendee, each) for each in event["attendees"]):
        event["attendees"] = sorted([*event["attendees"], _address(attendee)])
    return {"attendees": event["attendees"]}


def _address(text: str) -> str:
    if "@" not in text:
        raise ToolError(f"{text[:60]!r} is not an address")
    return text.strip().casefold()


def _checked(text: str, form: re.Pattern[str], problem: str) -> str:
    if not form.match(text.strip()):
        raise ToolError(problem)
    return text.strip()
