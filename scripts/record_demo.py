"""Makes the picture of the demonstration in README.md: runs a command on a terminal and draws what it shows.

    python scripts/record_demo.py [--output docs/images/demo.svg] [command …]

The command (`make demo` by default) runs on a pseudo-terminal; its output is replayed on a screen of unlimited height
and drawn as SVG, up to the part that says what to type next. Only the standard library is used, and no network.
"""

import argparse
import codecs
import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

COLUMNS: Final = 104
CELL_WIDTH: Final = 7.8
LINE_HEIGHT: Final = 17.0
FONT_SIZE: Final = 13
MARGIN: Final = 18.0
TITLE_BAR: Final = 34.0
FONTS: Final = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
BACKGROUND, FOREGROUND, QUIET = "#16181d", "#d4d7dd", "#8a909c"
COLOURS: Final = {"31": "#f07178", "32": "#8fce6f", "33": "#e5c07b", "2": QUIET, "1": "#ffffff"}
DOTS: Final = ("#f0605a", "#e8b64a", "#62c354")
PROMPT_STYLE: Final = ("32",)
# On every text: browsers that show the file as an image ignore it on an element around the text.
PRESERVE: Final = 'xml:space="preserve"'
DEMO: Final = ("make", "demo")
# How the first line that is left out begins.
DEMO_ENDS: Final = "What to type next"

# A control sequence with its parameters and its letter; a title; any other escape; or a character.
TOKEN: Final = re.compile(r"\x1b\[([0-9;?]*)([@-~])|\x1b\][^\x07]*\x07|\x1b.|([\s\S])")

Style = tuple[str, ...]


class Cell(NamedTuple):
    """One character of the screen and how it is painted."""

    character: str = " "
    style: Style = ()


Lines = list[list[Cell]]


@dataclass
class Screen:
    """A terminal of unlimited height; it knows what progress bars and coloured text need."""

    columns: int = COLUMNS
    lines: Lines = field(default_factory=lambda: [[]])
    row: int = 0
    column: int = 0
    style: Style = ()

    def feed(self, text: str) -> None:
        """Show what a program wrote."""
        for parameters, letter, character in TOKEN.findall(text):
            if letter:
                self._control(parameters, letter)
            elif character:
                self._put(character)

    def _control(self, parameters: str, letter: str) -> None:
        count = int(parameters) if parameters.isdigit() else 1
        match letter:
            case "m":
                self.style = tuple(code for code in parameters.split(";") if code not in {"", "0"})
            case "K":
                del self.lines[self.row][self.column :]
            case "A":
                self.row = max(0, self.row - count)
            case "B":
                self._move_down(count)
            case "C":
                self.column = min(self.columns - 1, self.column + count)
            case "D":
                self.column = max(0, self.column - count)

    def _put(self, character: str) -> None:
        match character:
            case "\n":
                self._move_down(1)
            case "\r":
                self.column = 0
            case "\b":
                self.column = max(0, self.column - 1)
            case _ if character.isprintable():
                self._write(character)

    def _write(self, character: str) -> None:
        if self.column >= self.columns:
            self.column = 0
            self._move_down(1)
        line = self.lines[self.row]
        line.extend(Cell() for _ in range(self.column + 1 - len(line)))
        line[self.column] = Cell(character, self.style)
        self.column += 1

    def _move_down(self, count: int) -> None:
        self.row += count
        self.lines.extend([] for _ in range(self.row + 1 - len(self.lines)))


def record(command: Sequence[str], screen: Screen) -> int:
    """Run a command on a terminal, show its output on the screen, and return its exit code."""
    terminal, programs_end = pty.openpty()
    fcntl.ioctl(programs_end, termios.TIOCSWINSZ, struct.pack("HHHH", 50, screen.columns, 0, 0))
    program = subprocess.Popen(
        command,
        stdin=programs_end,
        stdout=programs_end,
        stderr=programs_end,
        env={**os.environ, "TERM": "xterm-256color"},
        start_new_session=True,
    )
    os.close(programs_end)
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for data in _read_all(terminal):
        sys.stderr.buffer.write(data)
        sys.stderr.flush()
        screen.feed(decoder.decode(data))
    os.close(terminal)
    return program.wait()


