"""Regular expressions as grammars for the inside of a JSON string. Pure.

The common core of the dialects is understood: alternatives, groups, classes, counts, ``^`` and ``$`` at the ends. What
a grammar accepts is found by the expression; where dialects differ (is a ``\\d`` an Arabic digit?) only what all of
them find is accepted.
"""

import re
from dataclasses import dataclass
from typing import Final

from responses_api_models.local_model.grammar.gbnf import Node, Repeat, choice, sequence
from responses_api_models.local_model.grammar.json_strings import CHARACTER, Ranges, characters, complement, intersect

ASCII: Final[Ranges] = ((0x20, 0x7E),)
DIGITS: Final[Ranges] = ((0x30, 0x39),)
WORD: Final[Ranges] = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
SPACE: Final[Ranges] = ((0x20, 0x20),)
NEWLINES: Final[Ranges] = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
CLASSES: Final = {"d": DIGITS, "w": WORD, "s": SPACE}
CONTROL: Final = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"}
COUNT: Final = re.compile(r"\{(\d+)(,?)(\d*)\}")
GROUP: Final = re.compile(r"\(\?(:|P?<[A-Za-z_]\w*>)")
SHORTHAND: Final = re.compile(r"\\[dDwWsS]")
CODED: Final = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4}))")
UNLIMITED: Final = 10**9


class PatternError(ValueError):
    """An expression that has no equivalent grammar."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the expression: its grammar, and how many characters it takes."""

    node: Node
    least: int
    most: int
    # A piece that is one character, repeated: its count can be narrowed.
    unit: Node | None = None


@dataclass(frozen=True, slots=True)
class Branch:
    """One alternative of the whole expression, and whether it is tied to the ends of the text."""

    piece: Piece
    at_start: bool
    at_end: bool


def pattern_text(pattern: str, least: int = 0, most: int | None = None) -> Node:
    """What the expression finds, of ``least`` to ``most`` characters, as written inside a JSON string."""
    limit = UNLIMITED if most is None else most
    cap = limit
    while True:
        branches = _Parser(pattern, cap).parse()
        fitting = [node for branch in branches if (node := _fit(branch, least, limit)) is not None]
        if fitting:
            return choice(fitting)
        if cap == 0 or most is None:
            raise PatternError(f"{pattern!r} does not go together with minLength {least} and maxLength {most}")
        cap //= 2


def _fit(branch: Branch, least: int, limit: int) -> Node | None:
    piece = branch.piece
    if not (branch.at_start and branch.at_end):
        padding = _padding(piece, least, limit)
        if padding is None:
            return None
        return sequence(padding, piece.node) if branch.at_end else sequence(piece.node, padding)
    if piece.unit is not None:
        low, high = max(piece.least, least), min(piece.most, limit)
        return Repeat(piece.unit, low, _unlimited(high)) if low <= high else None
    return piece.node if piece.least >= least and piece.most <= limit else None


def _padding(piece: Piece, least: int, limit: int) -> Node | None:
    """What may stand beside a piece that is not tied to both ends."""
    low = max(0, least - piece.least)
    high = None if limit == UNLIMITED else limit - piece.most
    return Repeat(CHARACTER, low, high) if high is None or low <= high else None


def _unlimited(count: int) -> int | None:
    return None if count > UNLIMITED // 2 else count


