"""How a text is cut into words, sentences, lines and list items. Checkers agree on these, and on nothing else."""

import re
from typing import Final

_WORD: Final = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")
_SENTENCE_END: Final = re.compile(r"[.!?]+[\"'\u201d\u2019)]*(?:\s+|$)")
_NUMBERED: Final = re.compile(r"([0-9]{1,4})[.)]\s+\S")
_BULLET: Final = re.compile(r"[-*\u2022]\s+\S")


def words(text: str) -> list[str]:
    """Runs of letters and digits; ``don't`` and ``well-known`` are one word each."""
    return _WORD.findall(text)


def lower_words(text: str) -> list[str]:
    """The words, for comparison without regard to case."""
    return [word.lower() for word in words(text)]


def sentences(text: str) -> list[str]:
    """The pieces between full stops, question and exclamation marks that hold at least one word."""
    return [piece for piece in _SENTENCE_END.split(text) if words(piece)]


def lines(text: str) -> list[str]:
    """The lines that are not blank, without the white space around them."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def item_numbers(text: str) -> list[int]:
    """The numbers of the lines that look like ``1. item`` or ``1) item``."""
    return [int(match[1]) for line in lines(text) if (match := _NUMBERED.match(line))]


def bullets(text: str) -> list[str]:
    """The lines that look like ``- item`` or ``* item``."""
    return [line for line in lines(text) if _BULLET.match(line)]


def unfenced(text: str) -> str:
    """The text without a Markdown code fence around it."""
    text = text.strip()
    if not (text.startswith("```") and text.endswith("```") and "\n" in text):
        return text
    return text[text.index("\n") : -3].strip()
