"""Grammars for JSON arrays: some positions described one by one, the rest alike; or distinct values of a list. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from responses_api_models.local_model.grammar.gbnf import EMPTY, NOTHING, Node, Ref, Repeat, choice, optional, sequence

Define = Callable[[Node], Ref]


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """The first items, what each further one looks like, and how many there may be."""

    prefix: Sequence[Node]
    rest: Node
    least: int = 0
    most: int | None = None


def arrays(shape: ArrayShape) -> Node:
    """Arrays of this shape."""
    if shape.most is not None and shape.most < shape.least:
        return NOTHING
    return sequence("[", _from(shape, 0), "]")


def _from(shape: ArrayShape, position: int) -> Node:
    """Everything from a position on, with the comma that separates it from what came before."""
    if shape.most is not None and position >= shape.most:
        return EMPTY
    comma = ", " if position else ""
    if position < len(shape.prefix):
        item = sequence(comma, shape.prefix[position], _from(shape, position + 1))
        return item if position < shape.least else optional(item)
    least = max(0, shape.least - position)
    most = None if shape.most is None else shape.most - position
    following = sequence(", ", shape.rest)
    if position:
        return Repeat(following, least, most)
    some = sequence(shape.rest, Repeat(following, max(0, least - 1), None if most is None else most - 1))
    return some if least else optional(some)


def subsets(values: Sequence[Node], least: int, most: int, define: Define) -> Node:
    """Arrays of distinct values, in the order of the list."""
    # From the end of the list: what may follow once that many values were taken.
    following: dict[int, Node] = {taken: EMPTY if taken >= least else NOTHING for taken in range(len(values) + 1)}
    for position in reversed(range(len(values))):
        current: dict[int, Node] = {}
        for taken in range(position + 1):
            take = sequence(", " if taken else "", values[position], following[taken + 1])
            current[taken] = define(choice([take, following[taken]] if taken < most else [following[taken]]))
        following = current
    return sequence("[", following[0], "]")
