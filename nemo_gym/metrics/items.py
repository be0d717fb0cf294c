"""Transcripts at speed: the kinds of their items are told apart while decoding, without a string for each.

Knows only the kinds it is given. An item of another kind, without one, or spoken by somebody unexpected is refused.
"""

from collections.abc import Callable, Collection, Hashable
from functools import reduce
from operator import attrgetter, or_
from types import GenericAlias
from typing import Annotated, Any, Final, Literal

import msgspec

from nemo_gym.metrics.transcript import TranscriptCounts, count_items

_EMPTY: Final = Annotated[list[Any], msgspec.Meta(max_length=0)]
_REMEMBERED: Final = 10_000  # most transcripts have one of few patterns


class ItemDecoder:
    """The type of an output list for the decoder, and the counts of such a list."""

    def __init__(self, kinds: Collection[str], *, other_roles: bool) -> None:
        role = str | None if other_roles else Literal["assistant"] | None
        structs = [
            # the empty kind makes sure of a union, in which an item has to say its kind
            msgspec.defstruct("Item", [("role", role, None)], tag_field="type", tag=kind, gc=False)
            for kind in sorted({"", *kinds})
        ]
        self.output: Any = GenericAlias(list, reduce(or_, structs)) if kinds else _EMPTY
        self._kinds = dict(zip(structs, sorted({"", *kinds}), strict=True))
        self._pattern: Callable[[Any], Hashable] = attrgetter("__class__", "role") if other_roles else type
        self._counted: dict[tuple[Hashable, ...], TranscriptCounts] = {}

    def count(self, output: list[Any]) -> TranscriptCounts:
        """Tool calls and turns of a decoded list."""
        pattern = tuple(map(self._pattern, output))
        counts = self._counted.get(pattern)
        if counts is None:
            counts = count_items((self._kinds[type(item)], item.role) for item in output)
            if len(self._counted) < _REMEMBERED:
                self._counted[pattern] = counts
        return counts
