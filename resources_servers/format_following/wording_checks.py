"""Checks of which words, letters and signs an answer uses."""

from typing import Literal

from resources_servers.format_following.base_check import BaseCheck, Count, Letter, Phrase, Word
from resources_servers.format_following.text import lower_words, words


class WordLength(BaseCheck):
    """No word longer than ``at_most`` characters."""

    kind: Literal["word_length"]
    at_most: Count

    def _holds(self, text: str) -> bool:
        return all(len(word) <= self.at_most for word in words(text))


class StartsWith(BaseCheck):
    """The first words are those of ``text``, in whatever case."""

    kind: Literal["starts_with"]
    text: Phrase

    def _holds(self, text: str) -> bool:
        wanted = lower_words(self.text)
        return lower_words(text)[: len(wanted)] == wanted


class EndsWith(BaseCheck):
    """The last words are those of ``text``, in whatever case; punctuation may follow."""

    kind: Literal["ends_with"]
    text: Phrase

    def _holds(self, text: str) -> bool:
        wanted = lower_words(self.text)
        return lower_words(text)[-len(wanted) :] == wanted


class ContainsWord(BaseCheck):
    """The word occurs exactly ``count`` times, or at least once when no count is given."""

    kind: Literal["contains_word"]
    word: Word
    count: Count | None = None

    def _holds(self, text: str) -> bool:
        found = lower_words(text).count(self.word.lower())
        return found >= 1 if self.count is None else found == self.count


class ExcludesWord(BaseCheck):
    """The word does not occur."""

    kind: Literal["excludes_word"]
    word: Word

    def _holds(self, text: str) -> bool:
        found = lower_words(text)
        return self.word.lower() not in found


class ExcludesLetter(BaseCheck):
    """The letter does not occur, in either case."""

    kind: Literal["excludes_letter"]
    letter: Letter

    def _holds(self, text: str) -> bool:
        return self.letter.lower() not in text.lower()


class EachWordStartsWith(BaseCheck):
    """Every word begins with the letter, in whatever case."""

    kind: Literal["each_word_starts_with"]
    letter: Letter

    def _holds(self, text: str) -> bool:
        found = lower_words(text)
        return all(word[0] == self.letter.lower() for word in found)


class AllCaps(BaseCheck):
    """Capital letters only."""

    kind: Literal["all_caps"]

    def _holds(self, text: str) -> bool:
        return text.isupper()


class AllLowercase(BaseCheck):
    """Small letters only."""

    kind: Literal["all_lowercase"]

    def _holds(self, text: str) -> bool:
        return text.islower()


class NoCommas(BaseCheck):
    """Not a single comma."""

    kind: Literal["no_commas"]

    def _holds(self, text: str) -> bool:
        return "," not in text
