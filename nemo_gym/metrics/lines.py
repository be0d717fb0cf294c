"""Files of JSON lines, read in blocks of whole lines."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

Block = bytes | memoryview

_BLOCK: Final = 1 << 18  # bytes read at a time: small enough to stay in the processor's cache
_NEWLINE: Final = ord("\n")


def read_blocks(path: Path) -> Iterator[memoryview]:
    """The content of a file in pieces that end where a line ends; the last piece may lack its line end.

    A piece is valid until the next one is asked for: all share one buffer, as copying would cost more than reading.
    """
    buffer = bytearray(2 * _BLOCK)
    used = 0
    with path.open("rb", buffering=0) as file:
        while read := file.readinto(memoryview(buffer)[used:]):
            used += read
            cut = buffer.rfind(b"\n", 0, used) + 1
            if cut:
                yield memoryview(buffer)[:cut]
                buffer[: used - cut] = buffer[cut:used]
                used -= cut
            elif used == len(buffer):  # a line longer than the buffer
                buffer = buffer + bytes(len(buffer))
    if used:
        yield memoryview(buffer)[:used]


def count_lines(block: Block) -> int:
    """How many lines a block has; an unfinished last one counts."""
    ends = int(np.count_nonzero(np.frombuffer(block, np.uint8) == _NEWLINE))
    return ends + (len(block) > 0 and block[-1] != _NEWLINE)


def is_text(block: Block) -> bool:
    """Whether a block is valid UTF-8."""
    if len(block) == 0 or np.frombuffer(block, np.int8).min() >= 0:  # ASCII
        return True
    try:
        str(block, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def parse_line(line: bytes) -> Any:
    """The value of a line of JSON, of which NaN and Infinity are accepted too. ``ValueError`` says what is wrong."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        reason = str(error)
    try:
        return json.loads(line)
    except (ValueError, RecursionError):  # the first parser's words are the better ones
        raise ValueError(f"not JSON ({reason})") from None
