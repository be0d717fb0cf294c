"""Files of JSON lines, read in blocks of whole lines."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import orjson

from nemo_gym.io.json import decode

Block = bytes | memoryview  # a view must begin where its buffer begins

_BLOCK: Final = 1 << 18  # bytes read at a time: small enough to stay in the processor's cache
_NEWLINE: Final = ord("\n")


def read_blocks(path: Path) -> Iterator[memoryview]:
    """The content of a file in blocks that end at the end of a line; the last block may lack its line feed.

    A block is valid until the next one is requested: all share one buffer, because copying costs more than reading.
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
            elif used == len(buffer):  # the line is longer than the buffer
                # A new object: the old one cannot grow while somebody holds a view of it.
                buffer = buffer + bytes(len(buffer))
    if used:
        yield memoryview(buffer)[:used]


def line_ends(block: Block) -> list[int]:
    """Where each line of a block ends; an unfinished last line ends with the block."""
    content, size = _content(block), len(block)
    ends = []
    place = content.find(b"\n", 0, size)
    while place >= 0:
        ends.append(place)
        place = content.find(b"\n", place + 1, size)
    if size and (not ends or ends[-1] != size - 1):
        ends.append(size)
    return ends


def count_lines(block: Block) -> int:
    """The number of lines in a block, including an unfinished last one."""
    return _content(block).count(b"\n", 0, len(block)) + (len(block) > 0 and block[-1] != _NEWLINE)


def _content(block: Block) -> bytes | bytearray:
    """The buffer behind a block. A view has no search methods, and searching its buffer needs no copy."""
    return block if isinstance(block, bytes) else cast("bytes | bytearray", block.obj)


def is_text(block: Block) -> bool:
    """Whether a block is valid UTF-8."""
    content = bytes(block)
    if content.isascii():  # as most are, which is seen in half the time
        return True
    try:
        str(content, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def parse_line(line: bytes) -> Any:
    """The value of a line. The ``ValueError`` has orjson's message, which is clearer than that of Python's parser."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        reason = str(error)
    try:
        return decode(line)
    except ValueError:
        raise ValueError(f"not JSON ({reason})") from None
