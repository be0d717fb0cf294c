# ruff: noqa: D103 - the names of the instructions say it all
"""The kinds of instructions of IFBench (Pyatkin et al., 2025) about counts, ratios, sentences and words."""

import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Final

from resources_servers.verifiable_instructions.text import (
    CONJUNCTIONS,
    EDGE,
    NAMES,
    PRONOUNS,
    STOP_WORDS,
    bare_words,
    is_verb,
    sentences,
    syllables,
    without_punctuation,
    words,
)

_JAPANESE: Final = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]")
_CONSONANT_PAIR: Final = re.compile(r"[bcdfghjklmnpqrstvwxyz]{2}")


def word_count_range(text: str, min_words: int, max_words: int) -> bool:
    return min_words <= len(words(text)) <= max_words


def unique_word_count(text: str, N: int) -> bool:  # noqa: N803 - the data's name
    return len(set(bare_words(text))) >= N


def stop_words(text: str, percentage: int) -> bool:
    found = words(text)
    return bool(found) and 100 * sum(1 for word in found if word.lower() in STOP_WORDS) / len(found) <= percentage


def sentence_type(text: str) -> bool:
    marks = Counter(sentence[-1] for sentence in sentences(text))
    return marks["."] == 2 * marks["?"]


def sentence_balance(text: str) -> bool:
    marks = Counter(sentence[-1] for sentence in sentences(text))
    return marks["."] == marks["?"] == marks["!"]


def conjunctions(text: str, small_n: int) -> bool:
    return len(CONJUNCTIONS.intersection(bare_words(text))) >= small_n


def person_names(text: str, N: int) -> bool:  # noqa: N803
    return len(set(NAMES).intersection(words(text))) >= N


def overlap(text: str, reference_text: str, percentage: int) -> bool:
    ours, theirs = ({text[start : start + 3] for start in range(len(text) - 2)} for text in (text, reference_text))
    return bool(ours) and percentage - 2 <= 100 * len(ours & theirs) / len(ours) <= percentage + 2


def numbers(text: str, N: int) -> bool:  # noqa: N803
    return len(re.findall(r"\d+", without_punctuation(text))) == N


def pronouns(text: str, N: int) -> bool:  # noqa: N803
    return sum(1 for word in words(text.lower()) if word in PRONOUNS) >= N


def punctuation(text: str) -> bool:
    if not any(mark in text for mark in ("?!", "!?", "\u203d")):
        return False
    rest = text.replace("?!", "", 1) if "?!" in text else text.replace("!?", "", 1)
    return all(mark in rest for mark in ".,!?;:")


def keywords_multiple(  # noqa: PLR0917 - the data's names
    text: str, keyword1: str, keyword2: str, keyword3: str, keyword4: str, keyword5: str
) -> bool:
    wanted = {keyword1: 1, keyword2: 2, keyword3: 3, keyword4: 5, keyword5: 7}
    folded = text.lower()
    return all(folded.count(keyword.lower()) == count for keyword, count in wanted.items())


def words_japanese(text: str, N: int) -> bool:  # noqa: N803
    every = (word.strip(EDGE) for word in text.split()[N - 1 :: N])
    return all(_JAPANESE.search(word) for word in every if word and not word.isdigit())


def alphabet(text: str) -> bool:
    found = [word.lower() for word in without_punctuation(text).split()]
    if not found or not "a" <= found[0][0] <= "z":
        return False
    first = ord(found[0][0]) - ord("a")
    return all(word[0] == chr(ord("a") + (first + place) % 26) for place, word in enumerate(found))


def vowel(text: str) -> bool:
    return len(set(text.lower()) & set("aeiou")) <= 3


def consonants(text: str) -> bool:
    return all(_CONSONANT_PAIR.search(word) for word in text.lower().split())


def palindrome(text: str) -> bool:
    found = without_punctuation(text).lower().split()
    return sum(1 for word in found if len(word) >= 5 and word == word[::-1]) >= 10


def prime_lengths(text: str) -> bool:
    return all(_is_prime(len(word)) for word in without_punctuation(text).split())


