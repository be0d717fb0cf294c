"""The only place that prints.

Data goes to stdout, everything else to stderr, so that ``ng_dump_config > all.yaml`` contains nothing but YAML. Colour
is decoration: it is left out when the stream is not a terminal or ``NO_COLOR`` is set, and no message depends on it. If
the reader closes the pipe (``ng_help | head -1``), the program ends quietly. Streams are looked up at each call:
tests and libraries replace them.
"""

import json
import logging
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TextIO

from nemo_gym.audit.findings import CheckReport
from nemo_gym.io.progress_bars import above_bars

OUTPUT_CLOSED: Final = 141  # what a shell reports for a program that SIGPIPE ended
STYLES: Final = {"bold": "1", "red": "31", "green": "32", "yellow": "33", "dim": "2"}


def emit(text: str) -> None:
    """Print data on stdout."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # The interpreter flushes stdout once more at exit; give it somewhere to flush to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(OUTPUT_CLOSED) from None


def note(text: str) -> None:
    """Print a message on stderr, above a progress bar if one is shown. If the terminal is gone, nobody reads it."""
    with suppress(OSError), above_bars():
        print(text, file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """Print a warning; the command continues."""
    note(f"{paint('warning:', 'yellow', stream=sys.stderr)} {text}")


def error(text: str, *, hint: str | None = None) -> None:
    """Print what is wrong and, after a blank line, what to do about it."""
    note(f"{paint('error:', 'red', stream=sys.stderr)} {text}")
    if hint:
        note(f"\n{paint('hint:', 'bold', stream=sys.stderr)} {hint}")


def paint(text: str, style: str, *, stream: TextIO | None = None) -> str:
    """Colour the text if the stream (by default stdout) shows colour."""
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if shows_colour(stream or sys.stdout) else text


def shows_colour(stream: TextIO) -> bool:
    """Whether the stream interprets escape sequences rather than printing them."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, indent: str = "") -> str:
    """Lay out rows under headers, two spaces between columns, a ruled line under the headers."""
    body = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *body, strict=True)]
    rule = ["-" * width for width in widths]
    return "\n".join(_line(cells, widths, indent) for cells in (headers, rule, *body))


def columns(rows: Iterable[Sequence[str]], *, indent: str = "  ") -> str:
    """Lay out rows without headers."""
    body = list(rows)
    widths = [max(map(len, column)) for column in zip(*body, strict=True)]
    return "\n".join(_line(cells, widths, indent) for cells in body)


def _line(cells: Sequence[str], widths: Sequence[int], indent: str) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return (indent + "  ".join(padded)).rstrip()


def emit_report(found: CheckReport | Sequence[CheckReport], *, as_json: bool) -> None:
    """Print what a checker found, as text or as JSON; several reports become an array."""
    if isinstance(found, CheckReport):
        emit(json.dumps(found.to_json(), indent=2) if as_json else _report_text(found))
    elif as_json:
        emit(json.dumps([each.to_json() for each in found], indent=2))
    else:
        emit("\n\n".join(map(_report_text, found)))


def _report_text(found: CheckReport) -> str:
    lines = [found.summary]
    for figure in found.figures.values():
        if figure and isinstance(figure, list) and isinstance(figure[0], dict):
            rows = [list(map(_cell, record.values())) for record in figure]
            lines.append(table([name.capitalize() for name in figure[0]], rows, indent="  "))
    return "\n".join([*lines, *(f"  {finding}" for finding in found.findings)])


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


class LogHandler(logging.Handler):
    """Shows the library's log records in the same style as other messages."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record on stderr; plain information has no prefix."""
        text = self.format(record)
        if record.levelno >= logging.ERROR:
            error(text)
        elif record.levelno >= logging.WARNING:
            warn(text)
        else:
            note(text)


@contextmanager
def logs() -> Iterator[None]:
    """Show log records while a command runs: information from our own loggers, warnings from all."""
    handler, root, ours = LogHandler(), logging.getLogger(), logging.getLogger("nemo_gym")
    level, show_warning = ours.level, warnings.showwarning
    root.addHandler(handler)
    ours.setLevel(logging.INFO)
    warnings.showwarning = lambda message, *_, **__: warn(str(message))
    try:
        yield
    finally:
        root.removeHandler(handler)
        ours.setLevel(level)
        warnings.showwarning = show_warning


def show_details() -> None:
    """Also show our debug messages until the command ends."""
    logging.getLogger("nemo_gym").setLevel(logging.DEBUG)
