"""Checks of how an answer is built: lists, lines, sentences, quotation marks, JSON."""

import json
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from resources_servers.format_following.base_check import BaseCheck, CountCheck, Phrase, RangeCheck
from resources_servers.format_following.text import (
    bullets,
    item_numbers,
    lines,
    lower_words,
    sentences,
    unfenced,
    words,
)


class NumberedList(CountCheck):
    """Exactly ``count`` lines numbered 1, 2, 3 …; other lines are not counted."""

    kind: Literal["numbered_list"]

    def _holds(self, text: str) -> bool:
        return item_numbers(text) == list(range(1, self.count + 1))


class BulletList(CountCheck):
    """Exactly ``count`` lines that begin with a bullet; other lines are not counted."""

    kind: Literal["bullet_list"]

    def _holds(self, text: str) -> bool:
        return len(bullets(text)) == self.count


class CommaList(CountCheck):
    """One line with exactly ``count`` items between commas."""

    kind: Literal["comma_list"]

    def _holds(self, text: str) -> bool:
        items = text.strip().split(",")
        return len(lines(text)) == 1 and len(items) == self.count and all(words(item) for item in items)


class LineCount(CountCheck):
    """Exactly ``count`` lines that are not blank."""

    kind: Literal["line_count"]

    def _holds(self, text: str) -> bool:
        return len(lines(text)) == self.count


class SentenceCount(CountCheck):
    """Exactly ``count`` sentences."""

    kind: Literal["sentence_count"]

    def _holds(self, text: str) -> bool:
        return len(sentences(text)) == self.count


class WordCount(RangeCheck):
    """A number of words."""

    kind: Literal["word_count"]

    def _holds(self, text: str) -> bool:
        return self.fits(len(words(text)))


class Quoted(BaseCheck):
    """The whole answer is between one pair of double quotation marks."""

    kind: Literal["quoted"]

    def _holds(self, text: str) -> bool:
        straight = text.strip().replace("\u201c", '"').replace("\u201d", '"')
        return straight.startswith('"') and straight.endswith('"') and straight.count('"') == 2


class OneOf(BaseCheck):
    """Exactly one of the options and nothing else; case and final punctuation do not matter."""

    kind: Literal["one_of"]
    options: Annotated[list[Phrase], Field(min_length=1)]

    def _holds(self, text: str) -> bool:
        return lower_words(text) in [lower_words(option) for option in self.options]


class JsonKeys(BaseCheck):
    """A JSON object with exactly these keys, bare or in a code fence."""

    kind: Literal["json_keys"]
    keys: Annotated[list[Annotated[str, StringConstraints(min_length=1)]], Field(min_length=1)]

    def _holds(self, text: str) -> bool:
        try:
            value = json.loads(unfenced(text))
        except (ValueError, RecursionError):
            return False
        return isinstance(value, dict) and value.keys() == set(self.keys)