class _Parser:
    """Recursive descent over the expression; counts above ``cap`` are lowered to it where that is allowed."""

    def __init__(self, pattern: str, cap: int) -> None:
        self.pattern = pattern
        self.cap = cap
        self.position = 0

    def parse(self) -> list[Branch]:
        branches = [self._branch()]
        while self._take("|"):
            branches.append(self._branch())
        if self.position < len(self.pattern):
            raise self._unsupported()
        return branches

    def _branch(self) -> Branch:
        at_start = self._take("^")
        piece = self._run()
        return Branch(piece, at_start, self._take("$"))

    def _run(self) -> Piece:
        """Pieces one after the other, up to the end of the alternative."""
        pieces: list[Piece] = []
        while self.position < len(self.pattern) and self._peek() not in "|)$":
            pieces.append(self._counted(self._atom()))
        if len(pieces) == 1:
            return pieces[0]
        node = sequence(*(piece.node for piece in pieces))
        return Piece(node, sum(p.least for p in pieces), min(UNLIMITED, sum(p.most for p in pieces)))

    def _atom(self) -> Piece:
        character = self._peek()
        if character == "(":
            return self._group()
        if character == "[":
            return _one(self._class())
        if character == ".":
            self.position += 1
            return _one(complement(NEWLINES))
        if character == "\\":
            return _one(self._escape(inside_class=False))
        if character in "^*+?":
            raise self._unsupported()
        self.position += 1
        return _one(((ord(character), ord(character)),))

    def _group(self) -> Piece:
        start = GROUP.match(self.pattern, self.position)
        if start is None and self.pattern.startswith("(?", self.position):
            raise self._unsupported()
        self.position = start.end() if start else self.position + 1
        pieces = [self._run()]
        while self._take("|"):
            pieces.append(self._run())
        if not self._take(")"):
            raise self._unsupported()
        if len(pieces) == 1:
            return pieces[0]
        node = choice(piece.node for piece in pieces)
        return Piece(node, min(piece.least for piece in pieces), max(piece.most for piece in pieces))

    def _counted(self, piece: Piece) -> Piece:
        counts = self._counts()
        if counts is None:
            return piece
        least, most = counts
        most = max(least, min(most, self.cap))
        unit = piece.node if piece.least == piece.most == 1 else None
        node = Repeat(piece.node, least, _unlimited(most))
        return Piece(node, piece.least * least, min(UNLIMITED, piece.most * most), unit)

    def _counts(self) -> tuple[int, int] | None:
        simple = {"*": (0, UNLIMITED), "+": (1, UNLIMITED), "?": (0, 1)}
        match = COUNT.match(self.pattern, self.position)
        if match:
            self.position = match.end()
            least = int(match[1])
            counts = (least, int(match[3]) if match[3] else UNLIMITED if match[2] else least)
        elif self._peek() in simple:
            counts = simple[self._peek()]
            self.position += 1
        else:
            return None
        self._take("?")  # a reluctant count accepts the same texts
        return counts

    def _class(self) -> Ranges:
        self.position += 1
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        shorthand = False
        if self._peek() == "]":
            raise self._unsupported()
        while not self._take("]"):
            shorthand |= SHORTHAND.match(self.pattern, self.position) is not None
            ranges += self._class_range()
        if not negated:
            return tuple(ranges)
        # Beyond ASCII the dialects disagree about what the shorthands stand for.
        return intersect(complement(tuple(ranges)), ASCII) if shorthand else complement(tuple(ranges))

    def _class_range(self) -> Ranges:
        first = self._class_character()
        if not (self.pattern.startswith("-", self.position) and self._peek(1) not in ("", "]")):
            return first
        self.position += 1
        last = self._class_character()
        (low, high) = (first[0][0], last[0][1])
        if first != ((low, low),) or last != ((high, high),) or low > high:
            raise self._unsupported()
        return ((low, high),)

    def _class_character(self) -> Ranges:
        character = self._peek()
        if character == "":
            raise self._unsupported()
        if character == "\\":
            return self._escape(inside_class=True)
        self.position += 1
        return ((ord(character), ord(character)),)

    def _escape(self, *, inside_class: bool) -> Ranges:
        letter = self._peek(1)
        coded = CODED.match(self.pattern, self.position)
        if coded:
            self.position = coded.end()
            code = int(coded[1] or coded[2], 16)
            return ((code, code),)
        if letter.lower() in CLASSES and letter:
            self.position += 2
            found = CLASSES[letter.lower()]
            return found if letter.islower() else intersect(complement(found), ASCII)
        if letter in CONTROL or (inside_class and letter == "b"):
            self.position += 2
            code = ord(CONTROL.get(letter, "\b"))
            return ((code, code),)
        if not letter or letter.isalnum():
            raise self._unsupported()
        self.position += 2
        return ((ord(letter), ord(letter)),)

    def _peek(self, ahead: int = 0) -> str:
        return self.pattern[self.position + ahead : self.position + ahead + 1]

    def _take(self, character: str) -> bool:
        found = self._peek() == character
        self.position += found
        return found

    def _unsupported(self) -> PatternError:
        rest = self.pattern[self.position : self.position + 10]
        return PatternError(f"the pattern {self.pattern!r} can't become a grammar, because of {rest!r}")


def _one(ranges: Ranges) -> Piece:
    node = characters(ranges)
    return Piece(node, 1, 1, node)
