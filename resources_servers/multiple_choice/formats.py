r"""Finds the chosen option in an answer, in each of the formats that datasets ask for.

Every format makes a bounded number of passes over the text. ``answer_is`` is the sentence "the answer is (B)"; ``any``
tries the last box, that sentence, ``Answer: B``, and an answer that is nothing but an option. The others do what their
names say.
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
_COLON: Final = re.compile(r"\banswer\s?:[ \t]?([^\n]{0,2000})", re.IGNORECASE)
_COLON_MD: Final = re.compile(
    r"(?<![A-Za-z0-9])answer[*_]{0,3}\s?:[*_]{0,3}[ \t]?[*_]{0,3}([^\n]{0,2000})", re.IGNORECASE
)
_SENTENCE: Final = re.compile(r"\banswer is:?[ \t]?[*_]{0,3}\(?\s?\$?([A-Za-z0-9]{1,3})(?![A-Za-z0-9])", re.IGNORECASE)


def find_choice(text: str, options: Options, mode: str) -> str | None:
    """The label of the option that the text chooses, if it chooses one in this format."""
    return _FORMATS[mode](text.rpartition("</think>")[2], options)


def boxes(text: str) -> list[str]:
    """The contents of the first and of the last closed box, in this order."""
    starts = [match.end() for match in _BOX.finditer(text)]
    chosen = dict.fromkeys(starts[:1] + starts[-1:])
    return [content for start in chosen if (content := _closed(text[start : start + MAX_BOX])) is not None]


def match_option(answer: str, options: Options) -> str | None:
    """The option that an answer names, by label (``(B)``, ``b.``) or by its whole text."""
    stripped = _TEXT_COMMAND.sub(r"\1", answer).strip()
    if (label := _EDGES.sub("", stripped).upper()) in options:
        return label
    return _only(label for label, text in options.items() if _plain(text) == _plain(stripped))


def _strict_boxed(text: str, options: Options) -> str | None:
    found = boxes(text)
    label = _EDGES.sub("", _TEXT_COMMAND.sub(r"\1", found[0])) if found else ""
    return label if label in options else None


def _lenient_boxed(text: str, options: Options) -> str | None:
    if strict := _strict_boxed(text, options):
        return strict
    found = boxes(text)
    inside = _plain(found[0]) if found else ""
    return _only(label for label, option in options.items() if _plain(option) and _plain(option) in inside)


def _answer_colon(text: str, options: Options) -> str | None:
    found = _COLON.findall(text)
    return match_option(found[-1], options) if found else None


def _answer_colon_markdown(text: str, options: Options) -> str | None:
    found = _COLON_MD.findall(text)
    return match_option(found[-1].strip("*_ "), options) if found else None


def _answer_is(text: str, options: Options) -> str | None:
    found = [label.upper() for label in _SENTENCE.findall(text)]
    return found[-1] if found and found[-1] in options else None


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
