"""Progress bars, and what is printed while one is shown: each message gets a line of its own above it.

Bars are drawn on terminals, and in notebooks, which understand a carriage return although they are no terminals.
"""

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TextIO

# tqdm's own lock also works between processes, and since Python 3.14 such a lock starts a process that watches it.
BAR_LOCK: Final = threading.RLock()
NOTEBOOK_COLUMNS: Final = 100
NOTEBOOK_INTERVAL_S: Final = 0.5  # each change of a bar is a message to the browser


def is_notebook(stream: TextIO) -> bool:
    """Whether what is written to the stream appears below a cell of a notebook."""
    return type(stream).__module__.partition(".")[0] == "ipykernel"


def shows_bars(stream: TextIO) -> bool:
    """Whether a bar can be redrawn on the stream."""
    return stream.isatty() or is_notebook(stream)


def open_bar(stream: TextIO, **options: Any) -> Any:
    """A bar of tqdm on the stream, as wide as the terminal."""
    from tqdm import tqdm  # noqa: PLC0415 - most commands show no bar

    tqdm.set_lock(BAR_LOCK)
    if is_notebook(stream):
        return tqdm(file=stream, ncols=NOTEBOOK_COLUMNS, mininterval=NOTEBOOK_INTERVAL_S, **options)
    return tqdm(file=stream, dynamic_ncols=True, **options)


@contextmanager
def above_bars() -> Iterator[None]:
    """Take progress bars off stderr, and show them again below what is printed meanwhile."""
    module = sys.modules.get("tqdm")  # not imported here: most programs that print show no bar
    if module is None:
        yield
        return
    module.tqdm.set_lock(BAR_LOCK)
    with module.tqdm.external_write_mode(file=sys.stderr):
        yield


class RoomForLogs(logging.Handler):
    """Clears a bar before one of our log records is shown, which would otherwise begin on the bar's line."""

    def __init__(self, bar: Any) -> None:
        super().__init__()
        self._bar = bar

    def emit(self, record: logging.LogRecord) -> None:
        """Make room; if the program has set up no logging, also do what Python does then, and no longer will."""
        if not logging.getLogger().handlers and logging.lastResort is not None:
            if record.levelno >= logging.lastResort.level:
                with above_bars():
                    logging.lastResort.handle(record)
        else:
            self._bar.clear()
