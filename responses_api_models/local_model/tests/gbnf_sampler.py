"""Reads a GBNF grammar and writes random texts that it accepts: a second opinion, independent of what wrote it."""

import math
from dataclasses import dataclass, field
from random import Random
from typing import Any

ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]"}
HEX_LENGTH = {"x": 2, "u": 4, "U": 8}
INTERESTING = [ord(c) for c in 'aZ09 -_.,:;"\\/{}[]<>éß\u4e2d\U0001f600']


@dataclass
class Reader:
    """A position in a text."""

    text: str
    position: int = 0

    def peek(self) -> str:
        return self.text[self.position : self.position + 1]

    def take(self, expected: str) -> bool:
        if self.text.startswith(expected, self.position):
            self.position += len(expected)
            return True
        return False

    def skip_blanks(self) -> None:
        while self.peek() == " ":
            self.position += 1

    def character(self) -> str:
        if not self.take("\\"):
            self.position += 1
            return self.text[self.position - 1]
        letter = self.peek()
        self.position += 1
        if letter in HEX_LENGTH:
            end = self.position + HEX_LENGTH[letter]
            code, self.position = int(self.text[self.position : end], 16), end
            return chr(code)
        return ESCAPES[letter]


# Nodes are tuples: ("text", str), ("class", negated, [(low, high)]), ("rule", name), ("all", [nodes]),
# ("any", [nodes]), ("times", node, least, most).
Node = tuple[Any, ...]


@dataclass
class GbnfSampler:
    """Random texts of one grammar; short ones are preferred as the text grows."""

    rules: dict[str, Node]
    costs: dict[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, grammar: str) -> "GbnfSampler":
        rules = {}
        for line in grammar.splitlines():
            name, _, body = line.partition(" ::= ")
            reader = Reader(body)
            rules[name] = _choice(reader)
            assert reader.position == len(body), f"trailing {body[reader.position :]!r}"
        sampler = cls(rules)
        sampler._find_costs()
        return sampler

    def sample(self, random: Random) -> str:
        out: list[str] = []
        self._emit(("rule", "root"), random, out)
        return "".join(out)

    def _find_costs(self) -> None:
        """The least number of characters that every rule needs, so that a sample can head for its end."""
        self.costs = dict.fromkeys(self.rules, math.inf)
        changed = True
        while changed:
            changed = False
            for name, node in self.rules.items():
                cost = 1 + self._cost(node)
                if cost < self.costs[name]:
                    self.costs[name], changed = cost, True
        assert math.inf not in self.costs.values(), "a rule that never ends"

    def _cost(self, node: Node) -> float:
        match node:
            case ("text", str(text)):
                return len(text)
            case ("class", *_):
                return 1
            case ("rule", str(name)):
                return self.costs[name]
            case ("all", parts):
                return sum(self._cost(part) for part in parts)
            case ("any", options):
                return min(self._cost(option) for option in options)
            case ("times", inner, least, _):
                return least and least * self._cost(inner)
        raise AssertionError(node)

    def _emit(self, node: Node, random: Random, out: list[str]) -> None:
        match node:
            case ("text", text):
                out.append(text)
            case ("class", negated, ranges):
                out.append(_pick(negated, ranges, random))
            case ("rule", name):
                self._emit(self.rules[name], random, out)
            case ("all", parts):
                for part in parts:
                    self._emit(part, random, out)
            case ("any", options):
                short = len(out) > 60
                self._emit(min(options, key=self._cost) if short else random.choice(options), random, out)
            case ("times", inner, least, most):
                extra = 0 if len(out) > 60 else random.choice([0, 0, 1, 2, 5])
                count = least + extra if most is None else min(least + extra, most)
                if most is not None and random.random() < 0.1 and most < 50:
                    count = most
                for _ in range(count):
                    self._emit(inner, random, out)


def _pick(negated: bool, ranges: list[tuple[int, int]], random: Random) -> str:
    if negated:
        candidates = [code for code in INTERESTING if not any(low <= code <= high for low, high in ranges)]
        return chr(random.choice(candidates))
    inside = [code for code in INTERESTING if any(low <= code <= high for low, high in ranges)]
    if inside and random.random() < 0.3:
        return chr(random.choice(inside))
    low, high = random.choice(ranges)
    return chr(random.choice([low, high, random.randint(low, high)]))


def _choice(reader: Reader) -> Node:
    options = [_sequence(reader)]
    while reader.take("|"):
        options.append(_sequence(reader))
    return options[0] if len(options) == 1 else ("any", options)


def _sequence(reader: Reader) -> Node:
    parts = []
    reader.skip_blanks()
    while reader.peek() not in ("", "|", ")"):
        parts.append(_counted(reader, _atom(reader)))
        reader.skip_blanks()
    return ("all", parts)


def _atom(reader: Reader) -> Node:
    if reader.take('"'):
        letters = []
        while not reader.take('"'):
            letters.append(reader.character())
        return ("text", "".join(letters))
    if reader.take("["):
        return _class(reader)
    if reader.take("("):
        inner = _choice(reader)
        assert reader.take(")")
        return inner
    start = reader.position
    while reader.peek().isalnum() or reader.peek() == "-":
        reader.position += 1
    assert reader.position > start, reader.text[start:]
    return ("rule", reader.text[start : reader.position])


def _class(reader: Reader) -> Node:
    negated = reader.take("^")
    ranges = []
    while not reader.take("]"):
        low = high = ord(reader.character())
        if reader.peek() == "-" and reader.take("-"):
            high = ord(reader.character())
        assert low <= high
        ranges.append((low, high))
    return ("class", negated, ranges)


def _counted(reader: Reader, node: Node) -> Node:
    for sign, (least, most) in {"*": (0, None), "+": (1, None), "?": (0, 1)}.items():
        if reader.take(sign):
            return ("times", node, least, most)
    if not reader.take("{"):
        return node
    end = reader.text.index("}", reader.position)
    counts, reader.position = reader.text[reader.position : end], end + 1
    first, _, last = counts.partition(",")
    assert not (last and int(last) < int(first)), counts
    return ("times", node, int(first), int(last) if last else None if "," in counts else int(first))
