"""Makes any text safe to print: what models and servers wrote could otherwise take over a terminal.

Also has the lock of all progress bars, which whoever shows one gives to tqdm.
"""

import re
import threading
from typing import Final

# Control characters, overrides of the writing direction, and lone surrogates, which can't be printed.
CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

# tqdm's own lock also works between processes, and since Python 3.14 such a lock starts a process that watches it.
BAR_LOCK: Final = threading.RLock()


def printable_lines(text: str) -> str:
    """The text with what could move the cursor or hide replaced."""
    return CONTROL.sub("�", text.replace("\r\n", "\n").expandtabs(4))


def printable(text: str) -> str:
    """The same in one line."""
    return " ".join(printable_lines(text).split("\n"))
