"""The usual overrides, ``+key=word``, ``+key=5`` or ``+key=[a.yaml,b.yaml]``, read without Hydra.

Importing Hydra and building its parser takes longer than everything else that is done with a command line. So it is
left alone as long as all arguments are of a kind that it reads in one way only: text without quotes, spaces and special
characters, numbers, ``true``, ``false``, ``null``, and lists of those. Anything else is Hydra's to read, or to refuse.
"""

import re
from typing import Any, Final, NamedTuple

_WORD: Final = r"[A-Za-z_/][A-Za-z0-9_/.:\-]*"
_NUMBER: Final = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?"
_ITEM: Final = rf"(?:{_WORD}|{_NUMBER})"
_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_OVERRIDE: Final = re.compile(
    rf"(?P<sign>\+{{0,2}})(?P<key>{_NAME}(?:\.{_NAME})*)=(?:(?P<item>{_ITEM})|\[(?P<items>(?:{_ITEM}(?:,{_ITEM})*)?)\])"
)
_CONSTANTS: Final = {"true": True, "false": False, "null": None}
# Numbers that look like words.
_ODD: Final = re.compile(r"\b(?:inf|nan)\b", re.IGNORECASE)


class PlainOverride(NamedTuple):
    """An override, to be looked at like one that Hydra read."""

    sign: str
    key_or_group: str
    content: Any
    package: None = None

    def is_add(self) -> bool:
        """``+key=value``."""
        return self.sign == "+"

    def is_force_add(self) -> bool:
        """``++key=value``."""
        return self.sign == "++"

    def is_delete(self) -> bool:
        """``~key``, which is not read here."""
        return False

    def is_sweep_override(self) -> bool:
        """``key=a,b``, which is not read here."""
        return False

    def value(self) -> Any:
        """The value."""
        return self.content


def plain_override(argument: str) -> PlainOverride | None:
    """The override, if it is one of the usual kind."""
    found = _OVERRIDE.fullmatch(argument)
    if found is None or _ODD.search(argument):
        return None
    sign, key, item, items = found.group("sign", "key", "item", "items")
    if item is not None:
        return PlainOverride(sign, key, _read(item))
    return PlainOverride(sign, key, [_read(text) for text in items.split(",")] if items else [])


def _read(text: str) -> Any:
    if text[0] in "-0123456789":
        return float(text) if "." in text else int(text)
    return _CONSTANTS.get(text.lower(), text)
