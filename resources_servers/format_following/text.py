"""How text is split into words, sentences, lines and list items; all checks use the same rules.

Models can write anything, so every expression reads each character a bounded number of times.
"""

import re
from typing import Final

_WORD: Final = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")
# Matched only where a run of marks begins, and possessively: otherwise a long run would take quadratic time.
_SENTENCE_END: Final = re.compile(r"(?<![.!?])[.!?]++[\"'\u201d\u2019)]*+(?:\s+|$)")
# An item has a word: a list of dots is none.
_NUMBERED: Final = re.compile(r"([0-9]{1,4})[.)]\s+[^\n]*[^\W_]")
_BULLET: Final = re.compile(r"[-*\u2022]\s+[^\n]*[^\W_]")


def words(text: str) -> list[str]:
    """Find runs of letters and digits; ``don't`` and ``well-known`` are one word each."""
    return _WORD.findall(text)


def lower_words(text: str) -> list[str]:
    """Find the words, for comparison without regard to case."""
    return [word.lower() for word in words(text)]


def sentences(text: str) -> list[str]:
    """Split at full stops, question marks and exclamation marks; keep the pieces with at least one word."""
    return [piece for piece in _SENTENCE_END.split(text) if words(piece)]


def lines(text: str) -> list[str]:
    """Find the lines that are not blank, without the white space around them."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def item_numbers(text: str) -> list[int]:
    """Read the numbers of lines such as ``1. item`` and ``1) item``."""
    return [int(match[1]) for line in lines(text) if (match := _NUMBERED.match(line))]


def bullets(text: str) -> list[str]:
    """Find lines such as ``- item`` and ``* item``."""
    return [line for line in lines(text) if _BULLET.match(line)]


def unfenced(text: str) -> str:
    """Remove a Markdown code fence around the text."""
    text = text.strip()
    if not (text.startswith("```") and text.endswith("```") and "\n" in text):
        return text
    return text[text.index("\n") : -3].strip()
