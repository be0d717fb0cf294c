# ruff: noqa: SIM905 - lists of words are easier to read as text
"""How text is split into words, sentences and paragraphs, and the word lists that instructions refer to.

Every function makes one pass over the text.
"""

import functools
import re
import string
from collections.abc import Iterator
from typing import Final

EDGE: Final = string.punctuation + " "
CONJUNCTIONS: Final = frozenset(("and", "but", "for", "nor", "or", "so", "yet"))
PRONOUNS: Final = frozenset(
    (
        "i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her "
        "hers herself it its itself they them their theirs themselves"
    ).split(" ")
)
STOP_WORDS: Final = frozenset(
    (
        "i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she her hers "
        "herself it its itself they them their theirs themselves what which who whom this that these those am is are "
        "was were be been being have has had having do does did doing a an the and but if or because as until while of "
        "at by for with about against between into through during before after above below to from up down in out on "
        "off over under again further then once here there when where why how all any both each few more most other "
        "some such no nor not only own same so than too very s t can will just don should now d ll m o re ve y ain "
        "aren couldn didn doesn hadn hasn haven isn ma mightn mustn needn shan shouldn wasn weren won wouldn"
    ).split(" ")
)
NAMES: Final = (
    "Emma Liam Sophia Jackson Olivia Noah Ava Lucas Isabella Mason Mia Ethan Charlotte Alexander Amelia "
    "Benjamin Harper Leo Zoe Daniel Chloe Samuel Lily Matthew Grace Owen Abigail Gabriel Ella Jacob Scarlett "
    "Nathan Victoria Elijah Layla Nicholas Audrey David Hannah Christopher Penelope Thomas Nora Andrew Aria "
    "Joseph Claire Ryan Stella Jonathan"
).split(" ")

_WORD: Final = re.compile(r"\w+")
_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_END: Final = re.compile(r"[.!?]+")
_TITLES: Final = ("Mr", "St", "Mrs", "Ms", "Dr")
_COMPANIES: Final = ("Inc", "Ltd", "Jr", "Sr", "Co")
_DOMAINS: Final = re.compile(r"(?:com|net|org|io|gov|edu|me)")
_STARTERS: Final = re.compile(
    r" (?:Mr|Mrs|Ms|Dr|Prof|Capt|Cpt|Lt|Wherever|(?:He|She|It|They|Their|Our|We|But|However|That|This)\s)"
)
_EMOJI: Final = re.compile(
    "[\U0001f1e6-\U0001f1ff\U0001f300-\U0001faff\u2600-\u27bf\u2b05-\u2b55\u231a-\u23ff\u203c\u2049\u2122\u2139"
    "\u2194-\u21aa\u24c2\u25aa-\u25fe\u2934\u2935\u3030\u303d\u3297\u3299\ufe0f\u20e3\U0001f004\U0001f0cf]"
)


def words(text: str) -> list[str]:
    r"""Runs of letters, digits and underscores."""
    return _WORD.findall(text)


def bare_words(text: str) -> list[str]:
    """What is between spaces, in lower case, without punctuation at its edges."""
    return [word for piece in text.lower().split() if (word := piece.strip(EDGE))]


def without_punctuation(text: str) -> str:
    """The text without any ASCII punctuation."""
    return text.translate(_PUNCTUATION)


@functools.lru_cache(maxsize=16)
def sentences(text: str) -> tuple[str, ...]:
    """Pieces that end in ``.``, ``!`` or ``?``, but not at abbreviations, initials, decimals and addresses."""
    text = " " + text.replace("\n", " ") + "  "
    pieces, start = [], 0
    for end in _ends(text):
        if piece := text[start:end].strip():
            pieces.append(_mark_last(piece))
        start = end
    rest = text[start:].strip()
    return (*pieces, rest) if rest else tuple(pieces)


def _ends(text: str) -> Iterator[int]:
    for mark in _END.finditer(text):
        dots = mark.group()
        if dots == "." and _is_inside(text, mark.start()):
            continue
        if len(dots) > 1 and set(dots) != {"."}:
            # "?!" ends one sentence, not two, because there are no words between its marks.
            yield mark.end()
            continue
        after = mark.end()
        yield after + 1 if text[after : after + 1] in {'"', "\u201d"} else after


def _mark_last(piece: str) -> str:
    """A closing quotation mark stands before the mark that ends the sentence."""
    if len(piece) > 1 and piece[-1] in {'"', "\u201d"} and piece[-2] in ".!?":
        return piece[:-2] + piece[-1] + piece[-2]
    return piece


def _is_inside(text: str, dot: int) -> bool:
    before, after = text[max(0, dot - 8) : dot], text[dot + 1 : dot + 14]
    start = len(before)
    while start and before[start - 1].isalpha():
        start -= 1
    name = before[start:]
    if name.endswith(_TITLES) or _DOMAINS.match(after):
        return True
    if before[-1:].isdigit() and after[:1].isdigit():
        return True
    if name.endswith(_COMPANIES) and before[-len(name) - 1 : -len(name)] == " ":
        return not _STARTERS.match(after)
    if before.endswith("Ph") and after.startswith("D."):
        return True
    if len(name) == 1:
        return _is_initial(before, after, name)
    return False


def _is_initial(before: str, after: str, letter: str) -> bool:
    left = before[-2:-1]
    if left.isspace():
        return True  # " J. Smith", "a. first item"
    in_acronym = left == "." and letter.isupper()
    if in_acronym:
        return not _STARTERS.match(after)
    return letter.isupper() and after[:1].isupper() and after[1:2] == "."


def plain_sentences(text: str) -> list[str]:
    """Pieces that end in a mark followed by space, as a careful reader counts them."""
    pieces = re.split(r"(?<=[.!?])[\"'\u201d)\]]{0,2}\s+(?=[\"'\u201c(\[]?[A-Z0-9])", text.strip())
    return [piece for piece in pieces if piece.strip()]


def is_emoji(text: str) -> bool:
    """Whether a character, or a pair of them, is an emoji."""
    return bool(text) and all(_EMOJI.match(character) for character in text)


def syllables(word: str) -> int:
    """An estimate: groups of vowels, without a silent e."""
    groups = len(re.findall(r"[aeiouy]+", word.lower()))
    silent = word.lower().endswith("e") and not word.lower().endswith(("le", "ee")) and groups > 1
    return max(1, groups - silent) if word else 0
