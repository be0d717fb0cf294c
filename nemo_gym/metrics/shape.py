"""What the lines of a file have in common, learned from those that were read in full.

The shape is all that the fast decoder knows: the fields and their types, and the kinds of items in transcripts. It only
ever grows, so a file settles on one after a few lines.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_gym.metrics.fields import REWARD, usage_of
from nemo_gym.metrics.transcript import MODEL_ROLES, output_of, type_and_role

Kinds = Mapping[str, type | None]  # the type of a field, None if it varies


@dataclass(frozen=True, slots=True)
class Shape:
    """The fields of a kind of line: numbers in column order, others with their type, and the items of transcripts."""

    top: Sequence[str]
    usage: Sequence[str]
    other_top: Kinds
    other_usage: Kinds
    items: Collection[str]
    other_roles: bool  # somebody else than the model speaks in a transcript


class ShapeLearner:
    """Remembers what it has seen."""

    def __init__(self) -> None:
        self._top: dict[str, type | None] = {}
        self._usage: dict[str, type | None] = {}
        self._items: set[str] = set()
        self._other_roles = False

    def learn(self, record: Mapping[str, Any]) -> bool:
        """Take note of a record; True if there was anything new."""
        news = [_note(self._top, record), _note(self._usage, usage_of(record)), self._note_items(record)]
        return any(news)

    def shape(self, top: Sequence[str], usage: Sequence[str]) -> Shape | None:
        """The shape with these fields as numbers; None if nothing is known or the general way is the only right one."""
        other_top = {name: kind for name, kind in self._top.items() if name not in top}
        other_usage = {name: kind for name, kind in self._usage.items() if name not in usage}
        # A reward that is no number is reported as it is; a usage field that is none may hide one of the record.
        unclear = REWARD in other_top or any(name in top for name in other_usage)
        if not self._top or unclear or not all(map(_is_plain, {*self._top, *self._usage, *self._items})):
            return None
        return Shape(top, usage, other_top, other_usage, frozenset(self._items), self._other_roles)

    def _note_items(self, record: Mapping[str, Any]) -> bool:
        seen = [type_and_role(item) for item in output_of(record) or ()]
        items = self._items | {kind for kind, _ in seen if kind is not None}
        other_roles = self._other_roles or any(role not in MODEL_ROLES for _, role in seen)
        news = (items, other_roles) != (self._items, self._other_roles)
        self._items, self._other_roles = items, other_roles
        return news


def _is_plain(name: str) -> bool:
    """Whether the decoder can be told this name: it compares names as they are written, so without escapes."""
    return name.isprintable() and '"' not in name and "\\" not in name


def _note(known: dict[str, type | None], fields: Mapping[str, Any]) -> bool:
    before = dict(known)
    for name, value in fields.items():
        kind = type(value)
        known[name] = kind if known.get(name, kind) is kind else None
    return known != before
