"""What a judge is shown and where its verdict stands, so that an answer can't speak to the judge or for it. Pure.

A *marked* label is enclosed in brackets, as in ``[[YES]]``. Such labels lose their brackets in everything that is
filled into a prompt, so a judge that quotes an answer says no label. A reply has its verdict at its end or
at its beginning. A reply with two different labels, or with a label in the middle of a sentence, has no verdict. An
endpoint that can write JSON by a schema has a field for the verdict, and nothing else in its reply counts.

Other labels are words of the language, so an answer keeps them. What a reply quotes from an answer does not count
there, and neither does a reply that begins with one verdict and has another one last.
"""

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from typing import Any, Final

# Filled into a prompt by ``Judge``: a word that no answer can contain, for the delimiters around an answer.
FENCE: Final = "fence"
_BARS: Final = str.maketrans("[]<>{}()", "||||||||")
_EDGES: Final = " \t\r\n*_`\"'.!#:"
_INTRODUCTIONS: Final = frozenset({"", "verdict", "final verdict", "answer", "final answer", "decision", "judgement"})
_GOES_ON: Final = re.compile(
    r"[*_`]*(?:\s*\Z|[ \t]*\n|\s*[.,:;\u2013\u2014-]|\s+(?:because|since|as)\b|\s+(?=[A-Z\"\u201c]))"
)
# What follows a word that is the verdict of a reply, unlike "no doubt" and "yes, but".
_BEGINS: Final = re.compile(r"[*_`\"]*(?:[ \t]*\n|\.(?:\s|\Z)|:|\s+[\u2013\u2014-]|\s+(?:because|since|as)\b)")
MAX_QUOTED: Final = 20_000
_DENIED: Final = re.compile(
    r"(?:\b(?:not|never|cannot|nor|neither)|n['\u2019]t)(?:\s+(?:\w+ly|an?|the|be|say|tell|conclude|decide|give|answer|confirm))*\s*\Z",
    re.IGNORECASE,
)  # fmt: skip


def are_marked(labels: Collection[str]) -> bool:
    """Whether all labels are enclosed in brackets, so that no sentence contains one by chance."""
    return all(len(label) > 2 and label[0] in "[<{(" and label[-1] in "]>})" for label in labels)


def fence_for(values: Mapping[str, Any]) -> str:
    """A word that depends on all values: an answer that contained it would have another one."""
    whole = "\0".join(f"{name}\0{value}" for name, value in sorted(values.items()))
    return hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def without_labels(text: str, labels: Collection[str]) -> str:
    """A text in which every marked label has bars for brackets, however it is spaced or capitalised."""
    if not are_marked(labels):
        return text
    for label in labels:
        pattern = r"\s*".join(re.escape(character) for character in label if not character.isspace())
        text = re.sub(pattern, lambda match: match[0].translate(_BARS), text, flags=re.IGNORECASE)
    return text


def placed_label(text: str, labels: Collection[str]) -> str | None:
    """The one marked label of a reply that begins or ends with it; None if there is none, or another one besides."""
    names = sorted(labels, key=len, reverse=True)
    found = list(re.finditer("|".join(map(re.escape, names)), text, re.IGNORECASE))
    if len({match[0].casefold() for match in found}) != 1:
        return None
    first, last = found[0], found[-1]
    at_end = not text[last.end() :].strip(_EDGES) and not _DENIED.search(text, 0, last.start())
    before = text[: first.start()].strip(_EDGES).lower()
    at_start = before in _INTRODUCTIONS and _GOES_ON.match(text, first.end()) is not None
    return next(name for name in names if name.casefold() == first[0].casefold()) if at_end or at_start else None


def without_quotes(text: str, values: Mapping[str, Any], labels: Collection[str]) -> str:
    """A reply without lines of values that it repeats. A line that is only a label may be the verdict, so it stays."""
    names = {label.casefold() for label in labels}
    lines = {line.strip() for value in values.values() for line in str(value)[-MAX_QUOTED:].splitlines()}
    repeated = [line for line in lines if len(line) > 1 and line in text and line.strip(_EDGES).casefold() not in names]
    for line in sorted(repeated, key=len, reverse=True):
        text = text.replace(line, " ")
    return text


def is_only_value(label: str, values: Mapping[str, Any]) -> bool:
    """Whether one value, and no other, is nothing but this label: an answer "10" where 10 is a score."""
    return [str(value).strip(_EDGES).casefold() for value in values.values()].count(label.casefold()) == 1


def without_word(text: str, word: str) -> str:
    """A text without a word, wherever it stands alone."""
    return re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", " ", text, flags=re.IGNORECASE)


def first_label(text: str, labels: Collection[str]) -> str | None:
    """The word with which a reply begins if that is its verdict: ``Incorrect. …``, ``Verdict: incorrect because …``."""
    words = sorted((label for label in labels if label.isalpha() and len(label) > 1), key=len, reverse=True)
    if not words:
        return None
    found = re.search(rf"\b(?:{'|'.join(map(re.escape, words))})\b", text, re.IGNORECASE)
    if found is None or text[: found.start()].strip(_EDGES).lower() not in _INTRODUCTIONS:
        return None
    return found[0] if _BEGINS.match(text, found.end()) else None


