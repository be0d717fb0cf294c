"""Contacts: names, addresses, telephone numbers, teams and roles. ``state["contacts"]`` lists them."""

from typing import Any

from resources_servers.office.toolkit import MAX_ITEMS, State, ToolError, contains, find, listed, same_text, tool


@tool("Finds contacts that contain a text: a name, an address, a team or a role.")
def contacts_search(state: State, text: str) -> dict[str, Any]:  # noqa: D103
    return listed([contact for contact in state["contacts"] if contains(contact, text)])


@tool("Shows the contact with an address.")
def contacts_get(state: State, email: str) -> dict[str, Any]:  # noqa: D103
    return find(state["contacts"], "email", email)


@tool("Adds a contact.")
def contacts_add(state: State, name: str, email: str, phone: str, team: str) -> dict[str, Any]:  # noqa: D103
    if "@" not in email:
        raise ToolError(f"{email[:60]!r} is not an address")
    if any(same_text(contact["email"], email) for contact in state["contacts"]):
        raise ToolError(f"there is a contact with the address {email[:60]!r} already")
    if len(state["contacts"]) >= MAX_ITEMS:
        raise ToolError(f"there are {MAX_ITEMS} already")
    state["contacts"].append({"name": name, "email": email.strip(), "phone": phone, "team": team, "role": "member"})
    return {"added": email}


@tool("Changes the telephone number or the team of a contact.")
def contacts_update(  # noqa: D103
    state: State, email: str, phone: str | None = None, team: str | None = None
) -> dict[str, Any]:
    contact = find(state["contacts"], "email", email)
    contact.update({key: value for key, value in (("phone", phone), ("team", team)) if value is not None})
    return contact


@tool("Deletes a contact.")
def contacts_delete(state: State, email: str) -> dict[str, Any]:  # noqa: D103
    contact = find(state["contacts"], "email", email)
    state["contacts"].remove(contact)
    return {"deleted": contact["email"]}
