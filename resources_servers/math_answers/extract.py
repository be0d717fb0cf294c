r"""Finds the final answer: in a box, after a word that announces it, or else the last formula or number.

Every function makes one pass over the text or reads a tail of fixed length, so that no text takes long.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal

MAX_ANSWER: Final = 1_000
TAIL: Final = 2_000

Found = Literal["box", "announced", "last"]

_BOX_TOKEN: Final = re.compile(r"\\(?:boxed|fbox)[ \t]*\{|\\.|[{}]", re.DOTALL)
_BARE_BOX: Final = re.compile(r"\\boxed[ \t]*([^\s{$\\]{1,100})")
# What may be between two boxes that are one answer: \boxed{1} and \boxed{2}.
_BETWEEN_BOXES: Final = re.compile(r"[\s,;$]*(?:and|or|\\text\{ ?(?:and|or) ?\})?[\s,;$]*\Z")
_ANNOUNCED: Final = re.compile(
    r"####|^[ \t]*A:|\banswer(?:s)?\b(?: to [^.\n:]{1,80})?[*_]{0,3}[ \t]?(?:is|are|:|=)(?:[ \t]?:)?[*_]{0,3}",
    re.IGNORECASE | re.MULTILINE,
)
_MATH_SPAN: Final = re.compile(
    r"\$\$([^$]{1,1000})\$\$|\$([^$\n]{1,1000})\$|\\\(([^\n]{1,1000}?)\\\)|\\\[(.{1,1000}?)\\\]", re.DOTALL
)
_NUMBER: Final = re.compile(
    r"(?<![\w.])[-+\u2212]?[$€£]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d{1,400})(?:\.\d{1,400})?(?:/\d{1,400})?%?"
)
_END_OF_SENTENCE: Final = re.compile(r"\.(?:\s|\Z)")


@dataclass(frozen=True, slots=True)
class Answer:
    """A final answer and how it was found."""

    text: str
    found: Found


def extract_answer(text: str) -> Answer | None:
    """The final answer in some text."""
    if boxed := _boxed(text):
        return Answer(boxed, "box")
    if announced := _announced(text):
        return Answer(announced, "announced")
    last = _last(text[-TAIL:])
    return Answer(last, "last") if last else None


def _boxed(text: str) -> str | None:
    boxes = _boxes(text)
    if not boxes:
        bare = _BARE_BOX.findall(text)
        return bare[-1].rstrip(".,;") if bare else None
    first = len(boxes) - 1
    while first and _joined(text, boxes[first - 1], boxes[first]):
        first -= 1
    return ", ".join(text[start:end].strip() for start, end, _ in boxes[first:])


def _boxes(text: str) -> list[tuple[int, int, int]]:
    r"""Content start, content end and outer start of every closed ``\boxed{…}`` that is not inside another."""
    boxes: list[tuple[int, int, int]] = []
    depth = 0
    open_boxes: list[tuple[int, int, int]] = []  # depth before the box, content start, outer start
    for token in _BOX_TOKEN.finditer(text):
        mark = token.group()
        if mark == "{":
            depth += 1
        elif mark == "}":
            depth = max(0, depth - 1)
            if open_boxes and open_boxes[-1][0] == depth:
                _, start, outer = open_boxes.pop()
                while boxes and boxes[-1][2] > outer:
                    boxes.pop()
                boxes.append((start, token.start(), outer))
        elif len(mark) > 2:
            open_boxes.append((depth, token.end(), token.start()))
            depth += 1
    return boxes


def _joined(text: str, left: tuple[int, int, int], right: tuple[int, int, int]) -> bool:
    between = left[1] + 1, right[2]
    return between[1] - between[0] <= 20 and _BETWEEN_BOXES.match(text[between[0] : between[1]]) is not None


def _announced(text: str) -> str | None:
    last = None
    for last in _ANNOUNCED.finditer(text):  # noqa: B007 - the last one counts
        pass
    if last is None:
        return None
    rest = text[last.end() : last.end() + MAX_ANSWER + 1].lstrip(" \t*_\n")
    line = rest.partition("\n")[0]
    if line.rstrip() in {"$$", "\\[", "```"}:  # the answer is on the next line
        line = " ".join(rest.split("\n")[1:2])
    return _tidy(line) or None


def _tidy(line: str) -> str:
    """The answer without the rest of its sentence and without the signs around it."""
    spans = list(_MATH_SPAN.finditer(line))
    if spans and not line[: spans[0].start()].strip(" *_"):
        return next(group for group in spans[0].groups() if group is not None).strip()
    if end := _END_OF_SENTENCE.search(line):
        line = line[: end.start()]
    return line.strip().strip("*_`").strip()


def _last(tail: str) -> str | None:
    number = span = None
    for number in _NUMBER.finditer(tail):  # noqa: B007
        pass
    for span in _MATH_SPAN.finditer(tail):  # noqa: B007
        pass
    # The last formula, unless a number comes after it.
    if span and (number is None or number.start() < span.end()):
        return next(group for group in span.groups() if group is not None).strip()
    return number.group() if number else None
