"""Full-text search: which text of a rollout is searched, how a query is read, and what is shown of a match.

A query is words, all of which must occur; each may be the beginning of a longer word. Words in quotation marks must
follow each other. A word is a run of letters and digits; case and accents do not matter.

The exported page has no database and searches by itself (``static/search.js``). Both follow the same three rules, which
are kept this simple for that reason: which strings of a record are text (``searchable_text``), how letters are compared
(``fold``), and how a query is read (``parse_search``). A test compares them.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from nemo_gym.filters.columns import plain_text
from nemo_gym.schemas.record import Record
from nemo_gym.schemas.rows import RESPONSES_CREATE_PARAMS_KEY_NAME

LONGEST_TEXT: Final = 2_000_000  # characters of one rollout
# Values under these names are not written for people: identifiers, kinds, and encoded data.
NOT_TEXT: Final = frozenset(
    {
        "call_id",
        "encrypted_content",
        "file_data",
        "id",
        "image_url",
        "logprobs",
        "role",
        "status",
        "tool_call_id",
        "type",
    }
)
AROUND: Final = 60  # characters of context on each side
_ACCENT: Final = "[\u0300-\u036f]"
_QUERY: Final = re.compile(r'"([^"]*)"?|([^\s"]+)')
_WORD: Final = re.compile(r"[^\W_]+")
_BEYOND_ASCII: Final = re.compile(r"[^\x00-\x7f]+")
_ACCENTS: Final = re.compile(_ACCENT)
_PART_OF_WORD: Final = rf"[^\W_]|{_ACCENT}"
_SEPARATORS: Final = re.compile(r"[^\w\x00-\x7f]+")
_FINAL_SIGMA: Final = "\N{GREEK SMALL LETTER FINAL SIGMA}"
MOST_PHRASES: Final = 20


def searchable_text(record: Mapping[str, Any]) -> str:
    """Prompts, answers, reasoning, tool calls and their output; the reason of a failure."""
    return plain_text("\n".join(_strings(record))[:LONGEST_TEXT])


def _strings(record: Mapping[str, Any]) -> Iterator[str]:
    """All text in order. Not recursive, because a rollout may be nested more deeply than Python's stack allows."""
    params, response = record.get(RESPONSES_CREATE_PARAMS_KEY_NAME), record.get("response")
    given = [params.get("instructions"), params.get("input")] if isinstance(params, Mapping) else []
    details = response.get("incomplete_details") if isinstance(response, Mapping) else None
    waiting = [*given, Record(record).output, details, record.get("error_message"), record.get("_ng_http_body")][::-1]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            waiting += value[::-1]
        elif isinstance(value, Mapping):
            waiting += [inner for name, inner in value.items() if name not in NOT_TEXT][::-1]


def fold(text: str) -> str:
    """The text as it is compared: in lower case, without accents, and with blanks for signs beyond ASCII.

    ASCII letters keep their case: the index ignores it, and lower() is slow for text that has anything else in it.
    """
    return text if text.isascii() else _BEYOND_ASCII.sub(_folded, text)


def _folded(match: re.Match[str]) -> str:
    return _fold_run(match[0])


@lru_cache(maxsize=8192)  # most of what is beyond ASCII is a few dashes, quotation marks and letters
def _fold_run(text: str) -> str:
    plain = _ACCENTS.sub("", unicodedata.normalize("NFKD", text))
    # lower() of a final sigma depends on the letters around it, which are missing here.
    lower = unicodedata.normalize("NFC", plain).lower().replace(_FINAL_SIGMA, "\N{GREEK SMALL LETTER SIGMA}")
    return _SEPARATORS.sub(" ", lower)


def parse_search(text: str) -> list[list[str]]:
    """The phrases that must all occur, each a list of words; the last word of an unquoted one is a prefix."""
    phrases: list[list[str]] = []
    for match in _QUERY.finditer(text):
        words = _WORD.findall(fold(match[1] if match[1] is not None else match[2]).lower())
        if words:
            phrases.append([*words, ""] if match[1] is not None else words)  # the empty word marks an exact ending
    return phrases[:MOST_PHRASES]


def to_match(text: str) -> str | None:
    """The query in the database's own language; None if there is nothing to search for."""
    parts = []
    for phrase in parse_search(text):
        exact = phrase[-1] == ""
        quoted = '"' + " ".join(filter(None, phrase)) + '"'
        parts.append(quoted if exact else f"{quoted}*")
    return " AND ".join(parts) or None


def _phrase_pattern(phrase: list[str]) -> re.Pattern[str]:
    """Where a phrase is in text that was folded letter by letter; accents may have been written apart."""
    spelt = ["".join(f"{letter}{_ACCENT}*" for letter in word) for word in phrase if word]
    end = "" if phrase[-1] else f"(?!{_PART_OF_WORD})"
    return re.compile(f"(?<!{_PART_OF_WORD})" + rf"(?!{_ACCENT})[\W_]+".join(spelt) + end)


def _letter_by_letter(text: str) -> str:
    """Text of the same length in which each letter is folded that stays one letter."""
    folded = {letter: fold(letter).lower() for letter in set(text) if letter <= "\uffff"}
    return text.translate({ord(letter): to for letter, to in folded.items() if len(to) == 1})


def snippet(record: Mapping[str, Any], search: str) -> str | None:
    """The surroundings of the first match, on one line; None if a ligature hides it."""
    text = searchable_text(record)
    letters = _letter_by_letter(text)
    for phrase in parse_search(search):
        match = _phrase_pattern(phrase).search(letters)
        if match:
            start, stop = max(0, match.start() - AROUND), min(len(text), match.end() + AROUND)
            shown = " ".join(text[start:stop].split())
            return f"{'…' if start else ''}{shown}{'…' if stop < len(text) else ''}"
    return None
