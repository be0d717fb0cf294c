# ruff: noqa: D103 - what a tool does is said by its decorator
"""The tools of an office. Each of ``state["calendar"]``, ``["contacts"]``, ``["files"]`` and ``["mail"]`` is a list.

The calendar has events with a date, a start and a length; contacts have names, addresses, telephone numbers, teams and
roles; files have a path and text; mail has messages in folders, the oldest first. Importing this module registers the
tools, in the order in which models are told of them.
"""

import re
from typing import Any, Final

from resources_servers.office.toolkit import (
    MAX_ITEMS,
    State,
    ToolError,
    contains,
    find,
    listed,
    new_id,
    same_text,
    tool,
)

_DATE: Final = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])\Z")
_TIME: Final = re.compile(r"([01]\d|2[0-3]):[0-5]\d\Z")


# ---- calendar --------------------------------------------------------------------------------------------------------
@tool("Lists the events of a day (YYYY-MM-DD), or all.")
def calendar_list(state: State, date: str | None = None) -> dict[str, Any]:
    found = [event for event in state["calendar"] if date is None or event["date"] == date.strip()]
    return listed(sorted(found, key=lambda event: (event["date"], event["start"])))


@tool("Finds events that contain a text.")
def calendar_search(state: State, text: str) -> dict[str, Any]:
    return listed([event for event in state["calendar"] if contains(event, text)])


