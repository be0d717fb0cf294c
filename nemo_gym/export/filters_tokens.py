"""Splits a filter into words, names, numbers, texts and signs."""

import re
from dataclasses import dataclass
from typing import Final, Literal

from nemo_gym.export.filters_syntax import OPERATORS, WORDS, FilterError, Value
from nemo_gym.export.filters_text import plain_text

Kind = Literal["word", "name", "literal", "sign", "end"]

_TOKEN: Final = re.compile(
    r"""\s*(?:
        (?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.])
      | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | `(?P<quoted>[^`]+)`
      | (?P<name>[^\W\d]\w*(?:\.\w+)*)
      | (?P<sign>==|!=|<=|>=|<|>|\(|\)|\[|\]|,)
    )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t"}
_CONSTANTS: Final[dict[str, Value]] = {"true": True, "false": False, "null": None}
_LARGEST: Final = 2**63
# What people type who know another language.
_FOREIGN: Final = {"=": "==", "&&": "and", "||": "or", "!": "not", "<>": "!=", "=~": "contains"}


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of a filter, with the place where it begins."""

    kind: Kind
    text: str
    position: int
    value: Value = None

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else f"'{self.text}'"


def tokens(text: str) -> list[Token]:
    """All pieces, the last of which is the end."""
    found = []
    place, end = 0, len(text.rstrip())
    while place < end:
        match = _TOKEN.match(text, place)
        if match is None:
            raise _unreadable(text, place)
        found.append(_token(match))
        place = match.end()
    return [*found, Token("end", "", len(text))]


def _token(match: re.Match[str]) -> Token:
    kind = match.lastgroup or ""
    text, position = match[kind], match.start(kind)
    match kind:
        case "number":
            return Token("literal", text, position, _number(text))
        case "text":
            content = _ESCAPE.sub(lambda at: _ESCAPES.get(at[1], at[1]), text[1:-1])
            return Token("literal", text, position, plain_text(content))
        case "name" if (word := text.lower()) in _CONSTANTS:
            return Token("literal", text, position, _CONSTANTS[word])
        case "name" if text.lower() in WORDS:
            return Token("word", text.lower(), position)
        case "sign":
            return Token("sign", text, position)
        case _:
            return Token("name", plain_text(text), position)


def _number(text: str) -> int | float:
    try:
        whole = int(text) if len(text) < 20 else float(text)
    except ValueError:
        return float(text)
    return whole if abs(whole) < _LARGEST else float(whole)


def _unreadable(text: str, place: int) -> FilterError:
    while text[place].isspace():
        place += 1
    if text[place] in "\"'`":
        return FilterError(f"the {text[place]} is never closed", position=place, hint="close it with the same sign")
    for foreign, ours in sorted(_FOREIGN.items(), key=lambda pair: -len(pair[0])):
        if text.startswith(foreign, place):
            return FilterError(f"'{foreign}' is not known here", position=place, hint=f"write {ours}")
    if text[place].isdigit():
        return FilterError("a number that is none", position=place, hint="texts need quotes, odd names `backquotes`")
    known = " ".join(sorted(OPERATORS))
    return FilterError(f"unexpected '{text[place]}'", position=place, hint=f"comparisons are {known} contains in is")
