"""GBNF grammars as values: build rules, drop what can never finish, write the text that the engine reads. Pure.

A :class:`Choice` of nothing accepts nothing. Such dead ends may arise anywhere (an empty ``enum``, a schema that
requires itself), and :func:`write_grammar` removes every alternative that leads into one, so that a model can't be
lured into a text that has no end.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias


@dataclass(frozen=True, slots=True)
class Literal:
    """Exactly this text."""

    text: str


@dataclass(frozen=True, slots=True)
class Chars:
    """One character whose code point lies in one of the ranges; with ``negated``, in none of them."""

    ranges: tuple[tuple[int, int], ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Ref:
    """Whatever the rule of that name accepts."""

    name: str


@dataclass(frozen=True, slots=True)
class Sequence:
    """One part after the other."""

    parts: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the options."""

    options: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Repeat:
    """The node ``least`` to ``most`` times; without ``most``, without limit."""

    node: "Node"
    least: int
    most: int | None


Node: TypeAlias = Literal | Chars | Ref | Sequence | Choice | Repeat
Rules: TypeAlias = Mapping[str, Node]

EMPTY: Final = Sequence(())
NOTHING: Final = Choice(())


class EmptyGrammarError(ValueError):
    """No text at all fits the grammar."""


def sequence(*parts: Node | str) -> Node:
    """The parts one after the other; strings are literals."""
    return Sequence(tuple(Literal(part) if isinstance(part, str) else part for part in parts))


def choice(options: Iterable[Node | str]) -> Node:
    """One of the options; strings are literals."""
    nodes = [Literal(option) if isinstance(option, str) else option for option in options]
    return nodes[0] if len(nodes) == 1 else Choice(tuple(dict.fromkeys(nodes)))


def optional(node: Node) -> Node:
    """The node or nothing."""
    return Repeat(node, 0, 1)


def chars(accepted: str) -> Chars:
    """One of these characters."""
    return Chars(tuple((ord(character), ord(character)) for character in accepted))


def write_grammar(rules: Rules, root: str = "root") -> str:
    """The grammar as the engine reads it, ``root`` first, without dead ends and unused rules."""
    alive = _productive(rules)
    if root not in alive:
        raise EmptyGrammarError("no text fits the grammar")
    pruned = {name: _prune(node, alive) for name, node in rules.items() if name in alive}
    order = _reachable(pruned, root)
    # The engine starts at the rule named root; the others are numbered, because their names may hold anything.
    names = {name: f"r{number}" for number, name in enumerate(order)} | {root: "root"}
    return "".join(f"{names[name]} ::= {_write(pruned[name], names)}\n" for name in order)


def _productive(rules: Rules) -> set[str]:
    """Rules that can finish: found from those that refer to nothing outwards."""
    alive: set[str] = set()
    while True:
        found = {name for name, node in rules.items() if name not in alive and _can_finish(node, alive)}
        if not found:
            return alive
        alive |= found


def _can_finish(node: Node, alive: set[str]) -> bool:
    match node:
        case Ref(name):
            return name in alive
        case Sequence(parts):
            return all(_can_finish(part, alive) for part in parts)
        case Choice(options):
            return any(_can_finish(option, alive) for option in options)
        case Repeat(inner, least, _):
            return least == 0 or _can_finish(inner, alive)
        case _:
            return True


def _prune(node: Node, alive: set[str]) -> Node:
    match node:
        case Sequence(parts):
            return Sequence(tuple(_prune(part, alive) for part in parts))
        case Choice(options):
            return choice(_prune(option, alive) for option in options if _can_finish(option, alive))
        case Repeat(inner, least, most):
            return Repeat(_prune(inner, alive), least, most) if _can_finish(inner, alive) else EMPTY
        case _:
            return node


def _reachable(rules: Rules, root: str) -> list[str]:
    seen: dict[str, None] = {}
    waiting = [root]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen[name] = None
            waiting += reversed(_references(rules[name]))
    return list(seen)


def _references(node: Node) -> list[str]:
    match node:
        case Ref(name):
            return [name]
        case Sequence(inner) | Choice(inner):
            return [name for part in inner for name in _references(part)]
        case Repeat(inner, _, _):
            return _references(inner)
        case _:
            return []


def _write(node: Node, names: Mapping[str, str]) -> str:
    match node:
        case Literal(text):
            return '"' + "".join(map(_literal_character, text)) + '"'
        case Chars(ranges, negated):
            return "[" + "^" * negated + "".join(map(_write_range, ranges)) + "]"
        case Ref(name):
            return names[name]
        case Sequence(parts):
            return " ".join(_write_part(part, names) for part in parts) or '""'
        case Choice(options):
            return " | ".join(_write(option, names) for option in options)
        case Repeat(inner, least, most):
            return _write_part(inner, names, repeated=True) + _times(least, most)


def _write_part(node: Node, names: Mapping[str, str], *, repeated: bool = False) -> str:
    # A literal of several characters is several elements to the engine: a count would apply to the last one only.
    apart = isinstance(node, Choice) or (repeated and isinstance(node, Sequence | Repeat | Literal))
    return f"({_write(node, names)})" if apart else _write(node, names)


def _times(least: int, most: int | None) -> str:
    if most is None:
        return {0: "*", 1: "+"}.get(least, f"{{{least},}}")
    return "?" if (least, most) == (0, 1) else f"{{{least},{most}}}"


def _literal_character(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character if character.isprintable() else _escape(ord(character))


def _write_range(bounds: tuple[int, int]) -> str:
    first, last = bounds
    return _class_character(first) if first == last else f"{_class_character(first)}-{_class_character(last)}"


def _class_character(code: int) -> str:
    # Everything that could mean something inside brackets is written as a number.
    return chr(code) if code < 128 and chr(code).isalnum() else _escape(code)


def _escape(code: int) -> str:
    if code < 0x100:
        return f"\\x{code:02X}"
    return f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"
