"""Makes any text safe to print: what models and servers wrote could otherwise take over a terminal."""

import re
from typing import Final

# Control characters, overrides of the writing direction, and lone surrogates, which can't be printed.
CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable_lines(text: str) -> str:
    """The text with what could move the cursor or hide replaced."""
    return CONTROL.sub("�", text.replace("\r\n", "\n").expandtabs(4))


def printable(text: str) -> str:
    """The same in one line."""
    return " ".join(printable_lines(text).split("\n"))