def _read_all(terminal: int) -> Iterator[bytes]:
    while True:
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:  # Linux reports the end of a pseudo-terminal as an error
            return
        if not data:
            return
        yield data


def until(lines: Lines, beginning: str) -> Lines:
    """Return the lines before the first with this beginning, without blank ones at the end."""
    end = _find(lines, beginning)
    while end and not text_of(lines[end - 1]):
        end -= 1
    return lines[:end]


def text_of(line: Sequence[Cell]) -> str:
    """Return a line without its styles."""
    return "".join(cell.character for cell in line).rstrip()


def _find(lines: Lines, beginning: str) -> int:
    return next((n for n, line in enumerate(lines) if text_of(line).startswith(beginning)), len(lines))


def draw(lines: Lines, *, title: str, columns: int = COLUMNS) -> str:
    """Draw the lines as an SVG picture of a terminal window."""
    width = 2 * MARGIN + columns * CELL_WIDTH
    height = TITLE_BAR + len(lines) * LINE_HEIGHT + MARGIN
    size = f'width="{width:g}" height="{height:g}"'
    dots = [f'<circle cx="{20 + 18 * i}" cy="17" r="5.5" fill="{colour}"/>' for i, colour in enumerate(DOTS)]
    rows = [
        run for number, line in enumerate(lines) for run in _runs(line, y=TITLE_BAR + number * LINE_HEIGHT + FONT_SIZE)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" {size} role="img">',
            f"<title>{escape(title)}</title>",
            f'<rect width="100%" height="100%" rx="9" fill="{BACKGROUND}"/>',
            *dots,
            f'<g font-family="{FONTS}" font-size="{FONT_SIZE}" fill="{FOREGROUND}">',
            f'<text {PRESERVE} x="{width / 2:g}" y="21" text-anchor="middle" fill="{QUIET}">{escape(title)}</text>',
            *rows,
            "</g>",
            "</svg>",
            "",
        ]
    )


def _runs(line: Sequence[Cell], *, y: float) -> Iterator[str]:
    """Write one text element for each stretch of equal style, with its length, so that columns align in any font."""
    column = 0
    for style, cells in groupby(line, key=lambda cell: cell.style):
        text = "".join(cell.character for cell in cells)
        shown = text.strip()
        if shown:
            x = MARGIN + (column + len(text) - len(text.lstrip())) * CELL_WIDTH
            length = len(shown) * CELL_WIDTH
            place = f'x="{x:.1f}" y="{y:g}" textLength="{length:.1f}"'
            yield f"<text {PRESERVE} {place}{_paint(style)}>{escape(shown)}</text>"
        column += len(text)


def _paint(style: Style) -> str:
    colour = next((COLOURS[code] for code in reversed(style) if code in COLOURS), None)
    weight = ' font-weight="bold"' if "1" in style else ""
    return weight + (f' fill="{colour}"' if colour else "")


def main() -> int:
    """Record, draw, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("docs/images/demo.svg"))
    parser.add_argument("command", nargs="*", default=DEMO)
    arguments = parser.parse_args()
    screen, prompt = Screen(), shlex.join(arguments.command)
    screen.feed(f"\x1b[{';'.join(PROMPT_STYLE)}m$\x1b[0m {prompt}\r\n")
    code = record(arguments.command, screen)
    if code:
        print(f"{prompt} ended with exit code {code}; no picture was made", file=sys.stderr)
        return code
    lines = until(screen.lines, DEMO_ENDS)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(draw(lines, title=prompt), "utf-8")
    print(f"picture: {arguments.output}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
