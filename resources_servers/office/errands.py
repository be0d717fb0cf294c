"""What people ask for in an office, and the calls that do it. Every errand changes something, often more than once."""

from collections.abc import Callable
from random import Random
from typing import Any, Final, NamedTuple

from resources_servers.office.random_office import STARTS, TEAMS, Scene

PHRASES: Final = (
    "Thank you, I agree",
    "I will look at it tomorrow",
    "Please send me the numbers",
    "That works for me",
    "Let us discuss it on Friday",
)


class Errand(NamedTuple):
    """A wish in words, and the calls that fulfil it."""

    text: str
    calls: list[dict[str, Any]]


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """A call as rows have it."""
    return {"name": name, "arguments": arguments}


def reply_to_latest(rng: Random, scene: Scene) -> Errand | None:
    """Answer the newest of several messages from one person."""
    person = rng.choice(scene.contacts)
    messages = scene.inbox(person["email"])
    if len({message["date"] for message in messages[-2:]}) < 2:
        return None
    body = rng.choice(PHRASES)
    text = f'Reply to the latest message in my inbox from {person["name"]} with the text "{body}".'
    return Errand(text, [call("email_reply", id=messages[-1]["id"], body=body)])


def archive_sender(rng: Random, scene: Scene) -> Errand | None:
    """Put away what one person wrote; there is another one with the same first name."""
    person = rng.choice(scene.contacts[:3])
    messages = scene.inbox(person["email"])
    if len(messages) < 2:
        return None
    text = f"Move all messages from {person['name']} in my inbox to the folder archive."
    return Errand(text, [call("email_move", id=message["id"], folder="archive") for message in messages])


def forward_to_manager(rng: Random, scene: Scene) -> Errand | None:
    """Pass on a message to whoever manages a team."""
    message, team = rng.choice(scene.state["mail"]), rng.choice(TEAMS)
    manager = next(each for each in scene.contacts if each["team"] == team and each["role"] == "manager")
    text = f'Forward the message with the subject "{message["subject"]}" to the manager of the {team} team.'
    return Errand(text, [call("email_forward", id=message["id"], to=manager["email"])])


def write_to_team(rng: Random, scene: Scene) -> Errand | None:
    """Send everybody in a team a message of their own."""
    team = rng.choice(TEAMS)
    members = [contact for contact in scene.contacts if contact["team"] == team]
    subject, body = f"To the {team} team", rng.choice(PHRASES)
    text = (
        f'Send everybody in the {team} team a message of their own with the subject "{subject}" and the text "{body}".'
    )
    return Errand(text, [call("email_send", to=each["email"], subject=subject, body=body) for each in members])


def move_event(rng: Random, scene: Scene) -> Errand | None:
    """Move one of two events with the same title."""
    event, day, start = rng.choice(scene.state["calendar"]), rng.choice(scene.days), rng.choice(STARTS)
    twins = [
        each for each in scene.state["calendar"] if (each["title"], each["date"]) == (event["title"], event["date"])
    ]
    if len(twins) > 1 or (day, start) == (event["date"], event["start"]):
        return None
    text = f'Move the event "{event["title"]}" on {event["date"]} to {day} at {start}.'
    return Errand(text, [call("calendar_reschedule", id=event["id"], date=day, start=start)])


def clear_day(rng: Random, scene: Scene) -> Errand | None:
    """Cancel everything on a day."""
    day = rng.choice(scene.days)
    events = [event for event in scene.state["calendar"] if event["date"] == day]
    if len(events) < 2:
        return None
    return Errand(f"Cancel all events on {day}.", [call("calendar_cancel", id=event["id"]) for event in events])


def invite_team(rng: Random, scene: Scene) -> Errand | None:
    """Add the people of a team to an event."""
    event, team = rng.choice(scene.state["calendar"]), rng.choice(TEAMS)
    twins = [
        each for each in scene.state["calendar"] if (each["title"], each["date"]) == (event["title"], event["date"])
    ]
    team_members = [each["email"] for each in scene.contacts if each["team"] == team]
    missing = [email for email in team_members if email not in event["attendees"]]
    if len(twins) > 1 or not missing:
        return None
    text = f'Invite everybody in the {team} team to the event "{event["title"]}" on {event["date"]}.'
    return Errand(text, [call("calendar_invite", id=event["id"], attendee=email) for email in missing])


def schedule(rng: Random, scene: Scene) -> Errand | None:
    """Arrange to meet two people."""
    first, second = rng.sample(scene.contacts, 2)
    day, start, minutes = rng.choice(scene.days), rng.choice(STARTS), rng.choice((30, 60, 90))
    title = f"Talk with {first['name']}"
    text = f'Schedule "{title}" on {day} at {start} for {minutes} minutes with {first["name"]} and {second["name"]}.'
    attendees = [first["email"], second["email"]]
    return Errand(
        text, [call("calendar_create", title=title, date=day, start=start, minutes=minutes, attendees=attendees)]
    )


def note_phone(rng: Random, scene: Scene) -> Errand | None:
    """Look somebody's number up and write it down."""
    person = rng.choice(scene.contacts)
    path = f"notes/{person['name'].lower().replace(' ', '_')}.txt"
    text = f"Write the telephone number of {person['name']}, and nothing else, into the file {path}."
    return Errand(text, [call("files_write", path=path, text=person["phone"])])


def put_away_files(rng: Random, scene: Scene) -> Errand | None:
    """Move the files of one year."""
    year = rng.choice(("2023", "2024"))
    paths = [file["path"] for file in scene.state["files"] if file["path"].endswith(f"_{year}.txt")]
    targets = [f"old/{path.rpartition('/')[2]}" for path in paths]
    if len(paths) < 2 or len(set(targets)) < len(targets):
        return None
    text = f"Move every file whose name ends with _{year}.txt to the folder old. Keep the names."
    return Errand(text, [call("files_move", path=old, new_path=new) for old, new in zip(paths, targets, strict=True)])


def new_number(rng: Random, scene: Scene) -> Errand | None:
    """Read somebody's new number in their message."""
    person, phone = rng.choice(scene.contacts), f"556-{rng.randrange(10_000):04}"
    messages = scene.inbox(person["email"])
    if not messages:
        return None
    messages[-1]["subject"], messages[-1]["body"] = "My new number", f"Hello, from now on I can be reached at {phone}."
    text = f"{person['name']} has written to me about a new telephone number. Update the contact."
    return Errand(text, [call("contacts_update", email=person["email"], phone=phone)])


def change_team(rng: Random, scene: Scene) -> Errand | None:
    """Move somebody to another team, and write to them about it."""
    person, team = rng.choice(scene.contacts[4:]), rng.choice(TEAMS)
    if person["team"] == team:
        return None
    body = f"Welcome to the {team} team"
    text = (
        f"{person['name']} joins the {team} team: change the contact, and send {person['name']} a message with the "
        f'subject "Welcome" and the text "{body}".'
    )
    calls = [
        call("contacts_update", email=person["email"], team=team),
        call("email_send", to=person["email"], subject="Welcome", body=body),
    ]
    return Errand(text, calls)


ERRANDS: Final[tuple[Callable[[Random, Scene], Errand | None], ...]] = (
    reply_to_latest,
    archive_sender,
    forward_to_manager,
    write_to_team,
    move_event,
    clear_day,
    invite_team,
    schedule,
    note_phone,
    put_away_files,
    new_number,
    change_team,
)
