"""The query in an answer: the last code fence, otherwise what begins with SELECT or WITH. Takes linear time."""

import re
from typing import Final

MAX_QUERY: Final = 10_000
_START: Final = re.compile(r"^[ \t]*(?:select|with)\b", re.IGNORECASE | re.MULTILINE)
_WORD: Final = re.compile(r"\b(?:select|with)\b", re.IGNORECASE)
FENCE: Final = "```"


def extract_query(text: str) -> str | None:
    """The query, without the semicolon at its end; None if there is none, or one of unreasonable length."""
    query = _fenced(text)
    if query is None:
        found = _START.search(text) or _WORD.search(text)
        query = text[found.start() :] if found else None
    if query is None:
        return None
    query = query.strip().rstrip(";").rstrip()
    return query if 0 < len(query) <= MAX_QUERY else None


def _fenced(text: str) -> str | None:
    end = text.rfind(FENCE)
    start = text.rfind(FENCE, 0, end) if end > 0 else -1
    if start < 0:
        return None
    inside = text[start + len(FENCE) : end]
    first, newline, rest = inside.partition("\n")
    # What follows the opening fence on its line is the name of the language.
    return rest if newline and (not first.strip() or first.strip().isalnum()) else inside
