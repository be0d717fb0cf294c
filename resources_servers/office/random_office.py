"""Random offices: people, mail, events and files that resemble each other enough to be mixed up."""

import datetime as dt
from dataclasses import dataclass
from random import Random
from typing import Any, Final

FIRST_NAMES: Final = ("Anna", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Hugo")
SURNAMES: Final = ("Berg", "Costa", "Diaz", "Evans", "Fischer", "Green", "Hansen", "Ito", "Jones", "Klein")
TEAMS: Final = ("sales", "design", "support", "finance")
TOPICS: Final = (
    "budget",
    "launch plan",
    "office party",
    "new website",
    "travel costs",
    "training",
    "supplier contract",
)
TITLES: Final = ("Weekly review", "Budget meeting", "Design check", "Customer call", "Team lunch", "Planning")
FOLDERS: Final = ("reports", "notes", "drafts")
STARTS: Final = ("08:30", "09:00", "10:30", "11:00", "13:00", "14:30", "15:00", "16:30")
ME: Final = "me@office.example"


@dataclass(frozen=True, slots=True)
class Scene:
    """An office as plain data, and the dates that tasks may name."""

    state: dict[str, Any]
    days: tuple[str, ...]

    @property
    def contacts(self) -> list[dict[str, Any]]:
        """Everybody."""
        people: list[dict[str, Any]] = self.state["contacts"]
        return people

    def inbox(self, sender: str) -> list[dict[str, Any]]:
        """Messages from somebody that are in the inbox, the oldest first."""
        return [each for each in self.state["mail"] if each["sender"] == sender and each["folder"] == "inbox"]


def draw_scene(rng: Random) -> Scene:
    """An office of nine people in four teams; some share a first name."""
    monday = dt.date(2025, 1, 6) + dt.timedelta(weeks=rng.randrange(40))
    days = tuple((monday + dt.timedelta(days=offset)).isoformat() for offset in range(5))
    contacts = _contacts(rng)
    state = {
        "me": ME,
        "today": days[0],
        "mail": _mail(rng, contacts, monday),
        "calendar": _events(rng, contacts, days),
        "files": _files(rng),
        "contacts": contacts,
    }
    return Scene(state, days)


def _contacts(rng: Random) -> list[dict[str, Any]]:
    firsts = rng.sample(FIRST_NAMES, 6)
    names = [*firsts, *firsts[:3]]
    surnames = rng.sample(SURNAMES, len(names))
    made = []
    for number, (first, last) in enumerate(zip(names, surnames, strict=True)):
        made.append(
            {
                "name": f"{first} {last}",
                "email": f"{first}.{last}@office.example".lower(),
                "phone": f"555-{rng.randrange(10_000):04}",
                "team": TEAMS[number % len(TEAMS)],
                "role": "manager" if number < len(TEAMS) else "member",
            }
        )
    return made


def _mail(rng: Random, contacts: list[dict[str, Any]], monday: dt.date) -> list[dict[str, Any]]:
    senders = [contact["email"] for contact in contacts]
    # Three people have written more than once.
    writers = [*rng.sample(senders, 7), *rng.choices(senders[:3], k=5)]
    rng.shuffle(writers)
    dates = sorted((monday - dt.timedelta(days=rng.randint(1, 20))).isoformat() for _ in writers)
    return [
        {
            "id": f"m{number}",
            "folder": rng.choice(("inbox", "inbox", "inbox", "archive")),
            "sender": sender,
            "to": ME,
            "date": date,
            "subject": f"{rng.choice(('About', 'Question:', 'News:'))} {rng.choice(TOPICS)} ({number})",
            "body": f"Hello, this is about the {rng.choice(TOPICS)}. Let me know what you think.",
        }
        for number, (sender, date) in enumerate(zip(writers, dates, strict=True), start=1)
    ]


def _events(rng: Random, contacts: list[dict[str, Any]], days: tuple[str, ...]) -> list[dict[str, Any]]:
    slots = rng.sample([(day, start) for day in days for start in STARTS], 9)
    return [
        {
            "id": f"e{number}",
            "title": TITLES[number % len(TITLES)],
            "date": day,
            "start": start,
            "minutes": rng.choice((30, 45, 60)),
            "attendees": sorted(contact["email"] for contact in rng.sample(contacts, 2)),
        }
        for number, (day, start) in enumerate(slots, start=1)
    ]


def _files(rng: Random) -> list[dict[str, Any]]:
    paths = [
        f"{folder}/{topic.replace(' ', '_')}_{year}.txt"
        for folder in FOLDERS
        for topic in TOPICS
        for year in (2023, 2024)
    ]
    return [
        {"path": path, "text": f"Notes on {path.rpartition('/')[2]}: {rng.randrange(100, 1000)} items."}
        for path in rng.sample(paths, 9)
    ]
