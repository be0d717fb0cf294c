"""Reads what was appended to a file of lines: whole lines from a position on, and how to recognise the file again.

A last line without its end is left alone until it is whole. It is whole without a line feed, too, if it ends like an
object and parses as one, because no object is the beginning of a longer one.
"""

import hashlib
import os
from dataclasses import dataclass
from typing import BinaryIO, Final

from nemo_gym.metrics.lines import parse_line

_LOOK: Final = 1 << 16  # bytes that are searched for a line feed at a time
_PROBE: Final = 4096  # bytes at the beginning and before the position


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Which file it is, up to a position."""

    inode: int
    head: str
    tail: str


def fingerprint(file: BinaryIO, position: int) -> Fingerprint:
    """Look at a file."""
    descriptor = file.fileno()
    probe = min(position, _PROBE)
    head, tail = os.pread(descriptor, probe, 0), os.pread(descriptor, probe, position - probe)
    return Fingerprint(os.fstat(descriptor).st_ino, _digest(head), _digest(tail))


def whole_lines(file: BinaryIO, position: int, budget: int) -> int:
    """How many bytes from the position on are whole lines, about as many as asked for; 0 if there is no whole line."""
    descriptor = file.fileno()
    size = os.fstat(descriptor).st_size
    while position < size:
        stop = min(position + budget, size)
        for end in range(stop, position, -_LOOK):
            start = max(position, end - _LOOK)
            place = os.pread(descriptor, end - start, start).rfind(b"\n")
            if place >= 0:
                return start + place + 1 - position
        if stop == size:
            return size - position if _is_whole(os.pread(descriptor, size - position, position)) else 0
        budget *= 4  # a line that is longer than that
    return 0


def _is_whole(tail: bytes) -> bool:
    if not tail.rstrip().endswith(b"}"):
        return False
    try:
        return isinstance(parse_line(tail), dict)
    except ValueError:
        return False


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
