"""Grammars for JSON strings: any, of a given length, other than given ones. Pure.

A character is written as itself or as one of the short escapes. ``\\uXXXX`` is left out: it adds nothing but halves of
surrogate pairs, which no JSON parser agrees on.
"""

import json
from collections.abc import Collection
from typing import Final

from responses_api_models.local_model.grammar.gbnf import (
    Chars,
    Literal,
    Node,
    Repeat,
    chars,
    choice,
    optional,
    sequence,
)

Ranges = tuple[tuple[int, int], ...]

# What may stand in a string as it is: no control characters, no quote, no backslash, no halves of surrogate pairs.
PLAIN: Final[Ranges] = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E), (0xA0, 0xD7FF), (0xE000, 0xFFFD), (0x10000, 0x10FFFF))
ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}

CHARACTER: Final = choice([Chars(PLAIN), sequence("\\", chars('"\\/bfnrt'))])
STRING: Final = sequence('"', Repeat(CHARACTER, 0, None), '"')


def strings(least: int, most: int | None) -> Node:
    """Strings of ``least`` to ``most`` characters."""
    return sequence('"', Repeat(CHARACTER, least, most), '"')


def quoted(node: Node) -> Node:
    """The node inside quotation marks."""
    return sequence('"', node, '"')


def literal(value: object) -> Literal:
    """Exactly this JSON value, as everything here writes it."""
    return Literal(json.dumps(value, ensure_ascii=False))


def characters(ranges: Ranges) -> Node:
    """One character of a set, as it is written in a string."""
    plain = intersect(ranges, PLAIN)
    escaped = [Literal(text) for raw, text in ESCAPES.items() if any(low <= ord(raw) <= high for low, high in ranges)]
    return choice([*([Chars(plain)] if plain else []), *escaped])


def intersect(first: Ranges, second: Ranges) -> Ranges:
    """What two sets of characters have in common."""
    common = [(max(a, c), min(b, d)) for a, b in first for c, d in second]
    return tuple(sorted((low, high) for low, high in common if low <= high))


def complement(ranges: Ranges) -> Ranges:
    """All characters that are not in a set."""
    gaps: list[tuple[int, int]] = []
    start = 0
    for low, high in sorted(ranges):
        if start < low:
            gaps.append((start, low - 1))
        start = max(start, high + 1)
    return (*gaps, (start, 0x10FFFF)) if start <= 0x10FFFF else tuple(gaps)


def strings_except(excluded: Collection[str]) -> Node:
    """All strings without escapes, apart from the excluded ones."""
    return quoted(_rest_except(frozenset(excluded)))


def _rest_except(excluded: frozenset[str]) -> Node:
    """Follow the excluded strings letter by letter; whoever leaves their path is free."""
    if not excluded:
        return Repeat(Chars(PLAIN), 0, None)
    firsts = sorted({text[0] for text in excluded if text})
    free = intersect(PLAIN, complement(tuple((ord(letter), ord(letter)) for letter in firsts)))
    options: list[Node] = [sequence(Chars(free), Repeat(Chars(PLAIN), 0, None))]
    for letter in firsts:
        if intersect(PLAIN, ((ord(letter), ord(letter)),)):
            rest = frozenset(text[1:] for text in excluded if text.startswith(letter))
            options.append(sequence(letter, _rest_except(rest)))
    return choice(options) if "" in excluded else optional(choice(options))