@tool("Creates an event. Date as YYYY-MM-DD, start as HH:MM, attendees as addresses.")
def calendar_create(  # noqa: PLR0917
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
def calendar_reschedule(state: State, id: str, date: str, start: str) -> dict[str, Any]:  # noqa: A002
    event = find(state["calendar"], "id", id)
    day, time = _checked(date, _DATE, "date: as YYYY-MM-DD"), _checked(start, _TIME, "start: as HH:MM")
    event["date"], event["start"] = day, time
    return {"moved": event["id"], "date": day, "start": time}


@tool("Cancels an event.")
def calendar_cancel(state: State, id: str) -> dict[str, Any]:  # noqa: A002
    state["calendar"].remove(find(state["calendar"], "id", id))
    return {"cancelled": id}


@tool("Adds somebody, by address, to an event.")
def calendar_invite(state: State, id: str, attendee: str) -> dict[str, Any]:  # noqa: A002
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


# ---- contacts --------------------------------------------------------------------------------------------------------
@tool("Finds contacts that contain a text: a name, an address, a team or a role.")
def contacts_search(state: State, text: str) -> dict[str, Any]:
    return listed([contact for contact in state["contacts"] if contains(contact, text)])


@tool("Shows the contact with an address.")
def contacts_get(state: State, email: str) -> dict[str, Any]:
    return find(state["contacts"], "email", email)


@tool("Adds a contact.")
def contacts_add(state: State, name: str, email: str, phone: str, team: str) -> dict[str, Any]:
    if "@" not in email:
        raise ToolError(f"{email[:60]!r} is not an address")
    if any(same_text(contact["email"], email) for contact in state["contacts"]):
        raise ToolError(f"there is a contact with the address {email[:60]!r} already")
    if len(state["contacts"]) >= MAX_ITEMS:
        raise ToolError(f"there are {MAX_ITEMS} already")
    state["contacts"].append({"name": name, "email": email.strip(), "phone": phone, "team": team, "role": "member"})
    return {"added": email}


@tool("Changes the telephone number or the team of a contact.")
def contacts_update(state: State, email: str, phone: str | None = None, team: str | None = None) -> dict[str, Any]:
    contact = find(state["contacts"], "email", email)
    contact.update({key: value for key, value in (("phone", phone), ("team", team)) if value is not None})
    return contact


@tool("Deletes a contact.")
def contacts_delete(state: State, email: str) -> dict[str, Any]:
    contact = find(state["contacts"], "email", email)
    state["contacts"].remove(contact)
    return {"deleted": contact["email"]}


# ---- files -----------------------------------------------------------------------------------------------------------
@tool("Lists the files of a folder, or all.")
def files_list(state: State, folder: str | None = None) -> dict[str, Any]:
    start = "" if folder is None else _clean(folder) + "/"
    return listed([{"path": file["path"]} for file in state["files"] if file["path"].startswith(start)])


@tool("Finds files whose path or text contains something.")
def files_search(state: State, text: str) -> dict[str, Any]:
    return listed([{"path": file["path"]} for file in state["files"] if contains(file, text)])


@tool("Shows the text of a file.")
def files_read(state: State, path: str) -> dict[str, Any]:
    return find(state["files"], "path", _clean(path))


@tool("Writes a file; one that is there is replaced.")
def files_write(state: State, path: str, text: str) -> dict[str, Any]:
    clean = _clean(path)
    for file in state["files"]:
        if same_text(file["path"], clean):
            file["text"] = text
            return {"replaced": file["path"]}
    if len(state["files"]) >= MAX_ITEMS:
        raise ToolError(f"there are {MAX_ITEMS} already")
    state["files"].append({"path": clean, "text": text})
    return {"written": clean}


@tool("Moves or renames a file. The new path includes the file's name.")
def files_move(state: State, path: str, new_path: str) -> dict[str, Any]:
    file, clean = find(state["files"], "path", _clean(path)), _clean(new_path)
    if any(same_text(other["path"], clean) for other in state["files"]):
        raise ToolError(f"{clean[:60]!r} is there already")
    file["path"] = clean
    return {"moved": clean}


@tool("Deletes a file.")
def files_delete(state: State, path: str) -> dict[str, Any]:
    file = find(state["files"], "path", _clean(path))
    state["files"].remove(file)
    return {"deleted": file["path"]}


def _clean(path: str) -> str:
    parts = [part for part in path.strip().split("/") if part not in {"", "."}]
    if not parts or ".." in parts:
        raise ToolError(f"{path[:60]!r} is not a path")
    return "/".join(parts)


# ---- mail ------------------------------------------------------------------------------------------------------------
@tool("Lists messages of a folder (inbox, sent, archive or another one), the newest first.")
def email_list(state: State, folder: str = "inbox", sender: str | None = None) -> dict[str, Any]:
    found = [
        message
        for message in reversed(state["mail"])
        if same_text(message["folder"], folder) and (sender is None or same_text(message["sender"], sender))
    ]
    return listed([_summary(message) for message in found])


@tool("Finds messages that contain a text, in all folders, the newest first.")
def email_search(state: State, text: str) -> dict[str, Any]:
    return listed([_summary(message) for message in reversed(state["mail"]) if contains(message, text)])


@tool("Shows a message.")
def email_read(state: State, id: str) -> dict[str, Any]:  # noqa: A002
    return find(state["mail"], "id", id)


@tool("Sends a message.")
def email_send(state: State, to: str, subject: str, body: str) -> dict[str, Any]:
    return _send(state, to, subject, body)


@tool("Replies to the sender of a message.")
def email_reply(state: State, id: str, body: str) -> dict[str, Any]:  # noqa: A002
    message = find(state["mail"], "id", id)
    return _send(state, message["sender"], f"Re: {message['subject']}", body)


@tool("Forwards a message.")
def email_forward(state: State, id: str, to: str) -> dict[str, Any]:  # noqa: A002
    message = find(state["mail"], "id", id)
    return _send(state, to, f"Fwd: {message['subject']}", message["body"])


@tool("Moves a message to a folder.")
def email_move(state: State, id: str, folder: str) -> dict[str, Any]:  # noqa: A002
    message = find(state["mail"], "id", id)
    message["folder"] = folder.strip().casefold()
    return {"moved": id, "folder": message["folder"]}


@tool("Deletes a message.")
def email_delete(state: State, id: str) -> dict[str, Any]:  # noqa: A002
    state["mail"].remove(find(state["mail"], "id", id))
    return {"deleted": id}


def _send(state: State, to: str, subject: str, body: str) -> dict[str, Any]:
    if "@" not in to:
        raise ToolError(f"{to[:60]!r} is not an address")
    message = {
        "id": new_id(state["mail"], "m"),
        "folder": "sent",
        "sender": state["me"],
        "to": to.strip(),
        "date": state["today"],
        "subject": subject,
        "body": body,
    }
    state["mail"].append(message)
    return {"sent": message["id"]}


def _summary(message: State) -> State:
    return {key: message[key] for key in ("id", "folder", "sender", "to", "date", "subject")}