def repeats(text: str, small_n: int) -> bool:
    return max(Counter(bare_words(text)).values(), default=0) <= small_n


def odd_even_syllables(text: str) -> bool:
    parity = [syllables(word) % 2 for word in without_punctuation(text).split()]
    return all(left != right for left, right in pairwise(parity))


def last_first(text: str) -> bool:
    found = [words_of for sentence in sentences(text) if (words_of := bare_words(sentence))]
    return all(left[-1] == right[0] for left, right in pairwise(found))


def paragraph_last_first(text: str) -> bool:
    found = [words_of for line in text.split("\n") if (words_of := bare_words(line))]
    return all(line[0] == line[-1] for line in found)


def no_consecutive(text: str) -> bool:
    found = [word.strip(EDGE) for word in text.lower().split()]
    return all(left[:1] != right[:1] for left, right in pairwise(found))


def start_verb(text: str) -> bool:
    # The reference tags the first token, which is a mark if the text begins with one.
    found = words(text)
    return bool(found) and text.lstrip().startswith(found[0]) and is_verb(found[0])


def keywords_specific_position(text: str, keyword: str, n: int, m: int) -> bool:
    found = sentences(text)
    chosen = found[n - 1].split() if n <= len(found) else []
    return m <= len(chosen) and chosen[m - 1].strip(EDGE).lower() == keyword.lower()


def words_position(text: str, keyword: str) -> bool:
    found = [word.strip(EDGE).lower() for word in text.split()]
    return len(found) > 1 and found[1] == found[-2] == keyword.lower()


def sentence_keyword(text: str, word: str, N: int) -> bool:  # noqa: N803
    found = sentences(text)
    return len(found) >= N and word.lower() in found[N - 1].lower()


def increment(text: str, small_n: int) -> bool:
    counts = [len(sentence.split()) for sentence in sentences(text)]
    return all(right == left + small_n for left, right in pairwise(counts))


def alliteration_increment(text: str) -> bool:
    lengths = [_longest_alliteration(sentence) for sentence in sentences(text)]
    return all(left < right for left, right in pairwise(lengths))


def sentence_words(text: str) -> bool:
    found = sentences(text)
    if len(found) != 3 or len({len(sentence) for sentence in found}) != 1:
        return False
    used = [word for sentence in found for word in without_punctuation(sentence).lower().split()]
    return len(used) == len(set(used))


def _longest_alliteration(sentence: str) -> int:
    longest = run = 1
    for left, right in pairwise(bare_words(sentence)):
        run = run + 1 if left[0] == right[0] else 1
        longest = max(longest, run)
    return longest


def _is_prime(number: int) -> bool:
    # Longer words are not words, and testing them would take long.
    return 1 < number < 10_000 and all(number % factor for factor in range(2, int(number**0.5) + 1))


CHECKS: Final[dict[str, Callable[..., bool]]] = {
    "count:word_count_range": word_count_range,
    "count:unique_word_count": unique_word_count,
    "ratio:stop_words": stop_words,
    "ratio:sentence_type": sentence_type,
    "ratio:sentence_balance": sentence_balance,
    "ratio:sentence_words": sentence_words,
    "ratio:overlap": overlap,
    "count:conjunctions": conjunctions,
    "count:person_names": person_names,
    "count:numbers": numbers,
    "count:pronouns": pronouns,
    "count:punctuation": punctuation,
    "count:keywords_multiple": keywords_multiple,
    "count:words_japanese": words_japanese,
    "words:alphabet": alphabet,
    "words:vowel": vowel,
    "words:consonants": consonants,
    "words:palindrome": palindrome,
    "words:prime_lengths": prime_lengths,
    "words:repeats": repeats,
    "words:odd_even_syllables": odd_even_syllables,
    "words:last_first": last_first,
    "words:paragraph_last_first": paragraph_last_first,
    "words:no_consecutive": no_consecutive,
    "words:start_verb": start_verb,
    "words:keywords_specific_position": keywords_specific_position,
    "words:words_position": words_position,
    "sentence:keyword": sentence_keyword,
    "sentence:increment": increment,
    "sentence:alliteration_increment": alliteration_increment,
}
