"""Full-text search: what of a rollout can be found, how a query is read, and what is shown of a hit.

A query is words, all of which must occur; each may be the beginning of a longer word. Words in quotation marks must
follow each other. Everything else of the database's query language is plain text here.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from nemo_gym.filters.columns import plain_text
from nemo_gym.view.transcript import answer_entries, prompt_entries

LONGEST_TEXT: Final = 2_000_000  # characters of one rollout
_AROUND: Final = 60  # characters of context on each side
_QUERY: Final = re.compile(r'"([^"]*)"?|(\S+)')
_WORD: Final = re.compile(r"\w+")
_MOST_WORDS: Final = 20


def searchable_text(record: Mapping[str, Any]) -> str:
    """Prompts, answers, reasoning, tool calls and their output; the reason of a failure."""
    return plain_text("\n".join(_texts(record))[:LONGEST_TEXT])


def _texts(record: Mapping[str, Any]) -> Iterator[str]:
    for entry in prompt_entries(record):
        yield entry.text
    for entry in answer_entries(record):
        yield entry.text
    for name in ("error_message", "_ng_http_body"):
        if isinstance(record.get(name), str):
            yield record[name]


def parse_search(text: str) -> list[list[str]]:
    """The phrases that all must occur, each a list of words; the last word of an unquoted one may go on."""
    phrases: list[list[str]] = []
    for match in _QUERY.finditer(text):
        words = _WORD.findall(match[1] if match[1] is not None else match[2])
        if words:
            phrases.append([*words, ""] if match[1] is not None else words)  # the empty word: ends as it is
    return phrases[:_MOST_WORDS]


def to_match(text: str) -> str | None:
    """The query in the database's own language; None if there is nothing to search for."""
    parts = []
    for phrase in parse_search(text):
        exact = phrase[-1] == ""
        quoted = '"' + " ".join(filter(None, phrase)) + '"'
        parts.append(quoted if exact else f"{quoted}*")
    return " AND ".join(parts) or None


def snippet(record: Mapping[str, Any], search: str) -> str | None:
    """The surroundings of the first hit, on one line."""
    text = searchable_text(record)
    for phrase in parse_search(search):
        pattern = r"\b" + r"\W+".join(map(re.escape, filter(None, phrase)))
        match = re.search(pattern, text, re.IGNORECASE)
        if match:
            start, stop = max(0, match.start() - _AROUND), min(len(text), match.end() + _AROUND)
            shown = " ".join(text[start:stop].split())
            return f"{'…' if start else ''}{shown}{'…' if stop < len(text) else ''}"
    return None
