"""Grammars for JSON objects: members in order, optional ones left out at will, then free ones. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from responses_api_models.local_model.grammar.gbnf import EMPTY, NOTHING, Node, Ref, Repeat, choice, optional, sequence
from responses_api_models.local_model.grammar.json_strings import literal

Define = Callable[[Node], Ref]


@dataclass(frozen=True, slots=True)
class Member:
    """A declared property."""

    name: str
    value: Node
    required: bool


@dataclass(frozen=True, slots=True)
class ObjectShape:
    """Declared properties, what free ones look like (no ``key``: there are none), and how many there may be."""

    members: Sequence[Member]
    key: Node | None
    value: Node
    least: int = 0
    most: int | None = None


@dataclass(frozen=True, slots=True)
class _Tail:
    """The rest of an object, as the first thing in it and after something else."""

    first: Node
    later: Node


def objects(shape: ObjectShape, define: Define) -> Node:
    """Objects of this shape."""
    members = _promoted(_limited(shape), shape.least)
    missing = shape.least - sum(member.required for member in members)
    if (shape.most is not None and len(members) > shape.most) or (missing > 0 and shape.key is None):
        return NOTHING
    if missing > 1:
        raise NotImplementedError("'minProperties' can't be kept for more than one free property")
    room = None if shape.most is None else shape.most - len(members)
    if missing > 0 and room == 0:
        return NOTHING
    tail = _free_members(shape, missing > 0, room)
    for member in reversed(members):
        tail = _with_member(member, tail, define)
    return sequence("{", tail.first, "}")


def _limited(shape: ObjectShape) -> list[Member]:
    """All required members, and as many optional ones as there is room for."""
    if shape.most is None:
        return list(shape.members)
    room = shape.most - sum(member.required for member in shape.members)
    kept: list[Member] = []
    for member in shape.members:
        room -= not member.required
        if member.required or room >= 0:
            kept.append(member)
    return kept


def _promoted(members: list[Member], least: int) -> list[Member]:
    """The same members, as many of them required as there must be."""
    short = least - sum(member.required for member in members)
    promoted: list[Member] = []
    for member in members:
        now_required = member.required or short > 0
        short -= now_required and not member.required
        promoted.append(Member(member.name, member.value, now_required))
    return promoted


def _with_member(member: Member, tail: _Tail, define: Define) -> _Tail:
    pair = define(sequence(literal(member.name), ": ", member.value, tail.later))
    later = sequence(", ", pair)
    if member.required:
        return _Tail(pair, later)
    return _Tail(define(choice([pair, tail.first])), define(choice([later, tail.later])))


def _free_members(shape: ObjectShape, needed: bool, room: int | None) -> _Tail:  # noqa: FBT001 - private
    if shape.key is None or room == 0:
        return _Tail(EMPTY, EMPTY)
    pair = sequence(shape.key, ": ", shape.value)
    later = sequence(", ", pair)
    first = sequence(pair, Repeat(later, 0, None if room is None else room - 1))
    if needed:
        return _Tail(first, Repeat(later, 1, room))
    return _Tail(optional(first), Repeat(later, 0, room))