VERDICT: Final = "verdict"


def verdict_form(labels: Collection[str]) -> dict[str, Any]:
    """The ``text`` of a request whose reply is an object with a reason and one of the labels."""
    fields = {"reason": {"type": "string"}, VERDICT: {"type": "string", "enum": list(labels)}}
    schema = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
    return {"format": {"type": "json_schema", "name": VERDICT, "strict": True, "schema": schema}}


def is_object(text: str) -> bool:
    """Whether a reply was meant to be an object, so that labels elsewhere in it do not count."""
    return text.lstrip().startswith("{")


def field_label(text: str, labels: Collection[str]) -> str | None:
    """The label in the verdict field of a reply; None if it is not one object with one verdict."""
    try:
        pairs = json.loads(text, object_pairs_hook=list)
    except (ValueError, RecursionError):
        return None
    # Pairs, because of two fields with the same name the last one would count.
    given = [value for name, value in pairs if name == VERDICT] if isinstance(pairs, list) and is_object(text) else []
    return given[0] if len(given) == 1 and isinstance(given[0], str) and given[0] in labels else None


def last_label(text: str, labels: Mapping[str, float]) -> str | None:
    """The last label of a reply as it stands there; None if there is none, or if it is negated."""
    text = _plain_scores(text, labels)
    # The longest label first, so that it is not taken for a shorter one inside it.
    names = sorted(labels, key=len, reverse=True)
    either = "|".join(f"{_before(name[:1])}{re.escape(name)}{_after(name[-1:])}" for name in names)
    found = [match for match in re.finditer(either, text, re.IGNORECASE) if not _is_article(match)]
    # "Not correct" is neither of the labels "correct" and "incorrect", so the judge is asked again.
    return found[-1][0] if found and not _NEGATION.search(text, 0, found[-1].start()) else None


_NUMBER: Final = r"\d+(?:[.,]\d+)?"
# A score with its scale: "7/10", "7 of 10", "7 points (out of 10)".
_SCORE: Final = re.compile(
    rf"(?<![\w.,])(?P<score>{_NUMBER})(?:\s*(?:points?|stars?|marks?))?"
    rf"\s*\(?\s*(?:[/\uff0f\u2044\u2215]|\b(?:out\s+)?of\b)\s*(?:(?:the|a|possible|maximum)\s+)*(?P<scale>{_NUMBER})",
    re.IGNORECASE,
)
# Numbers that are not scores: "on a scale of 1 to 10", "6-8", "a 10-point scale", "5 = excellent".
_NO_SCORE: Final = re.compile(
    rf"(?<![\w.,])(?:{_NUMBER}\s*(?:-|\u2013|\bto\b)\s*{_NUMBER}|\d+-(?:point|star)\b|\d+\s*=\s*(?=[^\W\d]))",
    re.IGNORECASE,
)
_FRACTION: Final = re.compile(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}")
_BOX: Final = re.compile(r"\\(?:boxed|text|mathbf)\{([^{}]*)\}")
_WHOLE: Final = re.compile(r"(?<![\w.,])(\d+)[.,]0+(?![\d.,]*\d)")
_NEGATION: Final = re.compile(
    r"(?:(?:\b(?:not|never|nor)|n['\u2019]t)(?:-|\s+(?:\w+ly\s+|an?\s+|the\s+)?)|\b(?:non|un|in)-)\Z", re.IGNORECASE
)


def _plain_scores(text: str, labels: Mapping[str, float]) -> str:
    """An answer with its scores as plain numbers, and without numbers that are not scores, if labels are numbers."""
    used = set("".join(labels))
    text = "".join(character for character in text if character not in "*`" or character in used)
    if "_" not in used:
        text = re.sub(r"(?<!\w)_+(?=\w)|(?<=[^\W_])_+(?!\w)", "", text)
    numbers = [int(label) for label in labels if label.isdecimal()]
    if not numbers or not used.isdisjoint("/.,-"):
        return text
    text = _BOX.sub(r"\1", _FRACTION.sub(r"\1/\2", text.replace("$", "")))

    def score(match: re.Match[str]) -> str:
        # On a scale that is not that of the labels, a number does not mean what the label means.
        fits = max(numbers) <= float(match["scale"].replace(",", ".")) < 2 * max(numbers)
        return match["score"] if fits else ""

    return _NO_SCORE.sub("", _SCORE.sub(score, _WHOLE.sub(r"\1", text)))


def _is_article(match: re.Match[str]) -> bool:
    """Whether a label of one letter was found where that letter is a word: "a good answer"."""
    return match[0] in ("a", "i") and re.match(r"\s+\w", match.string[match.end() :]) is not None


def _before(character: str) -> str:
    """A pattern for what may come before a label with this first character: not the rest of a word or number."""
    if character.isdigit():
        return r"(?<![\w.,])(?<!\s-)(?<!\A-)"
    return r"\b" if character.isalnum() or character == "_" else ""


def _after(character: str) -> str:
    if character.isdigit():
        return r"(?!\w|[.,]\d)"
    return r"\b" if character.isalnum() or character == "_" else ""
