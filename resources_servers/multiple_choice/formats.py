r"""Finds the chosen option in an answer, in each of the formats that datasets ask for.

Every format makes a bounded number of passes over the text. ``answer_is`` is the sentence "the answer is (B)" or else
``Answer: B``, as MMLU-Pro's own grader reads it; ``any`` tries the last box, both of these, and an answer that is
nothing but an option. The others do what their names say. A letter that is a word of the sentence ("the answer is a
combination") is not a label.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, get_args

GradingMode = Literal[
    "strict_single_letter_boxed", "lenient_boxed", "lenient_answer_colon", "lenient_answer_colon_md", "answer_is", "any"
]
MODES: Final[tuple[str, ...]] = get_args(GradingMode)
MAX_BOX: Final = 2_000
MAX_TEXT: Final = 100_000
Options = Mapping[str, str]

_BOX: Final = re.compile(r"\\boxed\s?\{")
_TEXT_COMMAND: Final = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\{([^{}]*)\}")
_EDGES: Final = re.compile(r"\A[^A-Za-z0-9]+|[^A-Za-z0-9]+\Z")
_COLON: Final = re.compile(r"\banswer\s?:", re.IGNORECASE)
_COLON_MD: Final = re.compile(r"(?<![A-Za-z0-9])answer[*_]{0,3}\s?:[*_]{0,3}", re.IGNORECASE)
_SENTENCE: Final = re.compile(r"\banswer is\b:?", re.IGNORECASE)
_COMMAND: Final = re.compile(r"\\(?:boxed|fbox|text|textbf|mathrm|mathbf|mathsf|bf|rm)\b[ \t]?\{?|\\[()\[\]]")
# A label at the beginning, perhaps in brackets or markup: "(B)", "**B**", "B) green", "option B".
_LABEL: Final = re.compile(
    r"[\s*_$`\"'\u201c{]{0,10}(?:(?:option|choice|letter)[ \t]{1,3}[*_]{0,3})?(?P<open>[(\[]?)[*_$\s]{0,5}"
    r"(?P<label>[A-Za-z0-9]{1,3})(?![A-Za-z0-9'\u2019])(?P<after>.{0,12})",
    re.IGNORECASE | re.DOTALL,
)
_CLOSED: Final = re.compile(r"[*_$`\"'\u201d}]*(?:[)\].:;,!}\n]|\Z)")
# What follows a label that is also a word, where it is the label: "A because", "A, since", "A - green".
_REASONS: Final = re.compile(r"[*_]*\s+(?:because|since|as\b|due|which|is\b|\(|-|\u2013|\u2014)", re.IGNORECASE)


def find_choice(text: str, options: Options, mode: str) -> str | None:
    """The label of the option that the text chooses, if it chooses one in this format."""
    return _FORMATS[mode](text, options)


def boxes(text: str) -> list[str]:
    """The contents of the first and of the last closed box, in this order."""
    starts = [match.end() for match in _BOX.finditer(text)]
    chosen = dict.fromkeys(starts[:1] + starts[-1:])
    return [content for start in chosen if (content := _closed(text[start : start + MAX_BOX])) is not None]


def match_option(answer: str, options: Options) -> str | None:
    """The option that an answer names, by label (``(B)``, ``b.``), by its whole text, or by both (``B) green``)."""
    stripped = _TEXT_COMMAND.sub(r"\1", answer).strip()
    if (label := _EDGES.sub("", stripped).upper()) in options:
        return label
    plain = _plain(stripped)
    return _only(label for label, text in options.items() if plain in _spellings(label, _plain(text)))


def _spellings(label: str, text: str) -> set[str]:
    label = label.lower()
    return {text, *(f"{form} {text}" for form in (f"({label})", f"{label})", f"{label}.", f"{label}:") if text)}


def _strict_boxed(text: str, options: Options) -> str | None:
    found = boxes(text)
    label = _EDGES.sub("", _TEXT_COMMAND.sub(r"\1", found[0])) if found else ""
    return label if label in options else None


def _lenient_boxed(text: str, options: Options) -> str | None:
    if strict := _strict_boxed(text, options):
        return strict
    found = boxes(text)
    inside = _plain(found[0]) if found else ""
    return _only(label for label, option in options.items() if _occurs(_plain(option), inside))


def _answer_colon(text: str, options: Options) -> str | None:
    return _chosen_after(_COLON, text, options)


def _answer_colon_markdown(text: str, options: Options) -> str | None:
    return _chosen_after(_COLON_MD, text, options)


def _answer_is(text: str, options: Options) -> str | None:
    last = _last(_SENTENCE, text)
    if last is None:
        return _answer_colon_markdown(text, options)
    return leading_label(text[last.end() : last.end() + MAX_BOX], options)


def _chosen_after(announcement: re.Pattern[str], text: str, options: Options) -> str | None:
    """The option after the last announcement: on its line or, if there is nothing, on the next one."""
    last = _last(announcement, text)
    if last is None:
        return None
    line = text[last.end() : last.end() + MAX_BOX].lstrip(" \t\n*_").partition("\n")[0]
    return match_option(line.strip("*_ \t"), options) or leading_label(line, options)


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    last = None
    for last in pattern.finditer(text):  # noqa: B007 - the last one counts
        pass
    return last


def leading_label(text: str, options: Options) -> str | None:
    """The label that a text begins with, unless it is a word: "a combination", "I think"."""
    match = _LABEL.match(_COMMAND.sub("", text))
    if match is None or (label := match["label"].upper()) not in options:
        return None
    after = match["after"]
    if match["open"] or _CLOSED.match(after):
        return label
    if match["label"] in {"A", "I"}:
        rest = match.string[match.end("label") :].strip(" -:*_").lower()
        own_text = bool(_plain(options[label])) and rest.startswith(_plain(options[label]))
        return label if own_text or _REASONS.match(after) else None
    return label if match["label"] == label else None


def _any(text: str, options: Options) -> str | None:
    found = boxes(text)
    if found and (label := match_option(found[-1], options)):
        return label
    for read in (_answer_is, _answer_colon_markdown):
        if label := read(text, options):
            return label
    return match_option(text, options) if len(text) <= MAX_BOX else None


def _closed(text: str) -> str | None:
    depth = 1
    for position, character in enumerate(text):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return text[:position]
    return None


def _plain(text: str) -> str:
    return " ".join(_TEXT_COMMAND.sub(r"\1", text).lower().split()).strip(" .$*")


def _occurs(option: str, text: str) -> bool:
    """Whether an option's text occurs in a text as a whole: 4 does not occur in 14."""
    return bool(option) and re.search(rf"(?<!\w){re.escape(option)}(?!\w)", text) is not None


def _only(labels: Iterable[str]) -> str | None:
    found = list(itertools.islice(labels, 2))
    return found[0] if len(found) == 1 else None


_FORMATS: Final[dict[str, Callable[[str, Options], str | None]]] = {
    "strict_single_letter_boxed": _strict_boxed,
    "lenient_boxed": _lenient_boxed,
    "lenient_answer_colon": _answer_colon,
    "lenient_answer_colon_md": _answer_colon_markdown,
    "answer_is": _answer_is,
    "any": _any,
}


def search_patterns(patterns: list[str], text: str, options: Options) -> str | None:
    """The option that the last match of the first of a row's own patterns names; of a very long text, the end counts.

    Such a pattern may take any time, so it is searched for in a process that can be killed.
    """
    tail = text[-MAX_TEXT:]
    for pattern in patterns:
        found = None
        for found in re.finditer(pattern, tail, re.IGNORECASE | re.DOTALL):  # noqa: B007 - the last one counts
            pass
        if found is not None:
            groups = [group for group in found.groups() if group]
            return match_option(groups[0] if groups else found.group(), options)
    return None
