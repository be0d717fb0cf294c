"""Mail: messages in folders. ``state["mail"]`` lists them, the oldest first."""

from typing import Any

from resources_servers.office.toolkit import State, ToolError, contains, find, listed, new_id, same_text, tool


@tool("Lists messages of a folder (inbox, sent, archive or another one), the newest first.")
def email_list(state: State, folder: str = "inbox", sender: str | None = None) -> dict[str, Any]:  # noqa: D103
    found = [
        message
        for message in reversed(state["mail"])
        if same_text(message["folder"], folder) and (sender is None or same_text(message["sender"], sender))
    ]
    return listed([_summary(message) for message in found])


@tool("Finds messages that contain a text, in all folders, the newest first.")
def email_search(state: State, text: str) -> dict[str, Any]:  # noqa: D103
    return listed([_summary(message) for message in reversed(state["mail"]) if contains(message, text)])


@tool("Shows a message.")
def email_read(state: State, id: str) -> dict[str, Any]:  # noqa: A002, D103
    return find(state["mail"], "id", id)


@tool("Sends a message.")
def email_send(state: State, to: str, subject: str, body: str) -> dict[str, Any]:  # noqa: D103
    return _send(state, to, subject, body)


@tool("Replies to the sender of a message.")
def email_reply(state: State, id: str, body: str) -> dict[str, Any]:  # noqa: A002, D103
    message = find(state["mail"], "id", id)
    return _send(state, message["sender"], f"Re: {message['subject']}", body)


@tool("Forwards a message.")
def email_forward(state: State, id: str, to: str) -> dict[str, Any]:  # noqa: A002, D103
    message = find(state["mail"], "id", id)
    return _send(state, to, f"Fwd: {message['subject']}", message["body"])


@tool("Moves a message to a folder.")
def email_move(state: State, id: str, folder: str) -> dict[str, Any]:  # noqa: A002, D103
    message = find(state["mail"], "id", id)
    message["folder"] = folder.strip().casefold()
    return {"moved": id, "folder": message["folder"]}


@tool("Deletes a message.")
def email_delete(state: State, id: str) -> dict[str, Any]:  # noqa: A002, D103
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
