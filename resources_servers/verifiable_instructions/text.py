# ruff: noqa: SIM905 - lists of words are easier to read as text
"""How text is split into words, sentences and paragraphs, its language, and the word lists that instructions refer to.

Every function makes one pass over the text, and gives the same text the same result. The language is detected by the
package ``langdetect``; whether a word can be a verb by a list and endings, without a tagger.
"""

import functools
import importlib
import re
import string
import threading
from collections.abc import Iterator
from typing import Any, Final

from nemo_gym.errors import ConfigError

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

INSTALL: Final = (
    "pip install 'rollout-gym[environments]', or -r resources_servers/verifiable_instructions/requirements.txt"
)
# More text than this does not make the result better, only slower.
SAMPLE: Final = 3_000
# As the tagger of the reference has it: auxiliary verbs such as "can" are not verbs, and "Understand" is a name.
_VERBS: Final = frozenset(
    (
        "accept achieve act add address adjust admit adopt advance advise affect agree aim align allow alter "
        "analyze answer apply approach argue arise arrange arrive ask assemble assess assign assist assume attempt "
        "attend avoid bake balance be bear become begin behold believe bend blend boil borrow break bring brush "
        "build burn buy calculate call calm capture carry catch cause celebrate change charge check choose claim "
        "classify clean clear climb close collaborate collect combine come communicate compare complete compose "
        "compute conceive concentrate conduct configure confirm connect consider consist construct consult contain "
        "continue contribute convert convey cook copy count cover craft create cross cultivate cut dance "
        "dare deal decide declare define deliver demonstrate depend derive describe design detail detect determine "
        "develop devise dig discover discuss display distribute dive divide do document draft draw dream drink "
        "drive drop eat edit embark embrace emphasize employ empower enable encourage end engage enhance enjoy "
        "ensure enter envision establish estimate evaluate examine execute exercise expand expect experience "
        "experiment explain explore express extend extract face fall feel fight fill find finish fit fix fly focus "
        "follow forge form foster gather gaze generate get give go grab grasp greet grow guide handle hear help "
        "hide highlight hold hope identify ignite illustrate imagine implement improve include incorporate "
        "increase indulge initiate input insert inspect install integrate introduce invent invest investigate "
        "invite involve join journey jump keep know launch lay lead learn leave let leverage lie listen live "
        "locate look love maintain make manage map mark master match maximize measure meet merge minimize mix "
        "model monitor move multiply navigate need note notice nurture observe obtain offer open operate optimize "
        "order organize outline overcome paint participate pay perform pick picture place plan play ponder prepare "
        "present preserve press prevent print prioritize produce program promote propose protect prove provide "
        "pull pursue push put question raise reach read realize recall receive recognize recommend reconsider "
        "record reduce refer refine reflect regard reject relax release remember remind remove render repeat "
        "replace report represent require research resolve respect respond rest restore return reveal review "
        "revise rewrite ride rise run save say search see seek select sell send separate serve set share shift "
        "show sing sit sketch sleep solve speak specify spend split spread stand start state stay step stop "
        "store strengthen strive study submit suffer suggest summarize support suppose surrender take talk teach "
        "tell test think trace track train transform translate travel treat try turn unleash unlock "
        "unravel unveil update use utilize validate verify view visit visualize wait wake walk want watch wear "
        "welcome win witness wonder work write yield is are was were am has have had does did"
    ).split(" ")
)
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


def language_of(text: str) -> str | None:
    """The code of the language; None if it can't be determined."""
    library = _library()
    detector = library.create()
    detector.seed = 0  # it samples at random, and would give short text another language each time
    detector.append(text[:SAMPLE])
    try:
        found: str = detector.detect()
    except _error():
        return None
    return found


_LOADING: Final = threading.Lock()  # the package can be loaded only once at a time, and checks run in threads


def _library() -> Any:
    with _LOADING:
        return _loaded()


@functools.cache
def _loaded() -> Any:
    try:
        factory = importlib.import_module("langdetect.detector_factory")
    except ModuleNotFoundError:
        raise ConfigError("the package 'langdetect' is not installed", hint=INSTALL) from None
    factory.init_factory()
    return factory._factory  # noqa: SLF001 - the package has no public way to seed a single detector


@functools.cache
def _error() -> type[Exception]:
    error: type[Exception] = importlib.import_module("langdetect.lang_detect_exception").LangDetectException
    return error


def is_verb(word: str) -> bool:
    """Whether the word is a known verb, or ends as verbs do."""
    folded = word.lower()
    stem = folded.removesuffix("s").removesuffix("e")
    if folded in _VERBS or folded.removesuffix("s") in _VERBS or stem in _VERBS:
        return True
    return len(folded) > 4 and folded.endswith(("ing", "ed", "ize", "ise", "ify"))
